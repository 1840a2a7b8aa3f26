"""What a trainer that sees the whole graph learns from: seeds by their global ids, batch by batch, and their loss.

Legend for shapes: n inner nodes, N nodes of the graph, K nodes that take part in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from farflung.nn.decoders import LinkModel
from farflung.nn.model import Model
from farflung.partition import Shard
from farflung.tasks.batches import Batches
from farflung.tasks.link_batches import LinkBatches, LinkTargets, Positives
from farflung.tasks.node_classification import NodeClassification
from farflung.tasks.node_objective import mask_rows, mask_targets

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


class Targets(Protocol):
    """What is predicted in one step."""

    @property
    def nodes(self) -> np.ndarray:
        """Global ids of the nodes to embed, int64 [K], unique."""

    @property
    def count(self) -> int:
        """Examples: training nodes, or positives."""

    @property
    def hidden(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Edges, source -> destination, global ids, that message passing must not see; None: it sees all."""

    def loss(self, model: Model, h: torch.Tensor) -> torch.Tensor:
        """Mean loss; `h` [K, d]: what the encoder makes of `nodes`."""


class Seeds(Protocol):
    """The training examples of a part."""

    examples: int
    """Training nodes, or positives."""
    per_epoch: int
    """Steps in which each comes up once."""

    def draw(self, made: int) -> Targets:
        """The targets of step number `made` since the start. Needs `examples` >= 1."""


@dataclass(frozen=True, eq=False)
class _Nodes:
    nodes: np.ndarray
    labels: torch.Tensor
    task: NodeClassification
    hidden: None = None

    @property
    def count(self) -> int:
        return len(self.nodes)

    def loss(self, model: Model, h: torch.Tensor) -> torch.Tensor:
        return self.task.loss(h, self.labels)


class NodeSeeds:
    """A part's own training nodes."""

    def __init__(self, shard: Shard, spec: TrainerSpec) -> None:
        self._task = NodeClassification(spec.num_classes, spec.multilabel)
        rows = mask_rows(shard, "train")
        self._labels = mask_targets(self._task, shard, rows, spec.torch_dtype)
        self._nodes = shard.inner[rows]
        self._batches = Batches(len(rows), spec.sample.batch, spec.seed, shard.part)
        self.examples, self.per_epoch = len(rows), self._batches.per_epoch

    def draw(self, made: int) -> Targets:
        chosen = self._batches[made]
        return _Nodes(self._nodes[chosen], self._labels[torch.from_numpy(chosen)], self._task)


@dataclass(frozen=True, eq=False)
class _Links:
    links: LinkTargets
    masked: bool

    @property
    def nodes(self) -> np.ndarray:
        return self.links.nodes

    @property
    def count(self) -> int:
        return self.links.count

    @property
    def hidden(self) -> tuple[np.ndarray, np.ndarray] | None:
        return self.links.pairs if self.masked else None

    def loss(self, model: Model, h: torch.Tensor) -> torch.Tensor:
        assert isinstance(model, LinkModel)
        return self.links.loss(model.decoder, h)


class LinkSeeds:
    """The edges that end in a part, wherever they come from; of an undirected pair its higher node counts as its end.

    Negatives are uniform over all nodes of the graph.
    """

    def __init__(self, shard: Shard, spec: TrainerSpec) -> None:
        sources = np.concatenate([shard.inner, shard.halo])[shard.indices]
        positives = Positives.of(shard.indptr, sources, shard.edge_type, spec, shard.inner)
        self._num_nodes, self._masked = shard.info.num_nodes, spec.links.mask_targets
        self._batches = LinkBatches(positives, spec, shard.part)
        self.examples, self.per_epoch = self._batches.examples, self._batches.per_epoch

    def draw(self, made: int) -> Targets:
        return _Links(self._batches.draw(made, self._negatives), self._masked)

    def _negatives(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(self._num_nodes, size=count)


def build_seeds(shard: Shard, spec: TrainerSpec) -> Seeds:
    """The examples of a part for the task of `spec`."""
    return NodeSeeds(shard, spec) if spec.task == "node-classification" else LinkSeeds(shard, spec)
