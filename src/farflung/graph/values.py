"""Columns as users have them (lists, strings, tensors) turned into the arrays that `Graph` holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph.graph import FeatureBlock


def as_ids(values: Any, name: str) -> np.ndarray:
    """Ids as int64 or fixed-width strings; anything else is an `InputError` that names the first bad row."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"`{name}`: expected a column of ids, found shape {list(array.shape)}")
    if not len(array):
        return array.astype(np.int64 if array.dtype.kind != "U" else array.dtype)
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max() > np.iinfo(np.int64).max:
        row = int(np.flatnonzero(array > np.iinfo(np.int64).max)[0])
        raise InputError(f"`{name}`: id {array[row]} at row {row} is beyond 2^63 - 1; use string ids")
    if array.dtype.kind not in "iu":
        raise InputError(f"`{name}`: expected integer or string ids, found {array.dtype}; convert the column")
    return array.astype(np.int64, copy=False)


def sorted_unique(values: np.ndarray) -> np.ndarray:
    """The distinct values, ascending: as `np.unique`, by sorting alone (5 times faster on 10M integers)."""
    ordered = np.sort(values)
    keep = np.ones(len(ordered), dtype=np.bool_)
    keep[1:] = ordered[1:] != ordered[:-1]
    return ordered[keep]


def locate(values: np.ndarray, ids: np.ndarray, name: str) -> np.ndarray:
    """The row in `ids` of each value, int64; a value that is not there is an `InputError` naming its row."""
    if not len(values):
        return np.empty(0, np.int64)
    if values.dtype.kind != ids.dtype.kind or not len(ids):
        raise InputError(f"edge column `{name}`: {values[0]!s} at row 0 is not in `nodes`")
    sorter = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids, values, sorter=sorter)
    rows = sorter[np.minimum(at, len(ids) - 1)]
    unknown = np.flatnonzero(ids[rows] != values)
    if len(unknown):
        raise InputError(
            f"edge column `{name}`: {values[unknown[0]]!s} at row {unknown[0]} is not in `nodes`; "
            "add the node or drop the edge"
        )
    return rows.astype(np.int64, copy=False)


def as_labels(values: Any) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as `Graph.y` holds them, and the sorted class names where they were strings (else None).

    None and the empty string mean no label. Raises `InputError` on fractions and on multi-labels not 0 or 1.
    """
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim == 1:
        array = _from_objects(np.array(["" if v is None else v for v in array], dtype=object), "y")
    if array.dtype.kind == "U" and array.ndim == 1:
        names = np.unique(array[array != ""])
        y = np.searchsorted(names, array).astype(np.int64)
        y[array == ""] = -1
        return y, tuple(str(name) for name in names)
    if array.dtype.kind not in "iufb" or array.ndim not in (1, 2):
        raise InputError(f"`y`: expected classes [N] or 0 and 1 [N, C], found {array.dtype} {list(array.shape)}")
    target = np.int64 if array.ndim == 1 else np.uint8
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero((array != np.trunc(array)).reshape(len(array), -1).any(axis=1))
        if len(wrong):
            raise InputError(f"`y`: expected whole numbers, found {array[wrong[0]]} at row {wrong[0]}; use -1")
    if array.ndim == 2:
        wrong = np.flatnonzero(((array != 0) & (array != 1)).any(axis=1))
        if len(wrong):
            raise InputError(f"multi-label `y`: expected 0 and 1, found {array[wrong[0]]} at row {wrong[0]}")
    return array.astype(target, copy=False), None


def as_features(block: Any) -> FeatureBlock | None:
    """A feature block as `Graph` holds it: float arrays and CSR stay, integers and bools become float32.

    So does sparse float16, with which SciPy cannot compute.
    """
    if block is None:
        return None
    if sp.issparse(block):
        matrix = sp.csr_matrix(block)
        return matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float32)
    array = np.asarray(block)
    if array.dtype.kind in "iub":
        return array.astype(np.float32)
    if array.dtype.kind != "f":
        raise InputError(f"`x`: expected numbers [N, F], found {array.dtype} {list(array.shape)}")
    return array


def as_small(values: Any, name: str, dtype: Any) -> np.ndarray:
    """Integers as a small dtype; a value that does not fit is an `InputError`."""
    array = np.asarray(values)
    info = np.iinfo(dtype)
    if array.dtype.kind not in "iu":
        raise InputError(f"`{name}`: expected integers, found {array.dtype}")
    wrong = np.flatnonzero((array < 0) | (array > info.max))
    if len(wrong):
        raise InputError(f"`{name}`: expected 0 to {info.max}, found {array[wrong[0]]} at row {wrong[0]}")
    return array.astype(dtype, copy=False)


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Python objects as strings or integers, if all are of one kind."""
    first = str if isinstance(array[0], str) else int
    for row, value in enumerate(array):
        if isinstance(value, bool) or not isinstance(value, str if first is str else (int, np.integer)):
            raise InputError(
                f"`{name}`: expected all strings or all integers, found {value!r} ({type(value).__name__}) at row {row}"
            )
    if first is str:
        return array.astype(np.str_)
    try:
        return array.astype(np.int64)
    except OverflowError:
        row = next(i for i, v in enumerate(array) if abs(v) >= 2**63)
        raise InputError(f"`{name}`: id {array[row]} at row {row} is beyond 2^63 - 1; use string ids") from None
