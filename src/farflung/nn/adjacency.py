"""The matrices that convolutions aggregate with.

Legend for shapes: R destinations, K >= R sources (the first R are the destinations), e edges, n inner, h halo nodes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numba import njit

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.degrees import degree_without_loops
from farflung.kernels import Pattern, SparseMatrix
from farflung.partition import Shard, local_edge_rows, local_edge_weight, local_edges

Aggregation: TypeAlias = Literal["mean", "gcn", "attention", "edges", "none"]


def adjacency(
    aggregation: Aggregation,
    indptr: np.ndarray,
    indices: np.ndarray,
    degree: np.ndarray,
    weight: np.ndarray | None,
    dtype: np.dtype | type,
    present: np.ndarray | None = None,
    attr: np.ndarray | None = None,
) -> SparseMatrix | None:
    """The aggregation matrix [R, K] of a graph in CSR by destination.

    `mean`: each row averages over its in-edges (by weight where they carry one; a row without in-edges is zero).
    `gcn`: loops are replaced by one of weight 1 per node, entries are w / sqrt(d_i d_j) with d = `degree` + 1
    (Kipf and Welling, arXiv 1609.02907). `attention`: the entries of `gcn`, the loop first in each row, all of them 1.
    `edges`: the edges as they are, entries are w, with `attr` beside them. `none`: no matrix.
    `degree` float64 [K]: in-degree without loops, over the whole graph where results must not depend on the cut.
    `present` bool [K] or None: sources that are not present are left out (a mean is over the rest).
    `attr` [e, A] or None: of the edges; for `edges` alone.

    Raises `InputError` where negative weights leave `gcn` a degree that has no root.
    """
    if aggregation == "none":
        return None
    looped = aggregation in ("gcn", "attention")
    there = np.empty(0, dtype=bool) if present is None else present
    weights = np.empty(0, dtype=np.float32) if weight is None else weight
    starts = _row_starts(indptr, indices, there, looped) if looped or present is not None else indptr
    columns = indices
    if looped or starts[-1] < len(indices):
        columns = np.empty(starts[-1], dtype=indices.dtype)
        _fill_columns(indptr, indices, there, looped, columns)
    pattern = Pattern(starts, columns, len(degree))
    if aggregation == "edges":
        kept = slice(None) if present is None else present[indices]
        values = np.ones(len(columns), dtype) if weight is None else weight[kept].astype(dtype)
        return SparseMatrix(pattern, values, None if attr is None else attr[kept].astype(dtype))
    values = np.ones(len(columns), dtype=dtype)
    if aggregation == "gcn":
        _fill_gcn(indptr, indices, weights, there, _gcn_scale(degree), values)
    elif aggregation == "mean":
        _fill_mean(indptr, indices, weights, there, values)
    return SparseMatrix(pattern, values)


def _gcn_scale(degree: np.ndarray) -> np.ndarray:
    """1 / sqrt(d + 1), float64 [K]."""
    check_degree(degree)
    return 1 / np.sqrt(degree + 1)


def check_degree(degree: np.ndarray, nodes: np.ndarray | None = None) -> None:
    """Raises InputError where a degree + 1 has no root. `nodes`: whose degrees they are, if not of all in order."""
    if degree.min(initial=0) > -1:
        return
    place = int(np.argmin(degree))
    node = place if nodes is None else int(nodes[place])
    raise InputError(
        f"edge_weight: the in-edges of node {node} weigh {degree[place]:g} together, and GCN needs more than -1: "
        "give weights >= 0, or choose the encoder sage"
    )


# Below, an empty `weight` says that every edge counts 1, and an empty `present` that every source is there. An added
# loop goes in front of its row's edges, so that sums run in one order in every shard.


@njit(cache=True, nogil=True)
def _row_starts(indptr, indices, present, looped):  # type: ignore[no-untyped-def]
    """Where the entries of each row start, int64 [R + 1]."""
    starts = np.zeros(len(indptr), dtype=np.int64)
    for i in range(len(indptr) - 1):
        count = 1 if looped else 0
        for e in range(indptr[i], indptr[i + 1]):
            if _kept(indices[e], i, present, looped):
                count += 1
        starts[i + 1] = starts[i] + count
    return starts


@njit(cache=True, nogil=True)
def _fill_columns(indptr, indices, present, looped, columns):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(len(indptr) - 1):
        if looped:
            columns[at] = i
            at += 1
        for e in range(indptr[i], indptr[i + 1]):
            if _kept(indices[e], i, present, looped):
                columns[at] = indices[e]
                at += 1


@njit(cache=True, nogil=True)
def _fill_mean(indptr, indices, weight, present, values):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(len(indptr) - 1):
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            if _kept(indices[e], i, present, False):
                total += _weight(weight, e)
        divisor = 1.0 if total == 0 else total
        for e in range(indptr[i], indptr[i + 1]):
            if _kept(indices[e], i, present, False):
                values[at] = _weight(weight, e) / divisor
                at += 1


@njit(cache=True, nogil=True)
def _fill_gcn(indptr, indices, weight, present, scale, values):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(len(indptr) - 1):
        values[at] = scale[i] * scale[i]
        at += 1
        for e in range(indptr[i], indptr[i + 1]):
            if _kept(indices[e], i, present, True):
                values[at] = _weight(weight, e) * scale[i] * scale[indices[e]]
                at += 1


@njit(inline="always")
def _kept(source, row, present, looped):  # type: ignore[no-untyped-def]
    return (len(present) == 0 or present[source]) and not (looped and source == row)


@njit(inline="always")
def _weight(weight, edge):  # type: ignore[no-untyped-def]
    return 1.0 if len(weight) == 0 else np.float64(weight[edge])


def graph_adjacency(aggregation: Aggregation, graph: Graph, dtype: np.dtype | type) -> SparseMatrix | None:
    """Aggregation over the whole graph, [N, N]."""
    degree = degree_without_loops(graph.indptr, graph.indices, graph.edge_weight)
    return adjacency(aggregation, graph.indptr, graph.indices, degree, graph.edge_weight, dtype, attr=graph.edge_attr)


def local_adjacency(aggregation: Aggregation, shard: Shard, dtype: np.dtype | type) -> SparseMatrix | None:
    """Aggregation within a part, [n, n]: edges to other parts do not exist, degrees are the part's own."""
    (indptr, indices), weight = local_edges(shard), local_edge_weight(shard)
    degree = degree_without_loops(indptr, indices, weight)
    attr = None if shard.edge_attr is None else shard.edge_attr[local_edge_rows(shard)]
    return adjacency(aggregation, indptr, indices, degree, weight, dtype, attr=attr)


def halo_adjacency(
    aggregation: Aggregation, shard: Shard, dtype: np.dtype | type, present: np.ndarray | None = None
) -> SparseMatrix | None:
    """Aggregation over inner and halo nodes, [n, n + h], with the degrees of the whole graph.

    `present` bool [n + h] or None: see `adjacency`.
    """
    return adjacency(
        aggregation, shard.indptr, shard.indices, shard.degree, shard.edge_weight, dtype, present, shard.edge_attr
    )
