"""The trainer's side of lazy message passing: frozen inputs, gathered once per layer."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from farflung.graph import FeatureBlock
from farflung.graph.graph import MASKS
from farflung.kernels import SparseMatrix
from farflung.kernels.attention import warm_up
from farflung.methods.budget import spent
from farflung.methods.config import parse_budget
from farflung.nn import Gathered, Layer, flat, halo_adjacency, select
from farflung.nn.convs import Factor
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.nn.model import encoder_of, unit
from farflung.nn.optim import adam
from farflung.partition import Shard
from farflung.seeding import derive, generator
from farflung.tasks.node_classification import NodeClassification
from farflung.tasks.node_objective import mask_rows, mask_targets
from farflung.team import Clock, Message
from farflung.team.halo import Halo, boundary_arrays
from farflung.trainer import Trainer, TrainerSpec, metric_arrays


class LazyTrainer(Trainer):
    """Holds H_l of its inner nodes and, for the layer in training, what that layer gathered from inner and halo.

    It keeps no weights of its own beyond a round; where weights are averaged, it keeps its Adam while a layer trains.
    """

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        assert shard.x is not None
        self.layers = encoder_of(self.model).layers
        if encoder_of(self.model).aggregation == "attention":
            warm_up(spec.torch_dtype)
        self.embeddings: list[FeatureBlock] = [shard.x]
        """H_0 .. H_l of the inner nodes, [n, d_l]; kept, for a peer that comes back."""
        self.halo = Halo(shard, shard.x.shape[1])
        """Rows of the halo that came for the layer in training."""
        self.layer: int | None = None
        self.gathered: Gathered = ()
        self.train_gathered: Gathered = ()
        self.val_gathered: Gathered = ()
        self.sent: np.ndarray | None = None
        """The weights of the layer in training that came last, [P_l]."""
        self.best: np.ndarray | None = None
        """The best weights of the layer in training, as far as the server said so, [P_l]."""
        self.optimiser: torch.optim.Adam | None = None
        """Of the layer in training, where weights are averaged; None before its first step."""
        self.made = 0
        """Steps of that optimiser."""
        self._learn()

    def _learn(self) -> None:
        """Find out what there is to learn and to validate on."""
        shard, spec = self.shard, self.spec
        self.task = NodeClassification(spec.num_classes, spec.multilabel)
        self.rows = {mask: mask_rows(shard, mask) for mask in MASKS}
        """Inner nodes that train, validate and test, int64."""
        self.train_targets = mask_targets(self.task, shard, self.rows["train"], spec.torch_dtype)

    @property
    def examples(self) -> int:
        """Training nodes, or pairs, n_k: how much this trainer weighs."""
        return len(self.rows["train"])

    @property
    def learnable(self) -> int:
        """Those of them of which all is there that the layer in training needs."""
        return self.examples

    def on_hello(self, message: Message) -> Message:
        """How many nodes this trainer has, and how many of them train, validate and test."""
        sizes = {mask: len(rows) for mask, rows in self.rows.items()}
        return Message("hello", {"nodes": self.shard.num_inner, **sizes})

    def on_boundary(self, message: Message) -> Message:
        """This trainer's rows of H_layer for each peer of `to` that has them in its halo, in the numbers of `wire`."""
        layer = message.scalars["layer"]
        arrays: dict[str, np.ndarray] = {}
        if layer < len(self.embeddings) and self.layers[layer].aggregation != "none":
            kind = "embeddings" if layer else "features"
            wire = message.scalars.get("wire", "float32")
            arrays = boundary_arrays(kind, self.shard, self.embeddings[layer], message.scalars["to"], wire)
        return Message("boundary", {}, arrays)

    def on_halo(self, message: Message) -> Message:
        """Take rows of the halo from peers and gather the layer's inputs.

        Owners that did not send, or not in finite numbers, are left out.
        """
        layer = message.scalars["layer"]
        if layer >= len(self.embeddings):
            return Message("halo", {"behind": True})
        if layer != self.layer:
            self.layer, self.sent, self.best, self.optimiser = layer, None, None, None
            self.halo = Halo(self.shard, self.embeddings[layer].shape[1])
        elif not message.arrays:
            return Message("halo")
        self.halo.take(message.arrays)
        self._gather(layer)
        self.clock.worked("gather")
        return Message("halo")

    def on_gradient(self, message: Message) -> Message:
        """The gradient of this trainer's share n_k / n of the loss at the weights sent, and their validation counts.

        `keep`: the weights of the message before are the best so far; hold a copy. The answer names owners whose
        rows of the halo are missing as `unheard`.
        """
        if self.layer != message.scalars["layer"]:
            return Message("gradient", self._behind())
        arrays = self._begin(message)
        self._unit.zero_grad()
        loss = None
        if self.learnable:
            share = self.examples / message.scalars["of"]
            part = self._loss(message.scalars["round"], 0) * share
            part.backward()
            loss = part.item()
        arrays["gradients"] = flat.pack_gradients(self._unit)
        self.clock.worked("step")
        return Message("gradient", self._told(loss), arrays)

    def on_train(self, message: Message) -> Message:
        """Train the layer for an interval from the weights sent; answers with its own and the validation counts of
        those sent. `keep` and `unheard` as for a gradient.

        A loss that is not finite ends the interval; who has come to no finite weights begins with a fresh optimiser.
        """
        if self.layer != message.scalars["layer"]:
            return Message("train", self._behind())
        arrays = self._begin(message)
        interval, round = parse_budget(message.scalars["interval"]), message.scalars["round"]
        start, steps, loss = self.clock.now(), 0, None
        while self.learnable and not spent(interval, steps, self.clock.now() - start):
            loss = self._step(round, steps)
            self.clock.worked("step")
            steps += 1
            if not math.isfinite(loss):
                break
        arrays["weights"] = flat.pack(self._unit)
        if not np.isfinite(arrays["weights"]).all():
            self.optimiser = None
        return Message("train", {"steps": steps, **self._told(loss)}, arrays)

    def on_score(self, message: Message) -> Message:
        """Validation counts of the layer's last weights."""
        if self.layer != message.scalars["layer"]:
            return Message("score", self._behind())
        self._keep(message)
        flat.load(self._unit, message.arrays["evaluation"])
        return Message("score", {}, self._score())

    def on_embed(self, message: Message) -> Message:
        """Compute H_{layer + 1} of the inner nodes with the weights sent, held as best, or last loaded."""
        layer = message.scalars["layer"]
        if self.layer != layer:
            return Message("embed", {"behind": True})
        if "weights" in message.arrays:
            flat.load(self._unit, message.arrays["weights"])
        elif message.scalars["use"] == "best":
            assert self.best is not None
            flat.load(self._unit, self.best)
        with torch.no_grad():
            h = self._layer.hidden(self.gathered)
        self.embeddings[layer + 1 :] = [h.numpy()]
        self.clock.worked("embed")
        return Message("embed")

    def _behind(self) -> dict[str, bool | int]:
        """What one says that lacks the inputs of the layer in training."""
        return {"behind": True, "train": self.examples}

    def _unheard(self) -> list[int]:
        """Owners of halo nodes whose rows did not come."""
        if self._layer.aggregation == "none":
            return []
        return self.halo.unheard

    @property
    def _layer(self) -> Layer:
        assert self.layer is not None
        return self.layers[self.layer]

    @property
    def _unit(self) -> nn.Module:
        """The layer in training with its head."""
        assert self.layer is not None
        return unit(self.model, self.layer)

    def _keep(self, message: Message) -> None:
        if message.scalars["keep"]:
            self.best = self.sent

    def _begin(self, message: Message) -> dict[str, np.ndarray]:
        """Load the weights sent; returns their validation counts, where they are asked for."""
        self._keep(message)
        self.sent = message.arrays["weights"]
        flat.load(self._unit, self.sent)
        return self._score() if message.scalars["score"] else {}

    def _told(self, loss: float | None) -> dict[str, object]:
        """What one says of a round: its loss, whether that is finite, and owners whose rows are missing."""
        finite_loss = loss is None or math.isfinite(loss)
        unheard = {"unheard": missing} if (missing := self._unheard()) else {}
        return {"loss": loss if finite_loss else None, "finite": finite_loss, **unheard}

    def _step(self, round: int, number: int) -> float:
        """Step `number` of a round, by this trainer's own Adam; returns the loss before it."""
        optim, layer = self.spec.optim, self._unit
        if self.optimiser is None:
            self.optimiser, self.made = adam(optim, [layer], first=self.layer or 0), 0
        self.optimiser.zero_grad()
        loss = self._loss(round, number)
        loss.backward()
        if optim.clip is not None and self.made // self._per_epoch + 1 >= optim.clip_from:
            torch.nn.utils.clip_grad_norm_(layer.parameters(), optim.clip)
        self.optimiser.step()
        self.made += 1
        return loss.item()

    def _loss(self, round: int, number: int) -> torch.Tensor:
        """Mean loss over the training rows, or over `sample.batch` of them drawn anew for each step; n_k >= 1.

        `number`: the step within the round. The first one draws as the only step of a round does.
        """
        key, drawn = self._dropout_key(round, number), self._drawn(round, number)
        if drawn is None:
            return self.task.loss(self._layer.predict(self.train_gathered, key), self.train_targets)
        logits = self._layer.predict(select(self.train_gathered, drawn), key)
        return self.task.loss(logits, self.train_targets[torch.from_numpy(drawn)])

    def _dropout_key(self, round: int, number: int) -> int:
        assert self.layer is not None
        place = (self.layer, round, self.shard.part)
        return derive(self.spec.seed, "dropout", *place, *((number,) if number else ()))

    def _drawn(self, round: int, number: int) -> np.ndarray | None:
        """The examples of a step, of those that are learnable, ascending; None: all of them."""
        assert self.layer is not None
        n, batch = self.learnable, self.spec.sample.batch
        if batch is None or batch >= n:
            return None
        rng = generator(self.spec.seed, "rows", self.layer, round, number, self.shard.part)
        return np.sort(rng.choice(n, size=batch, replace=False, shuffle=False))

    @property
    def _per_epoch(self) -> int:
        """Steps in which as many examples are seen as there are."""
        n = self.learnable
        return math.ceil(n / min(self.spec.sample.batch or n, n))

    def _score(self) -> dict[str, np.ndarray]:
        """Validation counts at the weights now loaded; nothing where a score is not finite."""
        assert self.shard.y is not None
        with torch.no_grad():
            logits = self._layer.predict(self.val_gathered)
        if not torch.isfinite(logits).all():
            return {}
        return metric_arrays(self.task.count(logits, self.shard.y[self.rows["val"]]))

    def _gather(self, layer: int) -> None:
        """Aggregate once over inner and halo rows: from here on, the layer's training needs no graph."""
        matrix, factor, _ = self._inputs(layer)
        model = self.layers[layer]
        with torch.no_grad():
            self.gathered = model.fix(model.gather(matrix, factor))
        self.train_gathered = select(self.gathered, self.rows["train"])
        self.val_gathered = select(self.gathered, self.rows["val"])

    def _inputs(self, layer: int) -> tuple[SparseMatrix | None, Factor, np.ndarray]:
        """What a layer aggregates with and from, [n, n + h] and [n + h, d], and which of the rows are there, bool.

        Of a layer that gathers nothing: None, the inner rows [n, d], and all of them.
        """
        dtype, h = self.spec.torch_dtype, self.embeddings[layer]
        aggregation = self.layers[layer].aggregation
        if aggregation == "none":
            return None, features_as_factor(h, dtype), np.ones(self.shard.num_inner, dtype=bool)
        h, present = self.halo.below(h)
        matrix = halo_adjacency(aggregation, self.shard, numpy_dtype(dtype), present)
        return matrix, features_as_factor(h, dtype), present
