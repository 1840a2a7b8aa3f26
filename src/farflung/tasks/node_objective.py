"""Node classification on a part: all of it in each step, or batches of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from farflung.kernels import formed
from farflung.nn import local_adjacency
from farflung.nn.blocks import Neighbourhoods, embed
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.nn.model import Model, encoder_of
from farflung.partition import Shard, local_edge_rows, local_edge_weight, local_edges
from farflung.seeding import derive
from farflung.tasks.batches import Batches
from farflung.tasks.node_classification import NodeClassification
from farflung.tasks.objective import Step

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


class FullBatch:
    """Every step sees the whole part; what does not change from step to step is computed once."""

    def __init__(self, model: Model, shard: Shard, spec: TrainerSpec) -> None:
        self._encoder = encoder_of(model)
        self._seed, self._part = spec.seed, shard.part
        self._task = NodeClassification(spec.num_classes, spec.multilabel)
        rows = mask_rows(shard, "train")
        self._rows = torch.from_numpy(rows)
        self._targets = mask_targets(self._task, shard, rows, spec.torch_dtype)
        self.examples, self.per_epoch = len(rows), min(1, len(rows))
        assert shard.x is not None
        self._matrix = local_adjacency(self._encoder.aggregation, shard, numpy_dtype(spec.torch_dtype))
        self._gathered = self._encoder.prepare(self._matrix, features_as_factor(shard.x, spec.torch_dtype))

    def loss(self, step: Step) -> torch.Tensor:
        key = derive(self._seed, "dropout", step.round, self._part, step.number)
        logits = self._encoder(self._matrix, self._gathered, key)[self._rows]
        return self._task.loss(logits, self._targets)


class SampledNodes:
    """Every step sees a batch of training nodes and a sample of their neighbourhoods."""

    def __init__(self, model: Model, shard: Shard, spec: TrainerSpec) -> None:
        self._encoder = encoder_of(model)
        self._seed, self._part = spec.seed, shard.part
        self._task = NodeClassification(spec.num_classes, spec.multilabel)
        self._rows = mask_rows(shard, "train")
        self._targets = mask_targets(self._task, shard, self._rows, spec.torch_dtype)
        self._batches = Batches(len(self._rows), spec.sample.batch, spec.seed, shard.part)
        self.examples, self.per_epoch = len(self._rows), self._batches.per_epoch
        self._neighbourhoods = local_neighbourhoods(model, shard, spec)

    def loss(self, step: Step) -> torch.Tensor:
        chosen = self._batches[step.made]
        batch = self._neighbourhoods.batch(self._rows[chosen], derive(self._seed, "sample", self._part, step.made))
        key = derive(self._seed, "dropout", step.round, self._part, step.number)
        logits = embed(self._encoder, batch, key)
        return self._task.loss(logits, self._targets[torch.from_numpy(chosen)])


def mask_rows(shard: Shard, mask: str) -> np.ndarray:
    """Inner nodes of a mask (`train`, `val`, `test`), int64; none where there is no split."""
    return np.empty(0, np.int64) if shard.split is None else np.flatnonzero(getattr(shard.split, mask))


def mask_targets(task: NodeClassification, shard: Shard, rows: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Labels of `rows` as the loss wants them."""
    assert shard.y is not None
    return task.targets(shard.y, rows, dtype)


def local_neighbourhoods(model: Model, shard: Shard, spec: TrainerSpec, room: int = 0) -> Neighbourhoods:
    """Neighbourhoods within a part, with room for so many further nodes, which have no edges."""
    (indptr, indices), weight = local_edges(shard), local_edge_weight(shard)
    assert shard.x is not None
    encoder = encoder_of(model)
    return Neighbourhoods(
        encoder.aggregation,
        np.concatenate([indptr, np.full(room, indptr[-1])]) if room else indptr,
        indices,
        weight,
        formed(features_as_factor(shard.x, spec.torch_dtype)),
        len(encoder.layers),
        spec.torch_dtype,
        spec.sample.fanouts,
        spec.sample.replace,
        None if shard.edge_attr is None else shard.edge_attr[local_edge_rows(shard)],
    )
