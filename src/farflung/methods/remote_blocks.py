"""Neighbourhoods sampled over the whole graph by trainers that hold a part of it each (DistDGL, arXiv 2010.05337).

Whose a node is, a `Book` says. Its owner draws its in-edges for everybody (`Owned`), by the hash that a sampler of the
whole graph would use; who asked puts the lists together to the blocks that such a sampler gives (`Growth`).

Legend for shapes: N nodes of the graph, n inner nodes of a part, R nodes of which a hop asks, K those that a sample
has in the end, r rows asked of one owner, e edges drawn for them, M parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from farflung.graph import FeatureBlock
from farflung.graph.features import stacked
from farflung.kernels import SparseMatrix, formed
from farflung.kernels.sampling import Block, InEdges, Places, hop_key
from farflung.nn.adjacency import Aggregation
from farflung.nn.blocks import Batch, VisibleDegrees, block_matrix
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.partition import Shard
from farflung.tasks.batches import SampleConfig

Lists = Mapping[str, np.ndarray]
"""What an owner says of r rows. Of their in-edges: `counts` int32 [r], `sources` int32 [e] (global ids, row after row),
`weights` float32 [e] where edges have weights that count, `attr` [e, A] where attributes do. Of the rows themselves,
for GCN: `degree` [r] without what is hidden (int32; float64 where edges have weights, then with `available` int32 [r],
their number)."""

_NO_PAIRS = np.empty((2, 0), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Groups:
    """Some nodes by owner."""

    order: np.ndarray
    """int64 [R]: positions in the list of nodes, owner after owner, ascending within."""
    ptr: np.ndarray
    """int64 [M + 1]: those of owner j are `order[ptr[j]:ptr[j + 1]]`."""
    rows: np.ndarray
    """int32 [R]: each one's number among its owner's inner nodes, in the same order."""

    def positions(self, owner: int) -> np.ndarray:
        """Where the nodes of `owner` are in the list."""
        return self.order[self.ptr[owner] : self.ptr[owner + 1]]

    def rows_of(self, owner: int) -> np.ndarray:
        """Their numbers at `owner`, in the same order."""
        return self.rows[self.ptr[owner] : self.ptr[owner + 1]]

    @property
    def owners(self) -> list[int]:
        """Who owns any, ascending."""
        return np.flatnonzero(np.diff(self.ptr)).tolist()


class Book:
    """The partition book: the owner of each node, and its number there."""

    def __init__(self, owner: np.ndarray, num_parts: int) -> None:
        """`owner` [N], unsigned, below `num_parts`."""
        self.owner, self.num_parts = owner, num_parts
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], np.arange(num_parts))
        self.place = np.empty(len(owner), dtype=np.int32)
        self.place[order] = np.arange(len(owner)) - starts[owner[order]]

    def group(self, nodes: np.ndarray) -> Groups:
        """`nodes` int64 [R] by owner."""
        owner = self.owner[nodes]
        order = np.argsort(owner, kind="stable")
        ptr = np.searchsorted(owner[order], np.arange(self.num_parts + 1))
        return Groups(order, ptr, self.place[nodes[order]])


class Owned:
    """A part's nodes as their owner gives them out: their in-edges, drawn for whoever asks, and their features."""

    def __init__(self, shard: Shard, aggregation: Aggregation, sample: SampleConfig, num_layers: int) -> None:
        """Raises InputError where weights leave `gcn` a degree that has no root."""
        assert shard.x is not None
        self.x = shard.x
        self.num_inner = shard.num_inner
        self._replace = sample.replace
        self._fanouts = [None] * num_layers if sample.fanouts is None else list(sample.fanouts)
        sources = np.concatenate([shard.inner, shard.halo]).astype(np.int32)[shard.indices]
        indptr, kept = shard.indptr, np.ones(len(sources), dtype=bool)
        if aggregation in ("gcn", "attention"):
            kept = sources != np.repeat(shard.inner, np.diff(indptr))
            indptr = np.append(0, np.cumsum(kept))[indptr]
        self.edges = InEdges(indptr, sources[kept], shard.inner)
        self._weight = _carried(shard.edge_weight, kept, aggregation in ("gcn", "mean", "edges"))
        self._attr = _carried(shard.edge_attr, kept, aggregation == "edges")
        self._degrees: VisibleDegrees | None = None
        if aggregation == "gcn":
            self._degrees = VisibleDegrees(self.edges, self._weight, shard.degree[: shard.num_inner].copy())

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the arrays of `lists`."""
        carried = {"weights": self._weight, "attr": self._attr}
        return ("counts", "sources", *(name for name, array in carried.items() if array is not None))

    @property
    def row_fields(self) -> tuple[str, ...]:
        """Names of the arrays of `degrees`."""
        if self._degrees is None:
            return ()
        return ("degree",) if self._weight is None else ("degree", "available")

    def hide(self, pairs: np.ndarray | None) -> None:
        """Take edges out of what is drawn, until the next call: `pairs` [2, k], sources by global id and rows."""
        if pairs is None and len(self.edges.hidden) == 0:
            return
        sources, rows = _NO_PAIRS if pairs is None else pairs.astype(np.int64)
        self.edges.hide(sources, rows)
        if self._degrees is not None:
            self._degrees.follow()

    def lists(self, rows: np.ndarray, hop: int, key: int) -> Lists:
        """In-edges drawn for `rows` (int [r], in range) in a hop (0: the last layer's) of the sample named by `key`."""
        fanout = self._fanouts[-1 - hop]
        indptr, edges, sources = self.edges.draw(rows.astype(np.int64), fanout, hop_key(key, hop), self._replace)
        found = {"counts": np.diff(indptr).astype(np.int32), "sources": sources}
        if self._weight is not None:
            found["weights"] = self._weight[edges]
        if self._attr is not None:
            found["attr"] = self._attr[edges]
        return found

    def degrees(self, rows: np.ndarray) -> Lists:
        """Degrees of `rows` for GCN; nothing for others."""
        if self._degrees is None:
            return {}
        degree = self._degrees.now[rows]
        if self._weight is None:
            return {"degree": degree.astype(np.int32)}
        return {"degree": degree, "available": self.edges.visible(rows).astype(np.int32)}

    def features(self, rows: np.ndarray) -> FeatureBlock:
        """Features of `rows`, [r, F], as they lie in the part."""
        return np.take(self.x, rows, axis=0) if isinstance(self.x, np.ndarray) else self.x[rows]


def _carried(values: np.ndarray | None, kept: np.ndarray, needed: bool) -> np.ndarray | None:
    return values[kept] if values is not None and needed else None


def sound_lists(found: Lists, owned: Owned, num_rows: int, num_nodes: int) -> bool:
    """Whether what a peer says of the in-edges of so many rows can be worked with."""
    if found.keys() != set(owned.fields) or any(found[name].dtype.kind != "i" for name in ("counts", "sources")):
        return False
    counts, sources = found["counts"], found["sources"]
    if counts.shape != (num_rows,) or counts.min(initial=0) < 0 or sources.shape != (counts.sum(),):
        return False
    inside = sources.min(initial=0) >= 0 and sources.max(initial=0) < num_nodes
    rest = [found[name] for name in owned.fields[2:]]
    return bool(inside) and all(len(array) == len(sources) and bool(np.isfinite(array).all()) for array in rest)


def sound_degrees(found: Lists, owned: Owned, num_rows: int) -> bool:
    """Whether what a peer says of the degrees of so many rows can be worked with."""
    if found.keys() != set(owned.row_fields):
        return False
    return all(array.shape == (num_rows,) and bool(np.isfinite(array).all()) for array in found.values())


class Growth:
    """The neighbourhood of one step's seeds, which grows by a hop at a time.

    Attributes:
        blocks: of the hops so far, the last layer's first; `edges` number the edges of the block itself.
    """

    def __init__(self, book: Book, places: Places, seeds: np.ndarray) -> None:
        """`places`: of all N nodes, used by no other while this grows; `seeds` int64, unique."""
        self._book, self._places = book, places
        self.blocks: list[Block] = []
        self._carried: list[Lists] = []
        places.begin(seeds)
        self.groups = book.group(seeds)

    @property
    def nodes(self) -> np.ndarray:
        """All that take part so far, seeds first, int64; `groups` has them by owner."""
        return self._places.nodes

    def add(self, lists: Mapping[int, Lists]) -> None:
        """Add a hop: the in-edges of `nodes`, from each of `groups.owners` those that it owns."""
        counts = np.empty(len(self.nodes), dtype=np.int64)
        for owner, found in lists.items():
            counts[self.groups.positions(owner)] = found["counts"]
        indptr = np.zeros(len(counts) + 1, dtype=np.int64)
        np.cumsum(counts, out=indptr[1:])
        columns: dict[str, np.ndarray] = {}
        for owner, found in lists.items():
            where = _row_positions(indptr[self.groups.positions(owner)], found["counts"])
            for name in found.keys() - {"counts"}:
                column = columns.setdefault(name, _room(indptr[-1], found[name]))
                column[where] = found[name]
        sources = columns.pop("sources", np.empty(0, dtype=np.int32))
        self._places.number(sources)
        self.blocks.append(Block(self.nodes, indptr, sources, np.arange(indptr[-1])))
        self._carried.append(columns)
        self.groups = self._book.group(self.nodes)

    def batch(
        self,
        aggregations: Sequence[Aggregation],
        rows: Mapping[int, FeatureBlock],
        degrees: Mapping[int, Lists],
        dtype: torch.dtype,
    ) -> Batch:
        """Matrices and features to embed the seeds.

        Args:
            aggregations: of the encoder's layers; there is a hop for each but those that are `none`.
            rows: features of `nodes`, from each of `groups.owners` those that it owns; so with `degrees`.
            dtype: of the matrices and the features.
        """
        blocks = iter(list(zip(self.blocks, self._carried, strict=True))[::-1])
        facts = self._in_order(degrees)
        matrices = [None if a == "none" else self._matrix(a, *next(blocks), facts, dtype) for a in aggregations]
        nodes = np.empty(len(self.nodes), dtype=np.int64)
        nodes[self.groups.order] = np.arange(len(nodes))
        return Batch(matrices, _as_factor([rows[owner] for owner in self.groups.owners], dtype), nodes)

    def _in_order(self, degrees: Mapping[int, Lists]) -> dict[str, np.ndarray]:
        """What owners said of their rows, as columns over `nodes`."""
        columns: dict[str, np.ndarray] = {}
        for owner in self.groups.owners:
            for name, values in degrees[owner].items():
                column = columns.setdefault(name, _room(len(self.nodes), values))
                column[self.groups.positions(owner)] = values
        return columns

    def _matrix(
        self, aggregation: Aggregation, block: Block, carried: Lists, facts: Lists, dtype: torch.dtype
    ) -> SparseMatrix:
        weight, attr, degree, available = carried.get("weights"), carried.get("attr"), None, None
        if aggregation == "gcn":  # nodes of a block are the first ones of all
            degree = facts["degree"][: len(block.nodes)].astype(np.float64)
            available = facts.get("available", degree)[: block.num_destinations].astype(np.int64)
        return block_matrix(aggregation, block, numpy_dtype(dtype), weight, attr, degree, available)


def _room(length: int, like: np.ndarray) -> np.ndarray:
    return np.empty((int(length), *like.shape[1:]), dtype=like.dtype)


def _row_positions(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """start, start + 1, ... of each row in turn, `counts` of them; int64 [e]."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def _as_factor(blocks: Sequence[FeatureBlock], dtype: torch.dtype) -> torch.Tensor | SparseMatrix:
    """Blocks of rows below each other, as the first layer multiplies them."""
    if sp.issparse(blocks[0]):
        factor = formed(features_as_factor(stacked(blocks), dtype))
        assert isinstance(factor, torch.Tensor | SparseMatrix)
        return factor
    out = np.empty((sum(len(block) for block in blocks), blocks[0].shape[1]), dtype=numpy_dtype(dtype))
    np.concatenate(blocks, out=out, casting="same_kind")
    return torch.from_numpy(out)
