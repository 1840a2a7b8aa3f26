"""Lazy training of links: each layer learns with a decoder of its own which pairs of its rows are joined.

A pair whose source is in the halo needs what the layer gathered for that node. Where that is one weighted sum beside
the node's own row (`Layer.sums`), owners send the sums of their boundary rows after the rows themselves. What is
gathered is frozen, so an edge cannot be hidden from it while it is being predicted.

Legend for shapes: n inner and h halo nodes, d width of a layer's input, k positives of a step, m negatives for each.
"""

from __future__ import annotations

import numpy as np
import torch

from farflung.graph import FeatureBlock
from farflung.kernels import Product, SparseMatrix, formed
from farflung.methods.lazy_trainer import LazyTrainer
from farflung.nn import Gathered, select
from farflung.nn.convs import Factor, first_rows
from farflung.nn.decoders import Decoder, LinkModel
from farflung.nn.features import features_as_factor
from farflung.partition import Shard
from farflung.seeding import generator
from farflung.tasks.link_prediction import LinkPrediction
from farflung.team import Message
from farflung.team.halo import Halo, boundary_arrays
from farflung.trainer import TrainerSpec


class LazyLinkTrainer(LazyTrainer):
    """Learns the pairs whose destination it owns, against negatives among its inner nodes."""

    def _learn(self) -> None:
        model = self.model
        assert isinstance(model, LinkModel)
        self.decoders = [model.decoder_of(layer) for layer in range(len(self.layers))]
        crossing = all(layer.sums for layer in self.layers)
        self.source, self.destination, self.relation = positives(self.shard, self.spec, crossing)
        """Local ids int64 of all pairs, and their edge types where the decoder tells them apart."""
        self.usable = np.arange(len(self.source))
        """Which of them have both ends there, int64."""
        self.summed: tuple[int, FeatureBlock, Factor, np.ndarray] | None = None
        """The layer in training, its sums of the inner nodes [n, d], rows of inner and halo [n + h, d], which of these
        are there."""
        self.halo_sums = Halo(self.shard, 1)
        self.pair_gathered: Gathered = ()
        """What the layer gathered for inner nodes and, where pairs cross parts, for the halo, n + h rows."""

    @property
    def examples(self) -> int:
        return len(self.source)

    @property
    def learnable(self) -> int:
        return len(self.usable)

    def on_hello(self, message: Message) -> Message:
        """How many nodes this trainer has, and how many pairs it learns."""
        return Message("hello", {"nodes": self.shard.num_inner, "train": self.examples})

    def on_boundary_sums(self, message: Message) -> Message:
        """What the layer gathered for this trainer's boundary rows, for each peer of `to`."""
        layer, scalars = message.scalars["layer"], message.scalars
        arrays: dict[str, np.ndarray] = {}
        if self.summed is not None and self.summed[0] == layer == self.layer:
            kind = "embeddings" if layer else "features"
            wire = scalars.get("wire", "float32")
            arrays = boundary_arrays(kind, self.shard, self.summed[1], scalars["to"], wire)
        return Message("boundary-sums", {}, arrays)

    def on_halo_sums(self, message: Message) -> Message:
        """Take sums of the halo from peers; pairs of which something is missing are left out."""
        if self.summed is None or self.layer != message.scalars["layer"]:
            return Message("halo-sums", {"behind": True})
        self.halo_sums.take(message.arrays)
        self._assemble()
        self.clock.worked("gather")
        return Message("halo-sums")

    def _unheard(self) -> list[int]:
        rows = super()._unheard()
        return sorted({*rows, *self.halo_sums.unheard}) if self._layer.sums else rows

    def _gather(self, layer: int) -> None:
        matrix, factor, present = self._inputs(layer)
        module = self.layers[layer]
        if not module.sums:
            with torch.no_grad():
                self.gathered = self.pair_gathered = module.fix(module.gather(matrix, factor))
            self.summed = None
            return
        assert matrix is not None
        if self.summed is None or self.summed[0] != layer:
            self.halo_sums = Halo(self.shard, int(factor.shape[1]))
        with torch.no_grad():
            self.summed = layer, _block(formed(Product(matrix, factor))), factor, present
        self._assemble()

    def _assemble(self) -> None:
        """Put own sums and those of the halo together, and see which pairs have both ends there."""
        assert self.summed is not None
        layer, own, factor, present = self.summed
        sums, there = self.halo_sums.below(own)
        module = self.layers[layer]
        self.pair_gathered = module.fix(module.assemble(features_as_factor(sums, self.spec.torch_dtype), factor))
        self.gathered = tuple(_first(operand, self.shard.num_inner) for operand in self.pair_gathered)
        self.usable = np.flatnonzero((present & there)[self.source])

    def _loss(self, round: int, number: int) -> torch.Tensor:
        """Mean loss over the pairs that are there, or over `sample.batch` of them drawn anew, each with its negatives.

        Negatives keep one end and take another node of the part: either end of an undirected pair may be the one.
        """
        assert self.layer is not None
        key, drawn = self._dropout_key(round, number), self._drawn(round, number)
        chosen = self.usable if drawn is None else self.usable[drawn]
        source, destination = self.source[chosen], self.destination[chosen]
        rng = generator(self.spec.seed, "negatives", self.layer, round, number, self.shard.part)
        if not self.spec.directed:
            turned = rng.random(len(chosen)) < 0.5
            source, destination = np.where(turned, destination, source), np.where(turned, source, destination)
        negative = rng.integers(self.shard.num_inner, size=len(chosen) * self.spec.links.per_positive)
        nodes, place = np.unique(np.concatenate([source, destination, negative]), return_inverse=True)
        h = self._layer.hidden(select(self.pair_gathered, nodes), key)
        relation = None if self.relation is None else torch.from_numpy(self.relation[chosen])
        return _pair_loss(self.decoders[self.layer], h, torch.from_numpy(place), len(chosen), relation)


