"""How a server makes one weight vector of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.team import Reply


def weighted_mean(vectors: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """The mean of [P] vectors by `shares` (not all zero): summed in order in float64, rounded once."""
    total = sum(shares)
    mean = np.zeros(len(vectors[0]), dtype=np.float64)
    for vector, share in zip(vectors, shares, strict=True):
        if share:
            mean += vector.astype(np.float64) * share
    return (mean / total).astype(vectors[0].dtype)


def summed(vectors: Sequence[np.ndarray], scale: float = 1.0) -> np.ndarray:
    """`scale` times the sum of [P] vectors: in order in float64, rounded once."""
    total = np.zeros(len(vectors[0]), dtype=np.float64)
    for vector in vectors:
        total += vector
    return (total * scale).astype(vectors[0].dtype)


def refuse_non_finite(replies: Sequence[Reply], name: str) -> tuple[list[Reply], dict[int, str]]:
    """Replies with a finite loss and an array `name` finite throughout; the others by trainer with the reason."""
    kept, refused = [], {}
    for reply in replies:
        if not reply.scalars.get("finite", True):
            refused[reply.trainer] = "refused: its loss is not finite"
        elif not np.isfinite(reply.arrays[name]).all():
            refused[reply.trainer] = f"refused: its {name} are not finite"
        else:
            kept.append(reply)
    return kept, refused
