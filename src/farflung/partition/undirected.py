"""A graph as METIS and edge counts need it: each pair once in both directions, no loops, no duplicates."""

from __future__ import annotations

import numpy as np

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.partition import loops


def undirected_csr(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The symmetric, loop-free, coalesced copy of a graph: (indptr int64 [N + 1], indices [2 * pairs]).

    Raises:
        InputError: an edge comes from outside 0..N-1 (the loops below would read beyond the arrays).
    """
    n = graph.num_nodes
    indptr, indices = graph.indptr, graph.indices
    if len(indices) and (indices.min() < 0 or indices.max() >= n):
        edge = int(np.flatnonzero((indices < 0) | (indices >= n))[0])
        raise InputError(
            f"graph '{graph.name}': edge {edge} comes from node {indices[edge]}, expected 0..{n - 1}: correct the edges"
        )
    out_ptr, targets = loops.transpose(indptr, indices)
    pairs_ptr = np.zeros(n + 1, dtype=np.int64)
    loops.count_merged(indptr, indices, out_ptr, targets, pairs_ptr)
    np.cumsum(pairs_ptr, out=pairs_ptr)
    merged = np.empty(pairs_ptr[-1], dtype=indices.dtype)
    loops.fill_merged(indptr, indices, out_ptr, targets, pairs_ptr, merged)
    return pairs_ptr, merged