def positives(shard: Shard, spec: TrainerSpec, crossing: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The pairs that the owner of a shard learns: local ids of source (inner or halo) and destination (inner), int64.

    Those whose destination it owns, loops left out: directed edges, each once; or undirected pairs, the lower global
    id as source. Where the decoder tells edge types apart, every edge with its type. `crossing`: with pairs between
    parts.
    """
    destination = np.repeat(np.arange(shard.num_inner), np.diff(shard.indptr))
    source = shard.indices.astype(np.int64)
    kept = source != destination
    if not crossing:
        kept &= source < shard.num_inner
    if spec.links.decoder == "distmult":
        types = np.zeros(len(source), np.int64) if shard.edge_type is None else shard.edge_type.astype(np.int64)
        return source[kept], destination[kept], types[kept]
    kept[1:] &= (source[1:] != source[:-1]) | (destination[1:] != destination[:-1])
    if not spec.directed:
        name = np.concatenate([shard.inner, shard.halo])
        kept &= name[source] < name[destination]
    return source[kept], destination[kept], None


def _pair_loss(
    decoder: Decoder, h: torch.Tensor, place: torch.Tensor, count: int, relation: torch.Tensor | None
) -> torch.Tensor:
    """Mean loss of `count` positives and of their negatives; `place` [k + k + k m]: sources, destinations, negatives
    as rows of `h`."""
    at_source, at_destination, at_negative = place.tensor_split([count, 2 * count])
    each = len(at_negative) // count
    kept = h.index_select(0, at_source)
    others = None if relation is None else relation.repeat_interleave(each)
    positive = decoder(kept, h.index_select(0, at_destination), relation)
    negative = decoder(kept.repeat_interleave(each, dim=0), h.index_select(0, at_negative), others)
    return LinkPrediction().loss(positive, negative)


def _block(factor: Factor) -> FeatureBlock:
    return factor.to_scipy() if isinstance(factor, SparseMatrix) else factor.numpy()


def _first(operand: object, count: int) -> Factor:
    assert isinstance(operand, torch.Tensor | SparseMatrix)
    return first_rows(operand, count)
