"""The trainer's side of synchronous training: each layer's forward and backward, with rows of the halo from peers.

Legend for shapes: n inner nodes, h halo nodes, b boundary rows for one peer, d width of a layer's input.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from farflung.kernels import SparseMatrix
from farflung.nn import Encoder, Gathered, Layer, flat, halo_adjacency, layer_key
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.partition import Shard
from farflung.seeding import derive, generator
from farflung.tasks.node_classification import NodeClassification
from farflung.tasks.node_objective import mask_rows, mask_targets
from farflung.team import Clock, Message
from farflung.team.halo import Halo, boundary_arrays
from farflung.team.rows import senders
from farflung.trainer import Trainer, TrainerSpec

_LINEAR = ("mean", "gcn")
"""Aggregations that are linear in the rows they gather: a drawn row can stand for those that were not."""


class SynchronousTrainer(Trainer):
    """Holds its part, and within a step the inputs and outputs of each layer."""

    model: Encoder

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        assert shard.x is not None
        self.task = NodeClassification(spec.num_classes, spec.multilabel)
        self.rows = mask_rows(shard, "train")
        self.targets = mask_targets(self.task, shard, self.rows, spec.torch_dtype)
        self.draw = _Draw(shard, spec)
        self.first: Gathered = ()
        """What layer 0 gathers; features do not change."""
        self.matrix = cache(self._matrix)
        """The aggregation matrix [n, n + h] of a layer without regard to a draw."""
        self.own: dict[int, torch.Tensor] = {}
        """Of the step: each layer's input for the inner nodes [n, d], a leaf; from layer 1 on."""
        self.halo: dict[int, torch.Tensor] = {}
        """Of the step: each layer's input for the halo [h, d], a leaf; rows that were not drawn are zero."""
        self.outputs: dict[int, torch.Tensor] = {}
        """Of the step: what each layer passes on, with its graph of operations."""
        self.key, self.of, self.loss = 0, 0, 0.0

    def on_hello(self, message: Message) -> Message:
        """How many nodes this trainer has, and how many of them train."""
        return Message("hello", {"nodes": self.shard.num_inner, "train": len(self.rows)})

    def on_give_features(self, message: Message) -> Message:
        """Features of the boundary for each peer."""
        assert self.shard.x is not None
        arrays = boundary_arrays("features", self.shard, self.shard.x, range(self.shard.num_parts))
        return Message("give-features", {}, arrays)

    def on_take_features(self, message: Message) -> Message:
        """Take features of the halo and gather what layer 0 reads, once for the whole training."""
        assert self.shard.x is not None
        layer, x = self.model.layers[0], self.shard.x
        if layer.aggregation != "none":
            halo = Halo(self.shard, x.shape[1])
            halo.take(message.arrays)
            x, _ = halo.below(x)
        with torch.no_grad():
            factor = features_as_factor(x, self.spec.torch_dtype)
            self.first = layer.fix(layer.gather(self.matrix(layer.aggregation), factor))
        self.clock.worked("gather")
        return Message("take-features")

    def on_forward(self, message: Message) -> Message:
        """Compute a layer; answers with its output's boundary rows, those that are drawn, for each peer."""
        number = message.scalars["layer"]
        if number == 0:
            self._begin(message)
        output = self._run(number)
        self.outputs[number] = output
        self.own[number + 1] = output.detach().requires_grad_()
        arrays: dict[str, np.ndarray] = {}
        if self.model.layers[number + 1].aggregation != "none":
            rows = output.detach().numpy()
            for peer in self.draw.peers:
                chosen, scale = self.draw.sent(peer)
                arrays[f"embeddings/{peer}"] = self._scaled(rows[chosen], scale, number + 1)
        self.clock.worked("layer")
        return Message("forward", {}, arrays)

    def on_take_embeddings(self, message: Message) -> Message:
        """Take rows of the halo for a layer's input."""
        number = message.scalars["layer"]
        width = self.own[number].shape[1]
        rows = torch.zeros(self.shard.num_halo, width, dtype=self.spec.torch_dtype)
        for owner in senders(message.arrays):
            rows[self.draw.received(owner)] = torch.from_numpy(message.arrays[f"embeddings/{owner}"])
        self.halo[number] = rows.requires_grad_()
        return Message("take-embeddings")

    def on_backward(self, message: Message) -> Message:
        """Go back through a layer, through the loss if it is the last; answers with gradients of the halo's rows."""
        number = message.scalars["layer"]
        self._back(number)
        arrays: dict[str, np.ndarray] = {}
        if self.model.layers[number].aggregation != "none":
            gradient = _gradient(self.halo[number])
            for owner in self.draw.owners:
                rows = gradient[self.draw.received(owner)]
                arrays[f"embedding-gradients/{owner}"] = np.ascontiguousarray(rows.numpy())
        self.clock.worked("layer")
        return Message("backward", {}, arrays)

    def on_take_gradients(self, message: Message) -> Message:
        """Add what peers say of this trainer's rows to the gradient of a layer's input."""
        number = message.scalars["layer"]
        gradient = _gradient(self.own[number])
        for peer in senders(message.arrays):
            chosen, scale = self.draw.sent(peer)
            rows = self._scaled(message.arrays[f"embedding-gradients/{peer}"], scale, number)
            gradient.index_add_(0, torch.from_numpy(chosen), torch.from_numpy(rows))
        self.own[number].grad = gradient
        return Message("take-gradients")

    def on_gradients(self, message: Message) -> Message:
        """Finish the step: the gradient of this trainer's share n_k / n of the loss, and what peers' shares add."""
        if len(self.model.layers) == 1:
            self._begin(message)
        self._back(0)
        self.clock.worked("step")
        finite = math.isfinite(self.loss)
        loss = self.loss if len(self.rows) and finite else None
        return Message("gradients", {"loss": loss, "finite": finite}, {"gradients": flat.pack_gradients(self.model)})

    def _begin(self, message: Message) -> None:
        """Begin a step at the weights sent."""
        step = message.scalars["step"]
        flat.load(self.model, message.arrays["weights"])
        self.model.zero_grad()
        self.key = derive(self.spec.seed, "dropout", step, self.shard.part)
        self.of, self.loss = message.scalars["of"], 0.0
        self.own, self.halo, self.outputs = {}, {}, {}
        self.draw.anew(step)

    def _run(self, number: int) -> torch.Tensor:
        """A layer's output for the inner nodes."""
        layer = self.model.layers[number]
        return layer.hidden(self._gathered(number, layer), layer_key(self.key, number))

    def _gathered(self, number: int, layer: Layer) -> Gathered:
        if number == 0:
            return self.first
        if layer.aggregation == "none":
            return layer.gather(None, self.own[number])
        h = torch.cat([self.own[number], self.halo[number]])
        return layer.gather(self._matrix_of_step(layer.aggregation), h)

    def _matrix_of_step(self, aggregation: str) -> SparseMatrix | None:
        if self.draw.everything or aggregation in _LINEAR:
            return self.matrix(aggregation)
        return self._matrix(aggregation, self.draw.present)

    def _matrix(self, aggregation: str, present: np.ndarray | None = None) -> SparseMatrix | None:
        return halo_adjacency(aggregation, self.shard, numpy_dtype(self.spec.torch_dtype), present)  # type: ignore[arg-type]

    def _back(self, number: int) -> None:
        """From the gradient of a layer's output to those of its weights and inputs."""
        if number == len(self.model.layers) - 1:
            if len(self.rows):
                logits = self._run(number)[torch.from_numpy(self.rows)]
                loss = self.task.loss(logits, self.targets) * (len(self.rows) / self.of)
                loss.backward()
                self.loss = loss.item()
            return
        gradient = self.own[number + 1].grad
        if gradient is not None:
            self.outputs.pop(number).backward(gradient)

    def _scaled(self, rows: np.ndarray, scale: float, layer: int) -> np.ndarray:
        """Rows for, or gradients from, a peer: scaled up where drawn rows stand for all of a boundary."""
        if scale == 1 or self.model.layers[layer].aggregation not in _LINEAR:
            return np.ascontiguousarray(rows)
        return rows * rows.dtype.type(scale)


