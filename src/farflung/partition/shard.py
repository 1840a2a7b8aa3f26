"""A shard: all that one trainer knows of the graph.

Legend for shapes: n inner nodes, h halo nodes, e in-edges of inner nodes, b boundary rows, M parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from farflung.graph import FeatureBlock, Split


@dataclass(frozen=True)
class GraphInfo:
    """What every part knows of the graph as a whole: counts and names, no rows."""

    name: str = "graph"
    num_nodes: int = 0
    num_edges: int = 0
    """Directed edges, loops and duplicates included."""
    num_classes: int = 0
    """Classes C of the whole graph (a part may lack some); 0 where there are no labels."""
    feature_widths: tuple[int | None, ...] = (None,)
    """Features F of each node type's block, None where it has none."""
    class_names: tuple[str, ...] | None = None
    node_type_names: tuple[str, ...] | None = None
    edge_type_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Shard:
    """One part's inner nodes, their in-edges, and its halo (ids and owners of remote in-neighbours).

    Local ids: 0..n-1 are the inner nodes in ascending global id, n..n+h-1 the halo nodes, grouped by owner and
    ascending in global id within an owner. Nothing of a halo node but its id, owner and degree is here.
    """

    part: int
    num_parts: int
    inner: np.ndarray
    """int64 [n]: global ids of the inner nodes, ascending."""
    halo: np.ndarray
    """int64 [h]: global ids of the halo nodes, grouped by owner, ascending within."""
    halo_ptr: np.ndarray
    """int64 [M + 1]: halo nodes owned by part j are `halo[halo_ptr[j]:halo_ptr[j + 1]]`."""
    indptr: np.ndarray
    """int64 [n + 1]: CSR by destination over inner nodes, edges in the order of the graph."""
    indices: np.ndarray
    """int32 or int64 [e]: local ids of the sources (>= n: halo)."""
    degree: np.ndarray
    """float64 [n + h]: global in-degree without loops (sum of weights where edges carry them)."""
    boundary: np.ndarray
    """int64 [b]: local ids of inner nodes that other parts have in their halo, grouped by that part; for part j
    in exactly the order in which j's halo lists them."""
    boundary_ptr: np.ndarray
    """int64 [M + 1]: rows for part j are `boundary[boundary_ptr[j]:boundary_ptr[j + 1]]`."""
    features: tuple[FeatureBlock | None, ...]
    """Blocks of the inner nodes, as in `Graph.features`."""
    y: np.ndarray | None
    split: Split | None
    public_splits: tuple[Split, ...]
    node_type: np.ndarray | None
    """int16 [n]."""
    edge_type: np.ndarray | None
    edge_weight: np.ndarray | None
    edge_attr: np.ndarray | None
    ids: np.ndarray | None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further columns of the inner nodes, as in `Graph.columns`."""
    edge_columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Further columns of their in-edges, as in `Graph.edge_columns`."""
    info: GraphInfo = GraphInfo()
    """Counts and names of the whole graph, equal in all shards of a partition."""

    @property
    def num_inner(self) -> int:
        return len(self.inner)

    @property
    def num_halo(self) -> int:
        return len(self.halo)

    @property
    def x(self) -> FeatureBlock | None:
        """Features of the inner nodes of a graph with one node type, [n, F]."""
        return self.features[0]

    def boundary_for(self, part: int) -> np.ndarray:
        """Local ids of the inner nodes whose rows part `part` needs, in the order it expects. int64."""
        return self.boundary[self.boundary_ptr[part] : self.boundary_ptr[part + 1]]

    def halo_of(self, part: int) -> slice:
        """Positions within the halo (0..h-1) of the nodes owned by `part`."""
        return slice(int(self.halo_ptr[part]), int(self.halo_ptr[part + 1]))
