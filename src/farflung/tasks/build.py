"""Which objective a trainer descends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from farflung.nn.model import Model
from farflung.partition import Shard
from farflung.tasks.link_objective import LinkObjective
from farflung.tasks.node_objective import FullBatch, SampledNodes
from farflung.tasks.objective import Objective, Step

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


def build_objective(model: Model, shard: Shard, spec: TrainerSpec) -> Objective:
    """The objective of `spec` for a part.

    The first of its kind in a process makes a throw-away step, so that no clock counts the compiling of kernels.
    """
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
