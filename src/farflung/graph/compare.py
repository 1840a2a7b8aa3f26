"""Whether two graphs are the same, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import scipy.sparse as sp

from farflung.graph.graph import MASKS, Graph, Split


def differences(first: Graph, second: Graph) -> list[str]:
    """Names of the fields that differ in value, shape or dtype; empty if the graphs are equal."""
    return [f.name for f in fields(Graph) if not _same(getattr(first, f.name), getattr(second, f.name))]


def _same(a: Any, b: Any) -> bool:
    if sp.issparse(a) and sp.issparse(b):
        return a.shape == b.shape and all(_same(getattr(a, n), getattr(b, n)) for n in ("indptr", "indices", "data"))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Split) and isinstance(b, Split):
        return all(_same(getattr(a, part), getattr(b, part)) for part in MASKS)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)
