"""Mini-batches: sampled neighbourhoods as an encoder's layers multiply them.

Legend for shapes: N nodes, E edges of the graph or part, F features, R destinations and K >= R sources of a layer (the
first R are the destinations), e sampled edges of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange

from farflung.errors import InputError
from farflung.graph.degrees import degree_without_loops
from farflung.kernels import Pattern, SparseMatrix, formed
from farflung.kernels.sampling import Block, InEdges, NeighbourSampler, take_rows
from farflung.nn.adjacency import Aggregation, check_degree
from farflung.nn.convs import Conv, Gathered
from farflung.nn.encoder import Encoder, Layer, layer_key
from farflung.nn.features import numpy_dtype

_DENSE_SPEED = 32
"""Multiplications per second of dense times dense, over those of sparse times dense: a rough figure."""


@dataclass(frozen=True, eq=False)
class Batch:
    """All that an encoder needs to embed some seeds."""

    matrices: list[SparseMatrix | None]
    """Of each layer, first to last: [R, K], where R is the K of the next layer and at last the number of seeds. None:
    the layer does not aggregate."""
    x: torch.Tensor | SparseMatrix
    """Features, a row for each of `nodes` and maybe for others: [N, F]. Rows are read where they lie, not copied."""
    nodes: np.ndarray
    """int64 [K], the first layer's sources, as rows of `x`."""


class Neighbourhoods:
    """Sampled inputs of an encoder, from one graph or part.

    Attributes:
        x: the features [N, F], as they were given. They may be replaced between batches.
        sampler: the graph that is sampled from; for `gcn` without its loops; None for `none`.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        indptr: np.ndarray,
        indices: np.ndarray,
        weight: np.ndarray | None,
        x: torch.Tensor | SparseMatrix,
        num_layers: int,
        dtype: torch.dtype,
        fanouts: Sequence[int | None] | None,
        replace: bool = False,
        attr: np.ndarray | None = None,
    ) -> None:
        """A graph in CSR by destination, `indices` ascending in each row, and how to sample it.

        Args:
            aggregation: `mean`: over the sampled in-edges, by weight where they carry one. `gcn`: as `adjacency`
                normalises, by the degrees of this graph without what is hidden; the sampled entries of a row stand
                for all of its in-edges (times available / sampled), so that sums are unbiased. `attention`, `edges`:
                the sampled in-edges, see `adjacency`. `none`: no neighbours.
            indptr: int64 [N + 1].
            indices: int32 or int64 [E].
            weight: [E], or None: every edge counts 1.
            x: [N, F] in `dtype`, see `features_as_factor`.
            num_layers: layers of the encoder.
            dtype: of the matrices.
            fanouts: neighbours per layer, the first layer's first, None: all; or None: all in every layer.
            replace: whether neighbours are drawn with replacement.
            attr: of the edges, [E, A], for `edges`; or None.

        Raises:
            InputError: where there is not one fan-out per layer, or weights leave `gcn` a degree that has no root.
        """
        if fanouts is not None and len(fanouts) != num_layers:
            raise InputError(f"fanouts: {num_layers} layers need as many fan-outs, found {len(fanouts)}; give one each")
        self.x = x
        self.sampler: NeighbourSampler | None = None
        self._aggregation = aggregation
        self._dtype = numpy_dtype(dtype)
        self._fanouts = [None] * num_layers if fanouts is None else list(fanouts)
        self._replace = replace
        if aggregation == "none":
            return
        if aggregation in ("gcn", "attention"):
            indptr, indices, weight = _without_loops(indptr, indices, weight)
        self._weight, self._attr = weight, attr
        self.sampler = NeighbourSampler(indptr, indices)
        if aggregation == "gcn":
            full = degree_without_loops(indptr, indices, weight)
            self._degrees = VisibleDegrees(self.sampler, weight, full)

    def hide(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Take the edges source -> destination, all copies of each, out of the graph until the next call.

        `sources`, `destinations` int64 [k]; pairs that are no edge are ignored, and k = 0 brings every edge back.
        Raises ValueError where an id is no node, InputError where weights leave `gcn` a degree that has no root.
        """
        if self.sampler is None:
            return
        self.sampler.hide(sources, destinations)
        if self._aggregation == "gcn":
            self._degrees.follow()

    def batch(self, seeds: np.ndarray, key: int) -> Batch:
        """Matrices and features to embed `seeds` (int64, unique; ValueError otherwise) in a sample named by `key`."""
        if self.sampler is None:
            return Batch([None] * len(self._fanouts), self.x, np.array(seeds, dtype=np.int64, order="C"))
        blocks = self.sampler.blocks(seeds, self._fanouts, key, self._replace)
        return Batch([self.matrix(block) for block in blocks], self.x, blocks[0].nodes)

    def matrix(self, block: Block) -> SparseMatrix:
        """The aggregation matrix [R, K] of a block that `sampler` drew and nothing was hidden since."""
        assert self.sampler is not None
        if self._aggregation != "gcn":
            return block_matrix(self._aggregation, block, self._dtype, self._weight, self._attr)
        available = self.sampler.visible(block.nodes[: block.num_destinations])
        degree = self._degrees.now[block.nodes]
        return block_matrix("gcn", block, self._dtype, self._weight, degree=degree, available=available)


