"""The one structure that everything starts from: a frozen graph, at rest in NumPy arrays.

Legend for shapes: N nodes, E directed edges, F features, C classes, T node types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError

FeatureBlock: TypeAlias = "np.ndarray | sp.csr_matrix"
"""Features of the nodes of one type: dense float16/32/64 [N_t, F_t] or scipy CSR of the same shape."""

MASKS = ("train", "val", "test")
"""The fields of a `Split`, in their order."""


@dataclass(frozen=True, eq=False)
class Split:
    """Which nodes train, validate and test: three disjoint bool masks [N] (uint8 0/1 is read as bool)."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        from farflung.graph.checks import as_mask

        for part in MASKS:
            object.__setattr__(self, part, as_mask(getattr(self, part), f"{part} mask"))


@dataclass(frozen=True, eq=False)
class Graph:
    """A directed graph in CSR by destination; an undirected one holds each edge in both directions.

    The in-neighbours of node v are `indices[indptr[v]:indptr[v + 1]]`, ascending. Arrays may be
    memory-mapped. Construct with `Graph.from_edges`, `farflung.load` or `from_pyg`; the constructor itself
    checks shapes, ranges and disjoint masks, and raises `InputError` naming the field, what it expected, what it found.
    """

    indptr: np.ndarray
    """int64 [N + 1]: where each node's in-edges start and end."""
    indices: np.ndarray
    """int32 or int64 [E]: the source of each in-edge."""
    features: tuple[FeatureBlock | None, ...] = (None,)
    """One block per node type (a single one where `node_type` is None); None: nodes of that type have none.
    Row r of block t belongs to the r-th node (in id order) of type t."""
    y: np.ndarray | None = None
    """int64 [N], -1 = no label; or uint8 [N, C] of 0/1, multi-label; or None: no labels at all."""
    split: Split | None = None
    """The split in use; None: not chosen yet (see `farflung.graph.splits`)."""
    public_splits: tuple[Split, ...] = ()
    """Splits that came with the data, in its order."""
    node_type: np.ndarray | None = None
    """int16 [N], or None: all nodes are of one type."""
    edge_type: np.ndarray | None = None
    """int16 [E] in the order of `indices`, or None: all edges are of one type."""
    edge_weight: np.ndarray | None = None
    """float32 [E], or None: every edge counts 1."""
    edge_attr: np.ndarray | None = None
    """float32 [E, D], or None."""
    ids: np.ndarray | None = None
    """Original ids of the nodes, int64 [N] or str [N], unique; None: they are the row numbers."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes by number (sorted where labels came as strings), or None: they have none."""
    node_type_names: tuple[str, ...] | None = None
    """Names of the node types by number, or None: they have none."""
    edge_type_names: tuple[str, ...] | None = None
    """Names of the edge types by number, or None: they have none."""
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further columns [N] by name, e.g. a region for the `given` partition."""
    edge_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further columns [E] by name in the order of `indices`, e.g. the split that an edge belongs to."""
    name: str = "graph"
    notes: tuple[str, ...] = ()
    """What was done to the data on its way in (made symmetric, duplicates kept, ...), one sentence each."""

    def __post_init__(self) -> None:
        from farflung.graph.checks import check_graph

        check_graph(self)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Directed edges E, loops and duplicates included."""
        return len(self.indices)

    @property
    def x(self) -> FeatureBlock | None:
        """Features of a graph with one node type, [N, F]."""
        if len(self.features) != 1:
            raise InputError(f"graph '{self.name}' has {len(self.features)} node types: use `features[t]`, not `x`")
        return self.features[0]

    @property
    def num_features(self) -> int:
        """Width F of `x`; 0 where there are no features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def multilabel(self) -> bool:
        return self.y is not None and self.y.ndim == 2

    @property
    def num_classes(self) -> int:
        """Classes C; 0 where there are no labels."""
        if self.y is None:
            return 0
        if self.y.ndim == 2:
            return int(self.y.shape[1])
        if self.class_names is not None:
            return len(self.class_names)
        return int(self.y.max(initial=-1)) + 1

    @property
    def original_ids(self) -> np.ndarray:
        """`ids`, or the row numbers where there are none. int64 or str [N]."""
        return np.arange(self.num_nodes, dtype=np.int64) if self.ids is None else self.ids

    def in_degree(self) -> np.ndarray:
        """In-edges per node, loops and duplicates included. int64 [N]."""
        return np.diff(self.indptr)

    def destinations(self) -> np.ndarray:
        """The destination of each edge in the order of `indices`. Same dtype as `indices`, [E]."""
        return np.repeat(np.arange(self.num_nodes, dtype=self.indices.dtype), self.in_degree())

    def with_(self, **changes: Any) -> Graph:
        """A copy that shares all arrays but the changed fields."""
        return replace(self, **changes)

    @classmethod
    def from_edges(
        cls,
        source: np.ndarray | Sequence[Any],
        destination: np.ndarray | Sequence[Any] | None = None,
        *,
        num_nodes: int | None = None,
        symmetric: bool = False,
        duplicates: str = "keep",
        **fields: Any,
    ) -> Graph:
        """Build a graph from two edge columns of integer or string ids, and fields by name: `x=`, `y=`, `nodes=`, ...

        See `farflung.graph.build.from_edges`. Raises InputError where anything does not fit.
        """
        if destination is None:
            raise InputError("from_edges takes two columns: give from_edges(edge_index[0], edge_index[1])")
        from farflung.graph.build import from_edges

        return from_edges(
            source, destination, num_nodes=num_nodes, symmetric=symmetric, duplicates=duplicates, **fields
        )
