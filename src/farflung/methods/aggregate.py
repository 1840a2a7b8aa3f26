"""How a server makes one weight vector of several.

P: weights; M: trainers that count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from farflung.methods.config import TrainConfig
from farflung.team import Reply

Aggregator = Callable[[np.ndarray, Sequence[np.ndarray], Sequence[int]], np.ndarray]
"""`aggregate(current, vectors, examples)` -> [P], in the vectors' dtype.

`current` [P]: the weights before the interval; `vectors`, each [P], finite: those of the trainers that answered, in
their order; `examples`: how many training examples each has. Trainers without examples do not count; if none counts,
`current` stays.
"""

_Combine = Callable[[Sequence[np.ndarray], Sequence[int]], np.ndarray]
"""Makes one vector [P], in float64 if its rounding matters, of M >= 1 vectors whose trainers have examples."""


def aggregator(options: TrainConfig) -> Aggregator:
    """The aggregation that `options` name. One that steps (`nesterov`) remembers: take a new one for other weights."""
    combine: dict[str, _Combine] = {
        "mean": lambda vectors, _: _mean(vectors, [1] * len(vectors)),
        "examples": _mean,
        "median": lambda vectors, _: np.median(vectors, axis=0),
        "trimmed-mean": lambda vectors, _: _trimmed_mean(vectors, options.trim),
        "nesterov": lambda vectors, _: _mean(vectors, [1] * len(vectors)),
    }
    outer = _Nesterov(options.outer_lr, options.outer_momentum) if options.aggregation == "nesterov" else None

    def aggregate(current: np.ndarray, vectors: Sequence[np.ndarray], examples: Sequence[int]) -> np.ndarray:
        counted = [k for k, n in enumerate(examples) if n > 0]
        if not counted:
            return current
        made = combine[options.aggregation]([vectors[k] for k in counted], [examples[k] for k in counted])
        return (made if outer is None else outer(current, made)).astype(vectors[0].dtype)

    return aggregate


def _trimmed_mean(vectors: Sequence[np.ndarray], trim: float) -> np.ndarray:
    """Coordinate-wise mean without the floor(trim M) least and greatest values, one each at least if M >= 3 (Yin et
    al., arXiv 1803.01498)."""
    count = len(vectors)
    cut = max(1, int(trim * count + 1e-9))  # 0.29 * 100 is a little less than 29
    cut = min(cut, (count - 1) // 2)
    kept = np.sort(vectors, axis=0)[cut : count - cut]
    return _mean(list(kept), [1] * len(kept))


class _Nesterov:
    """A server's step with Nesterov momentum towards the trainers' mean (DiLoCo, arXiv 2311.08105)."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self.velocity: np.ndarray | None = None
        """float64 [P]; None before the first step."""

    def __call__(self, current: np.ndarray, mean: np.ndarray) -> np.ndarray:
        delta = current.astype(np.float64) - mean
        self.velocity = delta if self.velocity is None else self.momentum * self.velocity + delta
        return current - self.lr * (delta + self.momentum * self.velocity)


def mean_moments(arrays: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Uniform means of the optimisers' moments, the arrays named `weights/...`, in float64 and rounded once.

    Trainers that sent none, or not in finite numbers, do not count; empty if none counts.
    """
    sent = [{name: a for name, a in one.items() if name.startswith("weights/")} for one in arrays]
    counted = [one for one in sent if one and all(np.isfinite(a).all() for a in one.values())]
    if not counted:
        return {}
    return {name: weighted_mean([one[name] for one in counted], [1.0] * len(counted)) for name in counted[0]}


def weighted_mean(vectors: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """The mean of [P] vectors by `shares` (not all zero): summed in order in float64, rounded once.

    It lies between the least and the greatest of each coordinate, so equal vectors give the same again to the bit.
    """
    return _mean(vectors, shares).astype(vectors[0].dtype)


def _mean(vectors: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """`weighted_mean` before it is rounded, float64 [P]."""
    counted = [(vector, share) for vector, share in zip(vectors, shares, strict=True) if share]
    mean = np.zeros(len(vectors[0]), dtype=np.float64)
    least = greatest = counted[0][0]
    for vector, share in counted:
        mean += vector.astype(np.float64) * share
        least, greatest = np.minimum(least, vector), np.maximum(greatest, vector)
    return np.clip(mean / sum(shares), least, greatest)


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
