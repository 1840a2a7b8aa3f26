"""Who scores the weights of lazy training: its trainers, on the rows that they hold, or the evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from farflung.methods.base import Setting
from farflung.methods.config import Steps
from farflung.nn import flat
from farflung.nn.model import LinkModel, first_layers
from farflung.tasks.metrics import finish, merge
from farflung.team import Reply
from farflung.trainer import metric_state


class Scoring(Protocol):
    """Scores the weights that a round led to while trainers work on the next one."""

    asks: bool
    """Whether trainers are to count their validation nodes."""

    def due(self, steps: int) -> bool:
        """Whether weights are scored that are `steps` >= 1 steps from the start of their layer."""

    def score(self, layer: int, replies: Sequence[Reply]) -> Mapping[str, float | None] | None:
        """Validation metrics of the weights of `layer` in the model, which `replies` are of; None: there are none."""


def scoring_of(setting: Setting) -> Scoring:
    """The evaluator where trainers have nothing to validate on, or links are ranked among nodes of all parts."""
    return ByEvaluator(setting) if setting.unseen or isinstance(setting.model, LinkModel) else ByTrainers(setting)


class ByTrainers:
    """Trainers count their validation nodes as they load the weights: a message less, and no weights sent for it."""

    asks = True

    def __init__(self, setting: Setting) -> None:
        self._keeper = setting.keeper
        self._scorers: frozenset[int] = frozenset()
        """Trainers on whose validation nodes the last score was made."""

    def due(self, steps: int) -> bool:
        return True

    def score(self, layer: int, replies: Sequence[Reply]) -> Mapping[str, float | None] | None:
        """Scores over the nodes of different trainers do not compare: where others answer, the best is sought anew."""
        states = {reply.trainer: state for reply in replies if (state := metric_state(reply.arrays))}
        finite = {k: s for k, s in states.items() if all(np.isfinite(counts).all() for counts in s.values())}
        val = finish(merge(finite.values())) if finite else None
        scorers = frozenset(k for k, state in finite.items() if state["nodes"].any())
        if scorers != self._scorers:
            self._keeper.forget_best()
            self._scorers = scorers
        return val


class ByEvaluator:
    """The evaluator gets the layers so far, every `interval` steps: 4 (P_0 + ... + P_l) bytes of kind `evaluation`."""

    asks = False

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        options = setting.train
        each_round = options.lazy == "weights" or not isinstance(options.interval, Steps)
        self._every = 1 if each_round else options.interval.n  # type: ignore[union-attr]

    def due(self, steps: int) -> bool:
        return steps % self._every == 0

    def score(self, layer: int, replies: Sequence[Reply]) -> Mapping[str, float | None] | None:
        weights = flat.pack(first_layers(self._setting.model, layer + 1))
        return self._setting.team.evaluate(weights, layer + 1)
