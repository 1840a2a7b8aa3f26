"""Clocks that time a trainer's work: the machine's own, and one with fixed costs for tests."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Protocol

from farflung.errors import InputError


class Clock(Protocol):
    """What a trainer times itself by."""

    def now(self) -> float:
        """Seconds since some fixed moment; only differences mean anything."""

    def worked(self, unit: str, amount: float = 1) -> None:
        """Say that `amount` units of work of kind `unit` (`step`, `aggregation`, ...) are done."""


class WallClock:
    """The machine's own time."""

    def now(self) -> float:
        """Seconds of `time.perf_counter`."""
        return time.perf_counter()

    def worked(self, unit: str, amount: float = 1) -> None:
        """Nothing: time passes by itself."""


class FixedCostClock:
    """Time that passes only by work, at a fixed cost per unit: budgets in seconds become repeatable.

    `now` depends on how much was done, not on the order in which it was done, so that equal work gives
    equal times to the bit.
    """

    def __init__(self, costs: Mapping[str, float], default: float = 0.0) -> None:
        """Take `costs`, seconds per unit of each kind of work, and `default` for kinds that are not listed.

        Raises InputError for a cost that is negative or not finite.
        """
        for unit, cost in {**costs, "default": default}.items():
            if not (math.isfinite(cost) and cost >= 0):
                raise InputError(f"a unit of '{unit}' cannot cost {cost} seconds: give a finite cost >= 0")
        self._costs = dict(costs)
        self._default = default
        self._done: dict[str, float] = {}

    def now(self) -> float:
        """Seconds: the sum over all kinds of work of amount times cost."""
        return math.fsum(n * self._costs.get(unit, self._default) for unit, n in self._done.items())

    def worked(self, unit: str, amount: float = 1) -> None:
        """Let the time of `amount` units pass. Raises InputError for a negative or non-finite amount."""
        if not (math.isfinite(amount) and amount >= 0):
            raise InputError(f"{amount} units of '{unit}' cannot have been worked: give a finite amount >= 0")
        self._done[unit] = self._done.get(unit, 0) + amount
