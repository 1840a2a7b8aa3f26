"""Link prediction on a part: batches of its edges against negatives, embeddings from sampled neighbourhoods.

Legend for shapes: n inner nodes, k positives of a batch, m negatives for each, p remote nodes that were fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from farflung.graph import FeatureBlock
from farflung.graph.features import stacked
from farflung.graph.links import training_pairs
from farflung.kernels import formed
from farflung.nn.blocks import embed
from farflung.nn.decoders import LinkModel
from farflung.nn.features import features_as_factor
from farflung.nn.model import Model
from farflung.partition import Shard, local_edge_rows, local_edges
from farflung.seeding import derive, generator
from farflung.tasks.batches import Batches
from farflung.tasks.link_prediction import LinkPrediction
from farflung.tasks.node_objective import local_neighbourhoods
from farflung.tasks.objective import Step

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


class LinkObjective:
    """Every step sees a batch of the part's edges, each with its negatives, and a sample of the neighbourhoods of all.

    Negatives keep the source and take another destination, uniform over the part's nodes (arXiv 2305.09887) or, once
    `take_remote` was called, over all nodes of the graph. As in the paper they are not checked against true edges.
    """

    def __init__(self, model: Model, shard: Shard, spec: TrainerSpec) -> None:
        assert isinstance(model, LinkModel) and shard.x is not None
        self._model = model
        self._links = spec.links
        self._seed, self._part = spec.seed, shard.part
        self._dtype = spec.torch_dtype
        self._task = LinkPrediction()
        self._num_inner, self._num_nodes = shard.num_inner, shard.info.num_nodes
        self._x, self._num_remote = shard.x, 0
        self._undirected = not spec.directed
        self._source, self._destination, self._relation = _positives(shard, spec)
        self._batches = Batches(len(self._source), spec.sample.batch, spec.seed, shard.part)
        self.examples, self.per_epoch = len(self._source), self._batches.per_epoch
        room = spec.links.pool if spec.links.negatives == "global" else 0
        self._neighbourhoods = local_neighbourhoods(model, shard, spec, room)

    def take_remote(self, rows: FeatureBlock) -> None:
        """From now on negatives are uniform over the graph: other parts stand by `rows` [p, F], a sample of theirs."""
        self._neighbourhoods.x = formed(features_as_factor(stacked([self._x, rows]), self._dtype))
        self._num_remote = rows.shape[0]

    def loss(self, step: Step) -> torch.Tensor:
        chosen = self._batches[step.made]
        source, destination = self._source[chosen], self._destination[chosen]
        rng = generator(self._seed, "negatives", self._part, step.made)
        if self._undirected:  # either end may be the one that is kept
            turned = rng.random(len(chosen)) < 0.5
            source, destination = np.where(turned, destination, source), np.where(turned, source, destination)
        each = self._links.per_positive
        negative = self._draw(len(chosen) * each, rng)
        if self._links.mask_targets:
            self._neighbourhoods.hide(np.append(source, destination), np.append(destination, source))
        nodes, place = np.unique(np.concatenate([source, destination, negative]), return_inverse=True)
        batch = self._neighbourhoods.batch(nodes, derive(self._seed, "sample", self._part, step.made))
        h = embed(self._model.encoder, batch, derive(self._seed, "dropout", step.round, self._part, step.number))
        at_source, at_destination, at_negative = torch.from_numpy(place).tensor_split([len(chosen), 2 * len(chosen)])
        relation = None if self._relation is None else torch.from_numpy(self._relation[chosen])
        decoder = self._model.decoder
        kept = h.index_select(0, at_source)
        positive = decoder(kept, h.index_select(0, at_destination), relation)
        others = None if relation is None else relation.repeat_interleave(each)
        negatives = decoder(kept.repeat_interleave(each, dim=0), h.index_select(0, at_negative), others)
        return self._task.loss(positive, negatives)

    def _draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Destinations of negatives: inner nodes, and n .. n + p - 1 for the remote ones; int64 [count]."""
        inner = rng.integers(self._num_inner, size=count)
        if self._num_remote == 0:
            return inner
        remote = self._num_inner + rng.integers(self._num_remote, size=count)
        return np.where(rng.random(count) * self._num_nodes < self._num_inner, inner, remote)


def _positives(shard: Shard, spec: TrainerSpec) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The edges that are learned: source, destination and, where the decoder tells them apart, relation; int64."""
    indptr, indices = local_edges(shard)
    if spec.links.decoder != "distmult":
        return *training_pairs(indptr, indices, spec.directed), None
    source, destination = indices.astype(np.int64), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    relation = np.zeros(len(source), np.int64)
    if shard.edge_type is not None:
        relation = shard.edge_type[local_edge_rows(shard)].astype(np.int64)
    proper = source != destination
    return source[proper], destination[proper], relation[proper]
