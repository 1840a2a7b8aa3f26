"""Rows of features or embeddings as arrays of a message, and back.

Legend for shapes: b rows, d their width, z entries of a sparse block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp

from farflung.graph import FeatureBlock

Wire: TypeAlias = Literal["float32", "float16", "int8"]
"""How numbers travel: `float32` as they are (with 64-bit runs 8 bytes each), `float16`, or `int8`: a row as whole
numbers 0..255 between its least and its largest number, which are said by one float32 scale and one float32 offset."""

_LARGEST = float(np.finfo(np.float16).max)
_MOST = float(np.finfo(np.float32).max)
_LEVELS = 255


def to_arrays(name: str, rows: FeatureBlock, wire: Wire = "float32") -> dict[str, np.ndarray]:
    """Rows under `name` (`kind/peer`), b d numbers where they are dense, else z with their columns and row starts.

    `float16`: 2 bytes a number; what is beyond its range becomes its largest number, never infinite.
    `int8`: 1 byte a number and 8 bytes a row; sparse rows are sent dense where that is less.
    """
    if not isinstance(rows, np.ndarray) and wire == "int8" and _dense_is_less(rows):
        rows = rows.toarray()
    if isinstance(rows, np.ndarray):
        if wire == "int8":
            counts = np.full(rows.shape[0], rows.shape[1])
            codes, scales = _to_levels(rows.reshape(-1), counts)
            return {f"{name}/levels": codes.reshape(rows.shape), f"{name}/scales": scales}
        return {name: np.ascontiguousarray(_narrowed(rows, wire))}
    pattern = {f"{name}/indices": rows.indices, f"{name}/indptr": rows.indptr}
    if wire == "int8":
        levels, scales = _to_levels(rows.data, np.diff(rows.indptr))
        return {f"{name}/levels": levels, f"{name}/scales": scales, **pattern}
    return {f"{name}/data": _narrowed(rows.data, wire), **pattern}


def from_arrays(arrays: Mapping[str, np.ndarray], peer: int, width: int) -> FeatureBlock:
    """The rows that `peer` sent, [b, width], in the type that they came in; those of `int8` as float32."""
    mine = {name.partition("/")[2]: array for name, array in arrays.items()}
    if str(peer) in mine:
        return mine[str(peer)]
    named = {name.removeprefix(f"{peer}/"): array for name, array in mine.items() if name.startswith(f"{peer}/")}
    if "levels" in named and "indptr" not in named:
        levels = named["levels"]
        counts = np.full(levels.shape[0], levels.shape[1])
        return _from_levels(levels.reshape(-1), named["scales"], counts).reshape(levels.shape)
    indices, indptr = named["indices"], named["indptr"]
    data = _from_levels(named["levels"], named["scales"], np.diff(indptr)) if "levels" in named else named["data"]
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


def _narrowed(values: np.ndarray, wire: Wire) -> np.ndarray:
    if wire == "float32" or values.dtype == np.float16:
        return values
    finite = np.clip(values, -_LARGEST, _LARGEST)
    return np.where(np.isinf(values), values, finite).astype(np.float16)


def _dense_is_less(rows: sp.csr_matrix) -> bool:
    """Whether 1 byte for each place is less than 1 and a column for each entry, and the row starts."""
    return rows.shape[0] * rows.shape[1] < rows.nnz + rows.indices.nbytes + rows.indptr.nbytes


def _to_levels(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Levels uint8 [z] and scales float32 [b, 2] (scale, offset) of values [z], of which row i has `counts[i]`.

    A value is offset + scale * level, off by half a scale at most. A row that holds a number that is none, or an
    infinite one, has a scale or offset that is none either, so that the receiver sees it.
    """
    scales = np.zeros((len(counts), 2), dtype=np.float32)
    filled = counts > 0
    starts = (np.cumsum(counts) - counts)[filled]
    if len(starts):
        least, most = (f.reduceat(values, starts).astype(np.float64) for f in (np.minimum, np.maximum))
        with np.errstate(invalid="ignore", over="ignore"):
            scales[filled, 0] = (most - least) / _LEVELS
            scales[filled, 1] = least
    scale, offset = (np.repeat(column.astype(np.float64), counts) for column in scales.T)
    with np.errstate(invalid="ignore", divide="ignore"):
        levels = np.rint((values - offset) / np.where(scale > 0, scale, 1))
    return np.nan_to_num(np.clip(levels, 0, _LEVELS), nan=0).astype(np.uint8), scales


def _from_levels(levels: np.ndarray, scales: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Values float32 [z], see `_to_levels`."""
    scale, offset = (np.repeat(column.astype(np.float64), counts) for column in scales.T)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.clip(offset + scale * levels, -_MOST, _MOST).astype(np.float32)
