"""Exact inference over a whole graph, layer by layer, in working memory bounded by a chunk of rows.

Legend for shapes: N nodes, R rows of a chunk, F width of a layer's input, O of its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
import scipy.sparse as sp
import torch

from farflung.errors import InputError
from farflung.graph import FeatureBlock, Graph
from farflung.kernels import Pattern, SparseMatrix
from farflung.nn.adjacency import Aggregation, graph_adjacency
from farflung.nn.convs import Factor, Gathered
from farflung.nn.encoder import Encoder, Layer
from farflung.nn.features import features_as_factor, numpy_dtype

EDGES_PER_ROW = 64
"""A chunk has at most this many edges for each row that it may hold, unless it is a single row."""

Input: TypeAlias = "FeatureBlock | torch.Tensor"
"""What a layer reads, [N, F]: features as they lie in the graph, or the layer before's embeddings."""


class Inference:
    """Embeds every node of a graph exactly, all of them by one layer before the next.

    A graph of more than one chunk needs, beside its own arrays and its matrix: a layer's input and output; the
    product [N, O] with the weights where a layer multiplies before it aggregates (it does where O < F, and for
    attention, with a width for each head); and what one chunk gathers. Features are then converted chunk by chunk, or
    as a whole where the layer aggregates first.
    """

    def __init__(self, aggregation: Aggregation, graph: Graph, dtype: torch.dtype, chunk: int = 65536) -> None:
        """`aggregation` and `dtype`: those of the encoders to come; `chunk`: rows at a time (>= 1).

        Raises InputError where `graph` has no features.
        """
        if graph.x is None:
            raise InputError(f"graph '{graph.name}' has no features: pass --features degree or gaussian:64")
        self.matrix = graph_adjacency(aggregation, graph, numpy_dtype(dtype))
        self.chunks = row_chunks(graph.indptr, chunk, EDGES_PER_ROW * chunk)
        self._x = graph.x
        self._dtype = dtype
        self._at_once = graph.num_nodes <= chunk
        self._prepared: tuple[object, Gathered] | None = None

    @torch.no_grad()
    def embed(
        self, encoder: Encoder, layers: int | None = None, below: tuple[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The last layer's output for every node, [N, O], in the order of the graph, without dropout and autograd.

        `layers`: how many of them, from the first (>= 1); None: all. All of them together equal `encoder.infer` on
        the whole matrix: to the bit where N <= `chunk`, otherwise but for rounding.
        `below`: a number of layers and what they give, so that they need not run again.
        """
        if self._at_once and layers is None and below is None:
            return encoder.infer(self.matrix, self._gathered(encoder))
        start, h = (0, cast("Input", self._x)) if below is None else below
        for layer in encoder.layers[start:layers]:
            h = embed_layer(layer, self.matrix, h, self.chunks, self._dtype)
        return cast("torch.Tensor", h)

    def _gathered(self, encoder: Encoder) -> Gathered:
        """What `encoder.prepare` gathers; it depends on no weight, so the next encoder of this kind uses it again."""
        kind = (type(encoder.layers[0].conv), encoder.layers[0].skip is None, encoder.dropout == 0)
        if self._prepared is None or self._prepared[0] != kind:
            self._prepared = kind, encoder.prepare(self.matrix, features_as_factor(self._x, self._dtype))
        return self._prepared[1]


@torch.no_grad()
def embed_layer(
    layer: Layer, matrix: SparseMatrix | None, h: Input, chunks: Sequence[slice], dtype: torch.dtype
) -> torch.Tensor:
    """What a layer passes on for the N rows that `chunks` cover, [N, O], from its input `h` [K, F].

    `matrix` [N, K] (see `row_chunks` for `chunks`), or None where no layer of the encoder gathers. The first N rows of
    `h` are the destinations' own.
    """
    factor: Factor
    if matrix is None or layer.conv.multiplies_first:
        factor = cast("torch.Tensor", _MultipliedFirst(h, dtype, _source_chunks(h.shape[0], chunks)))
    else:
        factor = _as_dense(h, dtype)
    out = torch.empty(chunks[-1].stop if chunks else 0, layer.out_features, dtype=dtype)
    for rows in chunks:
        part = None if matrix is None else _matrix_rows(matrix, rows)
        own = _input_rows(h, rows, dtype) if layer.reads_own else None
        out[rows] = layer.hidden(layer.gather(part, factor, own))
    return out


def _source_chunks(count: int, chunks: Sequence[slice]) -> Sequence[slice]:
    """`chunks`, and behind them as many more as cover `count` rows."""
    start = chunks[-1].stop if chunks else 0
    step = max([rows.stop - rows.start for rows in chunks], default=65536)
    return [*chunks, *(slice(i, min(i + step, count)) for i in range(start, count, step))]


class _MultipliedFirst:
    """A layer's input that stands for the factor of an operand and that all chunks multiply by the weights together.

    The product [N, O] is formed once, when first asked for, from one chunk of rows at a time.
    """

    def __init__(self, h: Input, dtype: torch.dtype, chunks: Sequence[slice]) -> None:
        self.shape = h.shape
        self._h, self._dtype, self._chunks = h, dtype, chunks
        self._product: torch.Tensor | None = None

    def __matmul__(self, weight: torch.Tensor) -> torch.Tensor:
        if self._product is None:
            self._product = torch.empty(self.shape[0], weight.shape[1], dtype=self._dtype)
            for rows in self._chunks:
                self._product[rows] = _input_rows(self._h, rows, self._dtype) @ weight
        return self._product


def row_chunks(indptr: np.ndarray, max_rows: int, max_edges: int) -> list[slice]:
    """Consecutive row ranges that cover a CSR matrix, each of at most so many rows and entries, or of one row."""
    chunks, start, num_rows = [], 0, len(indptr) - 1
    while start < num_rows:
        within = int(np.searchsorted(indptr, indptr[start] + max_edges, side="right")) - 1
        stop = max(start + 1, min(start + max_rows, within, num_rows))
        chunks.append(slice(start, stop))
        start = stop
    return chunks


def _matrix_rows(matrix: SparseMatrix, rows: slice) -> SparseMatrix:
    """A row range as a matrix of its own, [R, K], that shares columns and values."""
    pattern = matrix.pattern
    indptr = pattern.indptr[rows.start : rows.stop + 1]
    entries = slice(int(indptr[0]), int(indptr[-1]))
    attr = None if matrix.attr is None else matrix.attr[entries]
    part = Pattern(indptr - indptr[0], pattern.indices[entries], matrix.shape[1])
    return SparseMatrix(part, matrix.values[entries], attr, rows.start)


def _input_rows(h: Input, rows: slice, dtype: torch.dtype) -> Factor:
    """A row range of a layer's input as a factor in `dtype`, [R, F]."""
    if isinstance(h, torch.Tensor):
        return h[rows]
    if isinstance(h, np.ndarray):
        return features_as_factor(h[rows], dtype)
    indptr = h.indptr[rows.start : rows.stop + 1]
    entries = slice(int(indptr[0]), int(indptr[-1]))
    pattern = Pattern(indptr - indptr[0], h.indices[entries], h.shape[1])
    return SparseMatrix(pattern, h.data[entries].astype(numpy_dtype(dtype)))


def _as_dense(h: Input, dtype: torch.dtype) -> torch.Tensor:
    """A layer's input as a dense tensor [N, F]; shares memory where it is one in `dtype` already."""
    if isinstance(h, torch.Tensor):
        return h
    if sp.issparse(h):
        h = SparseMatrix.from_scipy(h, numpy_dtype(dtype)).to_scipy().toarray()
    return torch.from_numpy(np.require(h, numpy_dtype(dtype), ["C", "W"]))
