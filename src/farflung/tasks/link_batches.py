"""Batches of edges to be predicted: which ones, against which negatives, and their loss.

Legend for shapes: k positives of a batch, m negatives for each, K nodes that take part in a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from farflung.graph.links import training_pairs
from farflung.nn.decoders import Decoder
from farflung.seeding import generator
from farflung.tasks.batches import Batches
from farflung.tasks.link_prediction import LinkPrediction

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec


@dataclass(frozen=True, eq=False)
class Positives:
    """Edges that are learned. Ids are local or global, as whoever finds them likes."""

    source: np.ndarray
    """int64."""
    destination: np.ndarray
    """int64."""
    relation: np.ndarray | None
    """int64 edge types, where the decoder tells them apart."""

    @classmethod
    def of(
        cls,
        indptr: np.ndarray,
        indices: np.ndarray,
        edge_type: np.ndarray | None,
        spec: TrainerSpec,
        rows: np.ndarray | None = None,
    ) -> Positives:
        """The edges of a CSR by destination: without loops; once each, or with `distmult` every one with its type.

        `edge_type` [E]: None where there is one type. `rows`: see `training_pairs`.
        """
        if spec.links.decoder != "distmult":
            return cls(*training_pairs(indptr, indices, spec.directed, rows), None)
        names = np.arange(len(indptr) - 1) if rows is None else rows
        source, destination = indices.astype(np.int64), np.repeat(names, np.diff(indptr))
        relation = np.zeros(len(source), np.int64) if edge_type is None else edge_type.astype(np.int64)
        proper = source != destination
        return cls(source[proper], destination[proper], relation[proper])


@dataclass(frozen=True, eq=False)
class LinkTargets:
    """A batch of positives with their negatives, which keep the source and take another destination."""

    source: np.ndarray
    """int64 [k]."""
    destination: np.ndarray
    """int64 [k]."""
    negative: np.ndarray
    """int64 [k * m], those of one positive after the other."""
    relation: np.ndarray | None
    """int64 [k]."""

    @property
    def count(self) -> int:
        """Positives k."""
        return len(self.source)

    @cached_property
    def _nodes_and_places(self) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(np.concatenate([self.source, self.destination, self.negative]), return_inverse=True)

    @property
    def nodes(self) -> np.ndarray:
        """All nodes that take part, int64 [K], ascending."""
        return self._nodes_and_places[0]

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations of the positives and of their reverses, int64 [2 k] each."""
        return np.append(self.source, self.destination), np.append(self.destination, self.source)

    def loss(self, decoder: Decoder, h: torch.Tensor) -> torch.Tensor:
        """Mean loss over positives and negatives; `h` [K, d]: embeddings of `nodes`."""
        place = torch.from_numpy(self._nodes_and_places[1])
        at_source, at_destination, at_negative = place.tensor_split([self.count, 2 * self.count])
        each = len(self.negative) // max(1, self.count)
        relation = None if self.relation is None else torch.from_numpy(self.relation)
        kept = h.index_select(0, at_source)
        positive = decoder(kept, h.index_select(0, at_destination), relation)
        others = None if relation is None else relation.repeat_interleave(each)
        negatives = decoder(kept.repeat_interleave(each, dim=0), h.index_select(0, at_negative), others)
        return LinkPrediction().loss(positive, negatives)


class LinkBatches:
    """Batches of some positives, each once per epoch, with their negatives drawn.

    As in arXiv 2305.09887 negatives are not checked against true edges. Of an undirected pair either end may be the
    one that is kept.
    """

    def __init__(self, positives: Positives, spec: TrainerSpec, part: int) -> None:
        self._positives = positives
        self._seed, self._part = spec.seed, part
        self._undirected, self._each = not spec.directed, spec.links.per_positive
        self._batches = Batches(len(positives.source), spec.sample.batch, spec.seed, part)
        self.examples, self.per_epoch = len(positives.source), self._batches.per_epoch

    def draw(self, made: int, negatives: Callable[[int, np.random.Generator], np.ndarray]) -> LinkTargets:
        """The batch of step number `made` since the start; `negatives(count, rng)` draws so many nodes, int64."""
        chosen = self._batches[made]
        source, destination = self._positives.source[chosen], self._positives.destination[chosen]
        rng = generator(self._seed, "negatives", self._part, made)
        if self._undirected:
            turned = rng.random(len(chosen)) < 0.5
            source, destination = np.where(turned, destination, source), np.where(turned, source, destination)
        relation = self._positives.relation
        return LinkTargets(
            source,
            destination,
            negatives(len(chosen) * self._each, rng),
            None if relation is None else relation[chosen],
        )