class VisibleDegrees:
    """In-degrees without what a sampler hides.

    Attributes:
        now: float64 [N]: the weights of the visible in-edges, summed.
    """

    def __init__(self, sampler: InEdges, weight: np.ndarray | None, full: np.ndarray) -> None:
        """`weight` [E] of the sampler's edges, or None: each counts 1; `full` float64 [N]: the degrees with nothing
        hidden. Raises InputError where one has no root, see `check_degree`."""
        check_degree(full)
        self._sampler, self._weight, self._full = sampler, weight, full
        self._bereft = np.empty(0, dtype=np.int64)
        self.now = full.copy()

    def follow(self) -> None:
        """Take account of what the sampler hides since its last `hide`. Raises InputError as above."""
        self.now[self._bereft] = self._full[self._bereft]
        hidden = self._sampler.hidden
        self._bereft = _rows_of(self._sampler.indptr, hidden)
        np.subtract.at(self.now, self._bereft, 1.0 if self._weight is None else self._weight[hidden])
        if self._weight is not None:
            names = self._sampler.names
            check_degree(self.now[self._bereft], names[self._bereft] if len(names) else self._bereft)


def block_matrix(
    aggregation: Aggregation,
    block: Block,
    dtype: np.dtype,
    weight: np.ndarray | None = None,
    attr: np.ndarray | None = None,
    degree: np.ndarray | None = None,
    available: np.ndarray | None = None,
) -> SparseMatrix:
    """The aggregation matrix [R, K] of a sampled block, as `Neighbourhoods` documents it; not for `none`.

    Args:
        weight: of the edges that `block.edges` are positions of, or None: each counts 1.
        attr: of the same edges, [E, A], for `edges`; or None.
        degree: float64 [K], of `block.nodes`, for `gcn`.
        available: int64 [R], how many in-edges were there to be drawn, for `gcn`.
    """
    num_columns = len(block.nodes)
    if aggregation == "mean":
        values = _mean(block.indptr, block.edges, weight, np.empty(len(block.edges), dtype))
        return SparseMatrix(Pattern(block.indptr, block.indices, num_columns), values)
    if aggregation == "edges":
        values = np.ones(len(block.edges)) if weight is None else weight[block.edges]
        chosen = None if attr is None else attr[block.edges].astype(dtype)
        return SparseMatrix(Pattern(block.indptr, block.indices, num_columns), values.astype(dtype), chosen)
    if aggregation == "attention":
        indptr, indices = _looped(block.indptr, block.indices)
        return SparseMatrix(Pattern(indptr, indices, num_columns), np.ones(len(indices), dtype))
    values = np.empty(len(block.edges) + block.num_destinations, dtype)
    indptr, indices = _gcn(block.indptr, block.indices, block.edges, available, weight, degree, values)
    return SparseMatrix(Pattern(indptr, indices, num_columns), values)


def embed(encoder: Encoder, batch: Batch, key: int | None = None) -> torch.Tensor:
    """What `encoder` makes of the seeds of a batch, [seeds, out]. `key` seeds dropout; None: evaluation."""
    first, *others = encoder.layers
    h = first.hidden(_gather_first(first, batch), layer_key(key, 0))
    for i, (layer, matrix) in enumerate(zip(others, batch.matrices[1:], strict=True), start=1):
        h = layer.hidden(_gather(layer, matrix, h), layer_key(key, i))
    return h


def _gather_first(layer: Layer, batch: Batch) -> Gathered:
    """What the first layer gathers from constant features: dense rows are read where they lie, sparse ones taken."""
    matrix, x, nodes = batch.matrices[0], batch.x, batch.nodes
    if isinstance(x, SparseMatrix):
        return layer.gather(matrix, take_rows(x, nodes))
    if matrix is None or not layer.conv.linear or _narrow_first(layer.conv, matrix):
        return layer.gather(matrix, torch.index_select(x, 0, torch.from_numpy(nodes)))
    there = SparseMatrix(Pattern(matrix.pattern.indptr, nodes[matrix.pattern.indices], x.shape[0]), matrix.values)
    own = torch.index_select(x, 0, torch.from_numpy(nodes[: matrix.shape[0]])) if layer.reads_own else None
    return tuple(formed(operand) for operand in layer.gather(there, x, own))


