"""The trainer's side of synchronous training: each layer's forward and backward, with rows of the halo from peers.

Legend for shapes: n inner nodes, h halo nodes, m of them drawn in the step, d width of a layer's input.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from farflung.kernels import SparseMatrix
from farflung.methods.boundary import Draw
from farflung.nn import Encoder, Gathered, Layer, flat, halo_adjacency, layer_key
from farflung.nn.adjacency import Aggregation
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.partition import Shard
from farflung.seeding import derive
from farflung.tasks.node_classification import NodeClassification
from farflung.tasks.node_objective import mask_rows, mask_targets
from farflung.team import Clock, Message
from farflung.team.halo import Halo, boundary_arrays
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
        self.draw = Draw(shard, spec.seed, spec.boundary_rate)
        self.first: Gathered = ()
        """What layer 0 gathers; features do not change."""
        self.lacking: list[int] = []
        """Owners whose features did not come, or not in finite numbers."""
        self.whole: dict[Aggregation, SparseMatrix | None] = {}
        """Aggregation matrices [n, n + h]."""
        self.drawn: dict[Aggregation, SparseMatrix] = {}
        """Of the step: these matrices without halo nodes that were not drawn, [n, n + m]."""
        self.inputs: dict[int, torch.Tensor] = {}
        """Of the step: each layer's input from layer 1 on, a leaf; [n + m, d] where it gathers, else [n, d]."""
        self.outputs: dict[int, torch.Tensor] = {}
        """Of the step: what each layer passes on, [n, d], with its graph of operations."""
        self.awaited: set[tuple[str, int, int]] = set()
        """Of the step: kind, layer and sender of rows that have to come and have not, or not in finite numbers."""
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
            self.lacking = halo.unheard
            x, _ = halo.below(x)
        with torch.no_grad():
            factor = features_as_factor(x, self.spec.torch_dtype)
            self.first = layer.fix(layer.gather(self._whole(layer.aggregation), factor))
        self.clock.worked("gather")
        return Message("take-features")

    def on_forward(self, message: Message) -> Message:
        """Compute a layer; answers with its output's boundary rows, those that are drawn, for each peer."""
        number = message.scalars["layer"]
        if number == 0:
            self._begin(message)
        self.outputs[number] = self._run(number)
        rows, arrays = self.outputs[number].detach(), {}
        if self.model.layers[number + 1].aggregation != "none":
            for peer in self.draw.peers:
                chosen, scale = self.draw.sent(peer)
                arrays[f"embeddings/{peer}"] = self._scaled(rows.numpy()[chosen], scale, number + 1)
            self.awaited.update(("embeddings", number + 1, owner) for owner in self.draw.owners)
            rows = torch.cat([rows, rows.new_zeros(len(self.draw.places), rows.shape[1])])
        self.inputs[number + 1] = rows.requires_grad_()
        self.clock.worked("layer")
        return Message("forward", {}, arrays)

    def on_take_embeddings(self, message: Message) -> Message:
        """Take rows of the halo for a layer's input."""
        number = message.scalars["layer"]
        halo = self.inputs[number].detach()[self.shard.num_inner :]
        for owner, place in self.draw.slices().items():
            self._take(message, "embeddings", owner, halo[place])
        return Message("take-embeddings")

    def on_backward(self, message: Message) -> Message:
        """Go back through a layer, through the loss if it is the last; answers with gradients of the halo's rows."""
        number = message.scalars["layer"]
        self._back(number)
        arrays: dict[str, np.ndarray] = {}
        if self.model.layers[number].aggregation != "none":
            halo = self._gradient(number)[self.shard.num_inner :].numpy()
            arrays = {f"embedding-gradients/{owner}": halo[place] for owner, place in self.draw.slices().items()}
            self.awaited.update(("embedding-gradients", number, peer) for peer in self.draw.peers)
        self.clock.worked("layer")
        return Message("backward", {}, arrays)

    def on_take_gradients(self, message: Message) -> Message:
        """Add what peers say of this trainer's rows to the gradient of a layer's input."""
        number = message.scalars["layer"]
        gradient = self._gradient(number)
        for peer in self.draw.peers:
            chosen, scale = self.draw.sent(peer)
            rows = torch.zeros(len(chosen), gradient.shape[1], dtype=gradient.dtype)
            self._take(message, "embedding-gradients", peer, rows)
            scaled = torch.from_numpy(self._scaled(rows.numpy(), scale, number))
            gradient.index_add_(0, torch.from_numpy(chosen), scaled)
        return Message("take-gradients")

    def on_gradients(self, message: Message) -> Message:
        """Finish the step: the gradient of this trainer's share n_k / n of the loss, and what peers' shares add.

        `unsound` names those whose rows did not come, or not in finite numbers: the step is worth nothing then.
        """
        if len(self.model.layers) == 1:
            self._begin(message)
        self._back(0)
        self.clock.worked("step")
        unsound = sorted({sender for _, _, sender in self.awaited})
        finite = math.isfinite(self.loss)
        scalars = {
            "loss": self.loss if len(self.rows) and finite else None,
            "finite": finite,
            **({"unsound": unsound} if unsound else {}),
            **({"lacking": self.lacking} if self.lacking else {}),
        }
        return Message("gradients", scalars, {"gradients": flat.pack_gradients(self.model)})

    def _begin(self, message: Message) -> None:
        """Begin a step at the weights sent."""
        step = message.scalars["step"]
        flat.load(self.model, message.arrays["weights"])
        self.model.zero_grad()
        self.key = derive(self.spec.seed, "dropout", step, self.shard.part)
        self.of, self.loss = message.scalars["of"], 0.0
        self.inputs, self.outputs, self.drawn, self.awaited = {}, {}, {}, set()
        self.draw.anew(step)

    def _run(self, number: int) -> torch.Tensor:
        """A layer's output for the inner nodes."""
        layer = self.model.layers[number]
        return layer.hidden(self._gathered(number, layer), layer_key(self.key, number))

    def _gathered(self, number: int, layer: Layer) -> Gathered:
        if number == 0:
            return self.first
        return layer.gather(self._matrix(layer.aggregation), self.inputs[number])

    def _whole(self, aggregation: Aggregation) -> SparseMatrix | None:
        if aggregation not in self.whole:
            self.whole[aggregation] = halo_adjacency(aggregation, self.shard, numpy_dtype(self.spec.torch_dtype))
        return self.whole[aggregation]

    def _matrix(self, aggregation: Aggregation) -> SparseMatrix | None:
        """What a layer above the first gathers with: columns of the halo are those drawn, their entries unchanged."""
        whole = self._whole(aggregation)
        if whole is None or self.draw.everything:
            return whole
        if aggregation not in self.drawn:
            inner = self.shard.num_inner
            self.drawn[aggregation] = whole.columns(np.concatenate([np.arange(inner), inner + self.draw.places]))
        return self.drawn[aggregation]

    def _back(self, number: int) -> None:
        """From the gradient of a layer's output to those of its weights and inputs."""
        if number == len(self.model.layers) - 1:
            if len(self.rows):
                logits = self._run(number)[torch.from_numpy(self.rows)]
                loss = self.task.loss(logits, self.targets) * (len(self.rows) / self.of)
                loss.backward()
                self.loss = loss.item()
            return
        output = self.outputs.pop(number)
        output.backward(self._gradient(number + 1)[: self.shard.num_inner])

    def _gradient(self, number: int) -> torch.Tensor:
        """The gradient of a layer's input as it stands; zero before anything came of it."""
        leaf = self.inputs[number]
        if leaf.grad is None:
            leaf.grad = torch.zeros_like(leaf)
        return leaf.grad

    def _take(self, message: Message, kind: str, sender: int, into: torch.Tensor) -> None:
        """Copy the rows that `sender` sent; those of another shape, or not finite, are left out and still awaited."""
        rows = message.arrays.get(f"{kind}/{sender}")
        if rows is not None and rows.shape == tuple(into.shape) and np.isfinite(rows).all():
            into.copy_(torch.from_numpy(rows))
            self.awaited.discard((kind, message.scalars["layer"], sender))

    def _scaled(self, rows: np.ndarray, scale: float, layer: int) -> np.ndarray:
        """Rows for, or gradients from, a peer: scaled up where drawn rows stand for all of a boundary."""
        if scale == 1 or self.model.layers[layer].aggregation not in _LINEAR:
            return rows
        return rows * rows.dtype.type(scale)
