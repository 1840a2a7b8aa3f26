"""A part's training loss, step by step: what a trainer that learns alone descends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Step:
    """Which step it is: everything that is drawn in it depends on this, the seed and the part alone."""

    round: int
    number: int
    """Within the round, from 0."""
    made: int
    """Steps that this trainer made before it, since the start."""


class Objective(Protocol):
    """The training loss of a part, where edges to other parts do not exist."""

    examples: int
    """Training nodes, or training pairs; 0: there is nothing to learn from."""
    per_epoch: int
    """Steps in which each example comes up once."""

    def loss(self, step: Step) -> torch.Tensor:
        """The mean loss of the step's examples at the model's weights, differentiable. Needs `examples` >= 1."""
