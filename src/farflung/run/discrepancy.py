"""How far trainers that learn alone are from learning together: gradients at common weights (arXiv 2305.09887).

Legend for shapes: P parameters, M parts that have training nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farflung.graph import Graph
from farflung.nn import ModelConfig, flat
from farflung.nn.optim import OptimConfig
from farflung.partition import Partition, Shard
from farflung.tasks.build import build_objective
from farflung.tasks.objective import Step
from farflung.trainer import TrainerSpec


@dataclass(frozen=True)
class Discrepancy:
    """Distances between gradients, in float64, without dropout."""

    norm: float
    """|| g ||, g the gradient of the whole graph's mean training loss."""
    bias: float
    """|| mean over trainers of g_i - g ||: what dropped edges and uneven parts do to the average."""
    spread: float
    """Mean over trainers of || g_i - mean g ||: how much the trainers disagree."""


def gradient_discrepancy(graph: Graph, parts: Partition, model: ModelConfig, seed: int) -> Discrepancy | None:
    """Measure at the initial weights that `seed` gives. None where nobody has a training node.

    g_i is the gradient of trainer i's mean training loss on its own part, where edges to other parts do not exist;
    trainers without training nodes do not count, as in training. `parts` is cut from `graph`, which has features,
    labels and a split.
    """
    spec = TrainerSpec(
        target="farflung.methods.tma_trainer:TMATrainer",
        model=model.model_copy(update={"dropout": 0.0}),
        optim=OptimConfig(),
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        multilabel=graph.multilabel,
        heads=False,
        seed=seed,
        dtype="float64",
    )
    found = [_gradient(shard, spec) for shard in parts.shards]
    alone = [gradient for gradient in found if gradient is not None]
    whole = Partition.of(graph, np.zeros(graph.num_nodes, dtype=np.int32), 1)
    together = _gradient(whole.shards[0], spec)
    if together is None:
        return None
    mean = np.mean(alone, axis=0)
    return Discrepancy(
        norm=float(np.linalg.norm(together)),
        bias=float(np.linalg.norm(mean - together)),
        spread=float(np.mean([np.linalg.norm(gradient - mean) for gradient in alone])),
    )


def _gradient(shard: Shard, spec: TrainerSpec) -> np.ndarray | None:
    """The gradient [P] of a shard's mean training loss; None where it has no training node."""
    model = spec.build_model()
    objective = build_objective(model, shard, spec)
    if not objective.examples:
        return None
    objective.loss(Step(round=0, number=0, made=0)).backward()
    return flat.pack_gradients(model)
