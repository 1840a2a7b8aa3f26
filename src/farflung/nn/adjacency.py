"""The matrices that convolutions aggregate with.

Legend for shapes: R destinations, K >= R sources (the first R are the destinations), e edges, n inner, h halo nodes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.degrees import degree_without_loops
from farflung.kernels import Pattern, SparseMatrix
from farflung.partition import Shard, local_edge_weight, local_edges

Aggregation: TypeAlias = Literal["mean", "gcn", "none"]


def adjacency(
    aggregation: Aggregation,
    indptr: np.ndarray,
    indices: np.ndarray,
    degree: np.ndarray,
    weight: np.ndarray | None,
    dtype: np.dtype | type,
    present: np.ndarray | None = None,
) -> SparseMatrix | None:
    """The aggregation matrix [R, K] of a graph in CSR by destination.

    `mean`: each row averages over its in-edges (by weight where they carry one; a row without in-edges is zero).
    `gcn`: loops are replaced by one of weight 1 per node, entries are w / sqrt(d_i d_j) with d = `degree` + 1
    (Kipf and Welling, arXiv 1609.02907). `none`: no matrix.
    `degree` float64 [K]: in-degree without loops, over the whole graph where results must not depend on the cut.
    `present` bool [K] or None: sources that are not present are left out (a mean is over the rest).

    Raises `InputError` where negative weights leave `gcn` a degree that has no root.
    """
    if aggregation == "none":
        return None
    num_rows, num_columns = len(indptr) - 1, len(degree)
    rows = np.repeat(np.arange(num_rows, dtype=indices.dtype), np.diff(indptr))
    values = np.ones(len(indices)) if weight is None else weight.astype(np.float64)
    kept = np.ones(len(indices), dtype=bool) if present is None else present[indices]
    if aggregation == "gcn":
        kept &= indices != rows
    if not kept.all():
        rows, indices, values = rows[kept], indices[kept], values[kept]
    if aggregation == "mean":
        total = np.bincount(rows, weights=values, minlength=num_rows)
        values = values / np.where(total == 0, 1, total)[rows]
    else:
        if degree.min(initial=0) <= -1:
            row = int(np.argmin(degree))
            raise InputError(
                f"edge_weight: the in-edges of node {row} weigh {degree[row]:g} together, and GCN needs more than -1: "
                "give weights >= 0, or choose the encoder sage"
            )
        scale = 1 / np.sqrt(degree + 1)
        values = values * scale[rows] * scale[indices]
        # The loop of row i goes in front of the row's edges, so that sums run in one order in every shard.
        starts = np.searchsorted(rows, np.arange(num_rows, dtype=rows.dtype))
        indices = np.insert(indices, starts, np.arange(num_rows, dtype=indices.dtype))
        values = np.insert(values, starts, scale[:num_rows] ** 2)
        rows = np.insert(rows, starts, np.arange(num_rows, dtype=rows.dtype))
    ends = np.cumsum(np.bincount(rows, minlength=num_rows))
    pattern = Pattern(np.concatenate([[0], ends]), indices, num_columns)
    return SparseMatrix(pattern, values.astype(dtype))


def graph_adjacency(aggregation: Aggregation, graph: Graph, dtype: np.dtype | type) -> SparseMatrix | None:
    """Aggregation over the whole graph, [N, N]."""
    degree = degree_without_loops(graph.indptr, graph.indices, graph.edge_weight)
    return adjacency(aggregation, graph.indptr, graph.indices, degree, graph.edge_weight, dtype)


def local_adjacency(aggregation: Aggregation, shard: Shard, dtype: np.dtype | type) -> SparseMatrix | None:
    """Aggregation within a part, [n, n]: edges to other parts do not exist, degrees are the part's own."""
    (indptr, indices), weight = local_edges(shard), local_edge_weight(shard)
    degree = degree_without_loops(indptr, indices, weight)
    return adjacency(aggregation, indptr, indices, degree, weight, dtype)


def halo_adjacency(
    aggregation: Aggregation, shard: Shard, dtype: np.dtype | type, present: np.ndarray | None = None
) -> SparseMatrix | None:
    """Aggregation over inner and halo nodes, [n, n + h], with the degrees of the whole graph.

    `present` bool [n + h] or None: see `adjacency`.
    """
    return adjacency(aggregation, shard.indptr, shard.indices, shard.degree, shard.edge_weight, dtype, present)
