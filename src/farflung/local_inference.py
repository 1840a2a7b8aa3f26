"""A trainer's share in exact inference over the whole graph: layer by layer, with rows of the halo from their owners.

Nobody holds the whole graph. What is sent is of the kind `evaluation`, what is counted of the kind `metrics`.
Legend for shapes: n inner nodes, h halo nodes, d width of a layer's input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from farflung.errors import FarflungError
from farflung.graph import FeatureBlock
from farflung.nn import flat
from farflung.nn.adjacency import halo_adjacency
from farflung.nn.features import numpy_dtype
from farflung.nn.inference import EDGES_PER_ROW, embed_layer, row_chunks
from farflung.nn.model import encoder_of
from farflung.partition import Shard
from farflung.tasks.metrics import State, names
from farflung.tasks.node_classification import NodeClassification
from farflung.team.halo import Halo, boundary_arrays
from farflung.team.message import Message

if TYPE_CHECKING:
    from farflung.trainer import TrainerSpec

VERB = "infer-"
"""What verbs that are answered here begin with."""


class LocalInference:
    """Embeds a part's inner nodes with weights that are sent, beside whatever the trainer is training."""

    def __init__(self, shard: Shard, spec: TrainerSpec, chunk: int = 65536) -> None:
        """`chunk`: rows at a time (>= 1), which bounds the memory."""
        assert shard.x is not None
        self.shard, self.spec = shard, spec
        self.model = spec.build_model()
        self.layers = encoder_of(self.model).layers
        self._aggregation = encoder_of(self.model).aggregation
        self._chunks = row_chunks(shard.indptr, chunk, EDGES_PER_ROW * chunk)
        self._features = Halo(shard, shard.x.shape[1])
        """Of the halo; they do not change, so they are sent once."""
        self._h: FeatureBlock = shard.x
        """The input of the next layer for the inner nodes, [n, d]."""

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        handler = getattr(self, "on_" + message.verb.removeprefix(VERB), None)
        if handler is None:
            raise FarflungError(f"inference does not know the message '{message.verb}'")
        return handler(message)

    def on_begin(self, message: Message) -> Message:
        """Take weights and begin with the features; answers whose features are missing."""
        assert self.shard.x is not None
        flat.load(self.model, message.arrays["evaluation"])
        self._h = self.shard.x
        gathers = self.layers[0].aggregation != "none"
        return Message("infer-begin", {"missing": self._features.unheard if gathers else []})

    def on_boundary(self, message: Message) -> Message:
        """Rows of a layer's input for each of the peers that have them in their halo."""
        peers = message.scalars["to"] if "to" in message.scalars else range(self.shard.num_parts)
        return Message("infer-boundary", {}, boundary_arrays("evaluation", self.shard, self._h, peers))

    def on_layer(self, message: Message) -> Message:
        """Go through a layer, with the rows of the halo that came. Answers whose are missing."""
        number = message.scalars["layer"]
        layer, h, matrix = self.layers[number], self._h, None
        halo = self._features if number == 0 else Halo(self.shard, int(h.shape[1]))
        halo.take(message.arrays)
        if layer.aggregation != "none":
            h, present = halo.below(h)
            dtype = numpy_dtype(self.spec.torch_dtype)
            matrix = halo_adjacency(layer.aggregation, self.shard, dtype, None if present.all() else present)
        self._h = embed_layer(layer, matrix, h, self._chunks, self.spec.torch_dtype).numpy()
        return Message("infer-layer")

    def on_count(self, message: Message) -> Message:
        """Counts that metrics are made of, for the inner nodes of each mask of `masks`; the rows are class scores."""
        task = NodeClassification(self.spec.num_classes, self.spec.multilabel)
        arrays: dict[str, np.ndarray] = {}
        for mask in message.scalars["masks"]:
            arrays |= {f"metrics/{mask}/{name}": value for name, value in self._count(task, mask).items()}
        finite = bool(np.isfinite(self.rows).all())
        return Message("infer-count", {"finite": finite, "names": names(task.num_classes, task.multilabel)}, arrays)

    def _count(self, task: NodeClassification, mask: str) -> State:
        shard = self.shard
        assert shard.y is not None
        chosen = np.empty(0, np.int64) if shard.split is None else np.flatnonzero(getattr(shard.split, mask))
        rows = self.rows[chosen]
        if not np.isfinite(rows).all():
            return {}
        return task.count(torch.from_numpy(rows), shard.y[chosen])

    def on_rows(self, message: Message) -> Message:
        """The rows of the inner nodes, [n, d]: as their owner keeps or gives them."""
        return Message("infer-rows", {}, {"evaluation": self.rows})

    @property
    def rows(self) -> np.ndarray:
        """What the layers gone through so far made of the inner nodes, [n, d]."""
        assert isinstance(self._h, np.ndarray)
        return self._h
