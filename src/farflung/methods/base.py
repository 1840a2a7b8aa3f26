"""What every training method is given and what it keeps as it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from farflung.errors import InputError
from farflung.methods.config import TrainConfig
from farflung.nn.optim import OptimConfig

if TYPE_CHECKING:
    from farflung.nn.model import Model
    from farflung.partition import Shard
    from farflung.team import Team

Weights = Mapping[str, torch.Tensor]
"""A model's parameters and buffers by name, detached."""


@dataclass(frozen=True)
class Round:
    """One round as history.jsonl keeps it."""

    round: int
    phase: str
    """`train` and, in the end, maybe `soup`; `layer0`, `layer1`, ... in lazy training."""
    loss: float | None
    """Mean of the losses of those present, by their training examples; None where nobody had one. A trainer's is that
    of its last step."""
    val: Mapping[str, float | None] | None
    """Validation metrics of this round's weights; None: not evaluated."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """Optimiser steps made in this round by each trainer that answered."""
    absent: Mapping[int, str] = field(default_factory=dict)
    """Trainers that did not count in this round, and why (late, dead, non-finite update)."""
    seconds: float = 0.0
    """The team's clock at the end of the round."""
    best: bool = False
    """Whether these weights are the best so far."""


class Journal(Protocol):
    """Where a method reports what happens; the run folder and the screen listen."""

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        """A round begins: number `round` of `rounds` (None: unknown); it will take `seconds` (None: unknown)."""

    def round(self, record: Round) -> None:
        """A round has ended."""


@dataclass
class Keeper:
    """Keeps the last and the best weights of a run, so that an interrupted one loses nothing."""

    metric: str
    """The validation metric to maximise."""
    last: dict[str, torch.Tensor] = field(default_factory=dict)
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    best_score: float | None = None
    best_round: int | None = None
    rounds: int = 0
    """Rounds made so far: `last` are the weights that the last of them led to."""

    def offer(self, round: int, weights: Weights, val: Mapping[str, float | None] | None, *, last: bool = True) -> bool:
        """Take the weights that round `round` led to; True if they are the best so far (the first of equals stays).

        `last` false: they are nothing that training goes on from, and do not count as the last ones.
        """
        taken = {name: value.detach().clone() for name, value in weights.items()}
        self.last, self.rounds = taken if last else self.last, round + 1  # together, whenever an interrupt comes
        score = val.get(self.metric) if val else None
        if score is not None and (self.best_score is None or score > self.best_score):
            self.best, self.best_score, self.best_round = taken, score, round
            return True
        return False

    def forget_best(self) -> None:
        """Seek the best anew: scores of another layer, or over other nodes, do not compare."""
        self.best, self.best_score, self.best_round = {}, None, None

    def chosen(self, keep: str) -> dict[str, torch.Tensor]:
        """The weights that count: `best` (the last where nothing was validated) or `last`."""
        return self.best if keep == "best" and self.best else self.last


class Patience:
    """Ends training after some rounds that brought no better validation score."""

    def __init__(self, rounds: int | None) -> None:
        """`rounds` >= 1; None: it never ends."""
        self._rounds, self._worse = rounds, 0

    def over(self, better: bool) -> bool:
        """Whether training ends after a round whose score was `better` than all before, or not."""
        self._worse = 0 if better else self._worse + 1
        return self._rounds is not None and self._worse >= self._rounds


@dataclass(frozen=True)
class Setting:
    """All that a method works with. It never sees the graph, nor which engine the team is."""

    team: Team
    model: Model
    """The server's copy, freshly initialised from the run's seed."""
    journal: Journal
    keeper: Keeper
    optim: OptimConfig
    train: TrainConfig
    deal: Callable[[int], Sequence[Shard]] | None = None
    """Draws the parts anew, the first time for 1, for methods that re-deal them; None: they stay as they are."""


def require_time(setting: Setting, spent_on: str) -> None:
    """Raise InputError if the time limit has passed already; `spent_on` says with what."""
    limit, now = setting.train.time_limit, setting.team.now()
    if limit is not None and now >= limit:
        raise InputError(
            f"the time limit of {limit:g} s had passed when {spent_on}, after {now:.3g} s: "
            "raise --time-limit or choose a faster --link"
        )
