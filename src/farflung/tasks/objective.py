"""A part's training loss, step by step: what a trainer that learns alone descends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from farflung.nn.model import Model
    from farflung.partition import Shard
    from farflung.trainer import TrainerSpec


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


def build_objective(model: Model, shard: Shard, spec: TrainerSpec) -> Objective:
    """The objective of `spec` for a part.

    The first of its kind in a process makes a throw-away step, so that no clock counts the compiling of kernels.
    """
    from farflung.tasks.link_objective import LinkObjective
    from farflung.tasks.node_objective import FullBatch, SampledNodes

    kind: Callable[..., Objective] = LinkObjective
    if spec.task == "node-classification":
        kind = FullBatch if spec.sample.fanouts is None and spec.sample.batch is None else SampledNodes
    objective = kind(model, shard, spec)
    variant = (spec.task, spec.model, spec.sample, spec.dtype, shard.edge_weight is None, type(shard.x))
    if objective.examples and variant not in _WARM:
        objective.loss(Step(round=0, number=0, made=0)).backward()
        model.zero_grad()
        _WARM.add(variant)
    return objective


_WARM: set[tuple[object, ...]] = set()
"""What has run in this process: its kernels are compiled."""
