"""Link prediction on a part: batches of its edges against negatives, embeddings from sampled neighbourhoods.

Legend for shapes: n inner nodes, p remote nodes that were fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from farflung.graph import FeatureBlock
from farflung.graph.features import stacked
from farflung.kernels import formed
from farflung.nn.blocks import embed
from farflung.nn.decoders import LinkModel
from farflung.nn.features import features_as_factor
from farflung.nn.model import Model
from farflung.partition import Shard, local_edge_rows, local_edges
from farflung.seeding import derive
from farflung.tasks.link_batches import LinkBatches, Positives
from farflung.tasks.node_objective import local_neighbourhoods
from farflung.tasks.objective import Step

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


class LinkObjective:
    """Every step sees a batch of the part's edges, each with its negatives, and a sample of the neighbourhoods of all.

    Negatives keep the source and take another destination, uniform over the part's nodes (arXiv 2305.09887) or, once
    `take_remote` was called, over all nodes of the graph.
    """

    def __init__(self, model: Model, shard: Shard, spec: TrainerSpec) -> None:
        assert isinstance(model, LinkModel) and shard.x is not None
        self._model = model
        self._links = spec.links
        self._seed, self._part = spec.seed, shard.part
        self._dtype = spec.torch_dtype
        self._num_inner, self._num_nodes = shard.num_inner, shard.info.num_nodes
        self._x, self._num_remote = shard.x, 0
        edge_type = None if shard.edge_type is None else shard.edge_type[local_edge_rows(shard)]
        self._batches = LinkBatches(Positives.of(*local_edges(shard), edge_type, spec), spec, shard.part)
        self.examples, self.per_epoch = self._batches.examples, self._batches.per_epoch
        room = spec.links.pool if spec.links.negatives == "global" else 0
        self._neighbourhoods = local_neighbourhoods(model, shard, spec, room)

    def take_remote(self, rows: FeatureBlock) -> None:
        """From now on negatives are uniform over the graph: other parts stand by `rows` [p, F], a sample of theirs."""
        self._neighbourhoods.x = formed(features_as_factor(stacked([self._x, rows]), self._dtype))
        self._num_remote = rows.shape[0]

    def loss(self, step: Step) -> torch.Tensor:
        targets = self._batches.draw(step.made, self._draw)
        if self._links.mask_targets:
            self._neighbourhoods.hide(*targets.pairs)
        batch = self._neighbourhoods.batch(targets.nodes, derive(self._seed, "sample", self._part, step.made))
        h = embed(self._model.encoder, batch, derive(self._seed, "dropout", step.round, self._part, step.number))
        return targets.loss(self._model.decoder, h)

    def _draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Destinations of negatives: inner nodes, and n .. n + p - 1 for the remote ones; int64 [count]."""
        inner = rng.integers(self._num_inner, size=count)
        if self._num_remote == 0:
            return inner
        remote = self._num_inner + rng.integers(self._num_remote, size=count)
        return np.where(rng.random(count) * self._num_nodes < self._num_inner, inner, remote)
