"""Rows of features or embeddings as arrays of a message, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from farflung.graph import FeatureBlock


def to_arrays(name: str, rows: FeatureBlock) -> dict[str, np.ndarray]:
    """Rows under `name` (`kind/peer`): one dense array, or the three of a CSR matrix."""
    if isinstance(rows, np.ndarray):
        return {name: np.ascontiguousarray(rows)}
    return {f"{name}/data": rows.data, f"{name}/indices": rows.indices, f"{name}/indptr": rows.indptr}


def from_arrays(arrays: Mapping[str, np.ndarray], peer: int, width: int) -> FeatureBlock:
    """The rows that `peer` sent, [b, width]."""
    mine = {name.partition("/")[2]: array for name, array in arrays.items()}
    if str(peer) in mine:
        return mine[str(peer)]
    data, indices, indptr = (mine[f"{peer}/{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, width))


def senders(arrays: Mapping[str, np.ndarray]) -> list[int]:
    """Who sent something among `arrays`, ascending."""
    return sorted({int(name.split("/")[1]) for name in arrays})


def sound(rows: FeatureBlock, width: int) -> bool:
    """Whether rows that a peer sent can be worked with: of that width, finite, columns in range."""
    if rows.ndim != 2 or rows.shape[1] != width:
        return False
    if isinstance(rows, np.ndarray):
        return bool(np.isfinite(rows).all())
    inside = len(rows.indices) == 0 or 0 <= rows.indices.min() <= rows.indices.max() < width
    return bool(np.isfinite(rows.data).all()) and bool(inside)
