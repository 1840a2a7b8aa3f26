"""Failure as an input: who dies, stalls, slows down, sends NaN or raises, and in which round."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from farflung.errors import InputError

What = Literal["kill", "delay", "slow", "nan", "raise"]
WHATS: tuple[str, ...] = get_args(What)
"""The faults there are: see `Fault`."""

_LASTING = ("kill", "slow")
_NUMBER = r"inf|\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_FAULT = re.compile(rf"([a-z]+):(\d+)@(\d+)(?:-(\d+))?(?:=({_NUMBER})(s|x)?)?")
_HOW = "write 'kill:TRAINER@ROUND[-UNTIL]', 'delay:0@3=2.5s', 'slow:0@3=2x', 'nan:2@7' or 'raise:2@7'"


@dataclass(frozen=True)
class Fault:
    """One trainer's fault.

    `kill` and `slow` last from `round` on, the others for `round` alone; with `until`, any of them lasts for
    the rounds `round` .. `until` - 1.

    - kill: the trainer is gone; in round `until` a fresh one takes its place, its state lost. A kill in
      round 0 is a trainer that never starts.
    - delay: its replies take `seconds` longer.
    - slow: its work takes `factor` times as long.
    - nan: the arrays it replies with are poisoned with NaN.
    - raise: it raises an exception.

    Raises InputError for a fault that cannot be.
    """

    trainer: int
    round: int
    what: What
    seconds: float = 0.0
    """Of a delay; > 0, infinite for a trainer that hangs. 0 for any other fault."""
    until: int | None = None
    """The first round without the fault; None: for good (kill, slow) or one round (delay, nan, raise)."""
    factor: float = 1.0
    """Of a slow trainer; > 0, finite, not 1. 1 for any other fault."""

    def __post_init__(self) -> None:
        where = f"fault '{self}'"
        if self.what not in WHATS:
            raise InputError(f"{where} is none that exists: use one of {', '.join(WHATS)}")
        if self.trainer < 0 or self.round < 0:
            raise InputError(f"{where} has a negative trainer or round: both count from 0")
        if self.until is not None and self.until <= self.round:
            raise InputError(f"{where} ends before it begins: give an end after round {self.round}")
        if (self.what == "delay") != (self.seconds != 0) or not self.seconds >= 0:
            raise InputError(f"{where}: a delay, and only a delay, has seconds > 0, as in 'delay:0@3=2.5s'")
        if (self.what == "slow") != (self.factor != 1) or not 0 < self.factor < math.inf:
            raise InputError(f"{where}: slow, and only slow, has a factor > 0 but not 1, as in 'slow:0@3=2x'")

    def acts(self, trainer: int, round: int) -> bool:
        """Whether it strikes `trainer` in `round`."""
        if trainer != self.trainer or round < self.round:
            return False
        if self.until is None:
            return self.what in _LASTING or round == self.round
        return round < self.until

    def __str__(self) -> str:
        text = f"{self.what}:{self.trainer}@{self.round}"
        if self.until is not None:
            text += f"-{self.until}"
        if self.seconds != 0:
            text += f"={_number(self.seconds)}s"
        if self.factor != 1:
            text += f"={_number(self.factor)}x"
        return text


@dataclass(frozen=True)
class FaultPlan:
    """All faults of a run; several may act at once. Queries are by trainer 0..M-1 and round 0, 1, ..."""

    faults: tuple[Fault, ...] = ()

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        object.__setattr__(self, "faults", tuple(faults))

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read `kill:1@5, delay:0@3=2.5s, nan:2@7, kill:1@5-9`; an empty text is a plan without faults.

        `str` of a plan reads back as an equal plan. Raises InputError.
        """
        return cls(_parse_fault(part.strip()) for part in text.split(",")) if text.strip() else cls()

    def __str__(self) -> str:
        return ", ".join(map(str, self.faults))

    def check(self, num_trainers: int) -> None:
        """Raise InputError if a fault is meant for a trainer that a team of `num_trainers` does not have."""
        for fault in self.faults:
            if fault.trainer >= num_trainers:
                raise InputError(f"fault '{fault}' names no trainer of the team: use 0..{num_trainers - 1}")

    def dead(self, trainer: int, round: int) -> bool:
        """Whether the trainer is gone in this round."""
        return any(True for _ in self._acting("kill", trainer, round))

    def delay(self, trainer: int, round: int) -> float:
        """Seconds by which its replies of this round come later (the sum of its delays); 0: none."""
        return sum((fault.seconds for fault in self._acting("delay", trainer, round)), 0.0)

    def slowdown(self, trainer: int, round: int) -> float:
        """How many times as long its work takes in this round (the product of its factors); 1: as ever."""
        return math.prod((fault.factor for fault in self._acting("slow", trainer, round)), start=1.0)

    def poisons(self, trainer: int, round: int) -> bool:
        """Whether the arrays of its replies are to be poisoned with NaN."""
        return any(True for _ in self._acting("nan", trainer, round))

    def raises(self, trainer: int, round: int) -> bool:
        """Whether it is to raise an exception in this round."""
        return any(True for _ in self._acting("raise", trainer, round))

    def _acting(self, what: What, trainer: int, round: int) -> Iterable[Fault]:
        return (fault for fault in self.faults if fault.what == what and fault.acts(trainer, round))


def _number(value: float) -> str:
    """The shortest text that reads back as `value`."""
    return repr(float(value)).removesuffix(".0")


def _parse_fault(text: str) -> Fault:
    found = _FAULT.fullmatch(text)
    if not found:
        raise InputError(f"'{text}' is no fault: {_HOW}")
    what, trainer, start, until, value, unit = found.groups()
    suffix = {"delay": "s", "slow": "x"}.get(what)
    if value is not None and (suffix is None or unit not in (None, suffix)):
        raise InputError(f"'{text}' is no fault: only delay has seconds (s) and only slow has a factor (x)")
    return Fault(
        trainer=int(trainer),
        round=int(start),
        what=cast(What, what),
        seconds=float(value) if value is not None and what == "delay" else 0.0,
        until=None if until is None else int(until),
        factor=float(value) if value is not None and what == "slow" else 1.0,
    )
