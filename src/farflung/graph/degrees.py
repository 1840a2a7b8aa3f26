"""The in-degree that normalisation, shards and diagnoses count with."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def degree_without_loops(indptr: np.ndarray, indices: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
    """In-edges of each row that are no loops, or the sum of their weights, in the order of the edges. float64 [N].

    Args:
        indptr: [N + 1] of a CSR by destination; it must rise from 0 to E, for nothing is checked here.
        indices: [E], the source of each edge; row v's loops are the edges from v.
        weight: [E], or None: every edge counts 1.
    """
    out = np.zeros(len(indptr) - 1, dtype=np.float64)
    for v in range(len(out)):
        for e in range(indptr[v], indptr[v + 1]):
            if indices[e] != v:
                if weight is None:
                    out[v] += 1.0
                else:
                    out[v] += weight[e]
    return out