class _Draw:
    """Which rows of each boundary cross the network in a step: both ends draw the same, so no ids are sent."""

    def __init__(self, shard: Shard, spec: TrainerSpec) -> None:
        self._shard, self._seed, self._rate = shard, spec.seed, spec.boundary_rate
        counts = np.diff(shard.boundary_ptr)
        self.peers = np.flatnonzero(counts).tolist()
        """Who has rows of this trainer in the halo."""
        self.owners = np.flatnonzero(np.diff(shard.halo_ptr)).tolist()
        """Whose rows are in the halo."""
        self.everything = spec.boundary_rate == 1
        self._step = 0
        self._drawn: dict[tuple[int, int], np.ndarray] = {}
        """Of the step, by sender and receiver."""

    def anew(self, step: int) -> None:
        """Draw for a step."""
        self._step = step
        if not self.everything:
            self._drawn.clear()

    def sent(self, peer: int) -> tuple[np.ndarray, float]:
        """Inner nodes whose rows go to `peer`, int64, and how many rows of the boundary each stands for."""
        boundary = self._shard.boundary_for(peer)
        drawn = self._rows(self._shard.part, peer, len(boundary))
        return boundary[drawn], len(boundary) / len(drawn)

    def received(self, owner: int) -> np.ndarray:
        """Places in the halo (0..h-1) whose rows come from `owner`, int64."""
        place = self._shard.halo_of(owner)
        return place.start + self._rows(owner, self._shard.part, place.stop - place.start)

    @property
    def present(self) -> np.ndarray:
        """bool [n + h]: nodes whose rows are here."""
        there = np.zeros(self._shard.num_inner + self._shard.num_halo, dtype=bool)
        there[: self._shard.num_inner] = True
        for owner in self.owners:
            there[self._shard.num_inner + self.received(owner)] = True
        return there

    def _rows(self, sender: int, receiver: int, count: int) -> np.ndarray:
        """Which of a boundary's `count` rows are drawn, ascending, int64 [ceil(p count)]."""
        pair = sender, receiver
        if pair not in self._drawn and self.everything:
            self._drawn[pair] = np.arange(count)
        elif pair not in self._drawn:
            rng = generator(self._seed, "boundary", self._step, *pair)
            drawn = rng.choice(count, size=math.ceil(self._rate * count), replace=False, shuffle=False)
            self._drawn[pair] = np.sort(drawn)
        return self._drawn[pair]


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