def _gather(layer: Layer, matrix: SparseMatrix | None, h: torch.Tensor) -> Gathered:
    """`layer.gather`, formed where a block's many sources make the multiplication of all of them the dearer way."""
    plain = layer.conv.linear and layer.skip is None
    if matrix is None or not plain or _narrow_first(layer.conv, matrix):
        return layer.gather(matrix, h)
    return _OwnAndMean.apply(h, matrix) if layer.reads_own else (matrix @ h,)


def _narrow_first(conv: Conv, matrix: SparseMatrix) -> bool:
    """Whether `A (h W)` costs less than `(A h) W`, for A [R, K]."""
    width, out = conv.in_features, conv.out_features
    (num_rows, num_columns), entries = matrix.shape, matrix.num_entries
    dense = width * out / _DENSE_SPEED
    return entries * out + num_columns * dense < entries * width + num_rows * dense


class _OwnAndMean(torch.autograd.Function):
    """The first R rows of h [K, d] and `matrix` [R, K] times h, with one gradient of h for both."""

    @staticmethod
    def forward(ctx, h, matrix):  # type: ignore[no-untyped-def]
        ctx.matrix = matrix
        return h[: matrix.shape[0]].clone(), torch.from_numpy(matrix.multiply(h.detach().contiguous().numpy()))

    @staticmethod
    def backward(ctx, own, mean):  # type: ignore[no-untyped-def]
        grad = torch.from_numpy(ctx.matrix.transposed.multiply(mean.contiguous().numpy()))
        grad[: len(own)] += own
        return grad, None


def _without_loops(
    indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The same CSR without loops; the same arrays where it has none."""
    kept = _no_loop(indptr, indices)
    if kept.all():
        return indptr, indices, weight
    before = np.concatenate([[0], np.cumsum(kept)])
    return before[indptr], indices[kept], None if weight is None else weight[kept]


def _rows_of(indptr: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The row of each edge, given by its position."""
    return np.searchsorted(indptr, edges, side="right") - 1


@njit(parallel=True, cache=True)
def _no_loop(indptr, indices):  # type: ignore[no-untyped-def]
    kept = np.empty(len(indices), dtype=np.bool_)
    for v in prange(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            kept[e] = indices[e] != v
    return kept


@njit(parallel=True, cache=True)
def _mean(indptr, edges, weight, values):  # type: ignore[no-untyped-def]
    """Fill `values` [e]: each edge's share of its row."""
    for i in prange(len(indptr) - 1):
        start, end = indptr[i], indptr[i + 1]
        if weight is None:
            for e in range(start, end):
                values[e] = 1.0 / (end - start)
        else:
            total = 0.0
            for e in range(start, end):
                total += weight[edges[e]]
            if total == 0:
                total = 1.0
            for e in range(start, end):
                values[e] = weight[edges[e]] / total
    return values


@njit(parallel=True, cache=True)
def _looped(indptr, indices):  # type: ignore[no-untyped-def]
    """The same rows with a loop in front of each."""
    num_rows = len(indptr) - 1
    out_indptr = np.empty(num_rows + 1, dtype=np.int64)
    out_indices = np.empty(len(indices) + num_rows, dtype=np.int32)
    out_indptr[0] = 0
    for i in prange(num_rows):
        out_indptr[i + 1] = indptr[i + 1] + i + 1
        out_indices[indptr[i] + i] = i
        for e in range(indptr[i], indptr[i + 1]):
            out_indices[e + i + 1] = indices[e]
    return out_indptr, out_indices


@njit(parallel=True, cache=True)
def _gcn(indptr, indices, edges, available, weight, degree, values):  # type: ignore[no-untyped-def]
    """Indptr [R + 1] and indices [e + R] with a loop in front of each row; fill `values` [e + R]."""
    num_rows = len(indptr) - 1
    scale = np.empty(len(degree), dtype=np.float64)
    for k in prange(len(degree)):
        scale[k] = 1.0 / np.sqrt(degree[k] + 1.0)
    out_indptr = np.empty(num_rows + 1, dtype=np.int64)
    out_indices = np.empty(len(values), dtype=np.int32)
    out_indptr[0] = 0
    for i in prange(num_rows):
        start, end = indptr[i], indptr[i + 1]
        out_indptr[i + 1] = end + i + 1
        out_indices[start + i] = i
        values[start + i] = scale[i] ** 2
        each = available[i] / max(1, end - start)
        for e in range(start, end):
            value = scale[i] * scale[indices[e]] * each
            if weight is not None:
                value *= weight[edges[e]]
            at = e + i + 1
            out_indices[at] = indices[e]
            values[at] = value
    return out_indptr, out_indices
