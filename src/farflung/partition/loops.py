"""The hot loops of partitioning, each O(nodes + edges) and single-threaded: any machine gives the same.

Legend for shapes: N nodes, E directed edges, n inner nodes of a part, h its halo nodes, e in-edges of them.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def collect_halo(
    indptr: np.ndarray,
    indices: np.ndarray,
    inner: np.ndarray,
    assignment: np.ndarray,
    part: int,
    place: np.ndarray,
    stamp: np.ndarray,
    out: np.ndarray,
) -> int:
    """Write `place[u]` of each remote in-neighbour u of `inner` to `out`, once; return how many there are.

    `stamp` int32 [N] holds no value equal to `part` beforehand; `out` has room for N.
    """
    count = 0
    for v in inner:
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if assignment[u] != part and stamp[u] != part:
                stamp[u] = part
                out[count] = place[u]
                count += 1
    return count


@njit(cache=True, nogil=True)
def gather_renamed(
    indptr: np.ndarray, indices: np.ndarray, inner: np.ndarray, local: np.ndarray, out: np.ndarray
) -> None:
    """Write the in-neighbours of `inner`, renamed by `local` [N], to `out` [e] in the order of the graph."""
    k = 0
    for v in inner:
        for e in range(indptr[v], indptr[v + 1]):
            out[k] = local[indices[e]]
            k += 1


@njit(cache=True, nogil=True)
def fill_positions(starts: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
    """Write starts[i], starts[i] + 1, ... (counts[i] of them) for every i, one after the other."""
    k = 0
    for i in range(len(starts)):
        for j in range(counts[i]):
            out[k] = starts[i] + j
            k += 1


@njit(cache=True, nogil=True)
def transpose(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The CSR of the reversed edges, each row ascending: (indptr int64 [N + 1], indices [E])."""
    n = len(indptr) - 1
    out_ptr = np.zeros(n + 1, dtype=np.int64)
    for e in range(len(indices)):
        out_ptr[indices[e] + 1] += 1
    for v in range(n):
        out_ptr[v + 1] += out_ptr[v]
    free = out_ptr[:-1].copy()
    targets = np.empty_like(indices)
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            targets[free[u]] = v
            free[u] += 1
    return out_ptr, targets


@njit(cache=True, nogil=True)
def _merge_row(
    v: int, a: np.ndarray, a_start: int, a_end: int, b: np.ndarray, b_start: int, b_end: int, out: np.ndarray
) -> int:
    """Merge two ascending rows without `v` itself and without repeats; write them if `out` has room."""
    count, last = 0, -1
    i, j = a_start, b_start
    while i < a_end or j < b_end:
        if j >= b_end or (i < a_end and a[i] <= b[j]):
            u = a[i]
            i += 1
        else:
            u = b[j]
            j += 1
        if u != last and u != v:
            if len(out):
                out[count] = u
            count += 1
            last = u
    return count


@njit(cache=True, nogil=True)
def count_merged(
    indptr: np.ndarray, indices: np.ndarray, out_ptr: np.ndarray, targets: np.ndarray, counts: np.ndarray
) -> None:
    """Write the number of distinct neighbours (either direction, no loop) of node v to counts[v + 1]."""
    nothing = np.empty(0, dtype=indices.dtype)
    for v in range(len(indptr) - 1):
        counts[v + 1] = _merge_row(v, indices, indptr[v], indptr[v + 1], targets, out_ptr[v], out_ptr[v + 1], nothing)


@njit(cache=True, nogil=True)
def fill_merged(
    indptr: np.ndarray,
    indices: np.ndarray,
    out_ptr: np.ndarray,
    targets: np.ndarray,
    pairs_ptr: np.ndarray,
    merged: np.ndarray,
) -> None:
    """Write the distinct neighbours of each node, ascending, at the places `pairs_ptr` gives."""
    for v in range(len(indptr) - 1):
        if pairs_ptr[v] < pairs_ptr[v + 1]:
            _merge_row(
                v,
                indices,
                indptr[v],
                indptr[v + 1],
                targets,
                out_ptr[v],
                out_ptr[v + 1],
                merged[pairs_ptr[v] : pairs_ptr[v + 1]],
            )


@njit(cache=True, nogil=True)
def count_kept(indptr: np.ndarray, indices: np.ndarray, group: np.ndarray) -> int:
    """Edges whose two ends are in the same group."""
    kept = 0
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            kept += group[v] == group[indices[e]]
    return kept
