"""A shard as an isolated trainer sees it: edges that come from other parts do not exist (arXiv
2305.09887)."""

from __future__ import annotations

import numpy as np

from farflung.partition.shard import Shard


def local_edges(shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """CSR by destination over the inner nodes alone, edges in the order of the shard.

    Returns:
        indptr int64 [n + 1] and indices, all < n. The weights (types, attributes) of these edges are
        `shard.edge_weight[local_edge_rows(shard)]`.
    """
    inside = shard.indices < shard.num_inner
    before = np.zeros(len(inside) + 1, dtype=np.int64)
    np.cumsum(inside, out=before[1:])
    return before[shard.indptr], shard.indices[inside]


def local_edge_rows(shard: Shard) -> np.ndarray:
    """Positions in `shard.indices` of the edges that `local_edges` keeps, ascending. int64."""
    return np.flatnonzero(shard.indices < shard.num_inner)


def local_edge_weight(shard: Shard) -> np.ndarray | None:
    """Weights of the edges that `local_edges` keeps, float32; None where edges carry none."""
    return None if shard.edge_weight is None else shard.edge_weight[local_edge_rows(shard)]
