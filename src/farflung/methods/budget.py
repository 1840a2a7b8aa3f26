"""Rounds within a budget: how long each may take, when it is spent, and the loss that it reports."""

from __future__ import annotations

import math
from collections.abc import Iterable

from farflung.errors import InputError
from farflung.methods.config import Seconds, Steps, TrainConfig


def next_interval(options: TrainConfig, steps: int, now: float) -> Steps | Seconds | None:
    """The budget of the round after `steps` steps and at `now` seconds, cut where the steps or the time end.

    None: training is over. Raises InputError for an interval in time without a time limit.
    """
    left = math.inf if options.time_limit is None else options.time_limit - now
    if left <= 0:
        return None
    if isinstance(options.interval, Steps):
        n = min(options.interval.n, options.steps - steps)
        return Steps(n=n) if n > 0 else None
    if options.time_limit is None:
        raise InputError(f"an interval in time ({options.interval}) needs a time limit: add --time-limit, e.g. 60s")
    return Seconds(s=min(options.interval.s, left))


def rounds_of(options: TrainConfig) -> int | None:
    """Rounds that the steps make; None: the time decides."""
    return -(-options.steps // options.interval.n) if isinstance(options.interval, Steps) else None


def seconds_of(interval: Steps | Seconds) -> float | None:
    """How long a round will take; None: unknown."""
    return interval.s if isinstance(interval, Seconds) else None


def spent(interval: Steps | Seconds, steps: int, seconds: float) -> bool:
    """Whether a trainer that made `steps` steps in `seconds` is through with its interval."""
    return steps >= interval.n if isinstance(interval, Steps) else seconds >= interval.s


def mean_loss(losses: Iterable[tuple[float | None, int]]) -> float | None:
    """Mean of (loss, number of training examples) by these numbers; None if nobody had any."""
    counted = [(loss, n) for loss, n in losses if loss is not None and n > 0]
    return sum(loss * n for loss, n in counted) / sum(n for _, n in counted) if counted else None
