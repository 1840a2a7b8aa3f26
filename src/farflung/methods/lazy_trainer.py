"""The trainer's side of lazy message passing: frozen inputs, gathered once per layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp
import torch

from farflung.graph import FeatureBlock
from farflung.nn import Gathered, Layer, fixed, flat, halo_adjacency, select
from farflung.partition import Shard
from farflung.seeding import derive
from farflung.team import Clock, Message
from farflung.trainer import Trainer, TrainerSpec, features_as_factor, metric_arrays, numpy_dtype


class LazyTrainer(Trainer):
    """Holds H_l of its inner nodes and, for the layer in training, what that layer gathered from inner and halo."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        assert shard.x is not None
        self.embeddings: list[FeatureBlock] = [shard.x]
        """H_0 .. H_l of the inner nodes, [n, d_l]; kept, for a peer that comes back."""
        self.halo: dict[int, FeatureBlock] = {}
        """Rows of the halo that came for the layer in training, by owner."""
        self.layer: int | None = None
        self.gathered: Gathered = ()
        self.train_gathered: Gathered = ()
        self.val_gathered: Gathered = ()
        self.best: np.ndarray | None = None
        """The best weights of the layer in training, as far as the server said so."""

    def on_boundary(self, message: Message) -> Message:
        """This trainer's rows of H_layer for each peer of `to` that has them in its halo."""
        layer = message.scalars["layer"]
        arrays: dict[str, np.ndarray] = {}
        if layer < len(self.embeddings) and self.model.aggregation != "none":
            kind = "embeddings" if layer else "features"
            for peer in message.scalars["to"]:
                rows = self.shard.boundary_for(peer)
                if len(rows):
                    arrays |= _to_arrays(f"{kind}/{peer}", self.embeddings[layer][rows])
        return Message("boundary", {}, arrays)

    def on_halo(self, message: Message) -> Message:
        """Take rows of the halo from peers and gather the layer's inputs.

        Owners that did not send, or not in finite numbers, are left out.
        """
        layer = message.scalars["layer"]
        if layer >= len(self.embeddings):
            return Message("halo", {"behind": True})
        if layer != self.layer:
            self.layer, self.halo, self.best = layer, {}, None
        elif not message.arrays:
            return Message("halo")
        for peer in {int(name.split("/")[1]) for name in message.arrays}:
            rows = _from_arrays(message.arrays, peer, self.embeddings[layer].shape[1])
            if _finite(rows):
                self.halo[peer] = rows
        self._gather(layer)
        self.clock.worked("gather")
        return Message("halo")

    def on_gradient(self, message: Message) -> Message:
        """The gradient of this trainer's share n_k / n of the loss at the weights sent, and their validation counts.

        `keep`: the weights of the message before are the best so far; hold a copy. The answer names owners whose
        rows of the halo are missing as `unheard`.
        """
        if self.layer is None or self.layer != message.scalars["layer"]:
            return Message("gradient", self._behind())
        model = self._layer
        self._keep(message)
        flat.load(model, message.arrays["weights"])
        arrays = self._score() if message.scalars["score"] else {}
        model.zero_grad()
        loss = None
        if len(self.rows["train"]):
            share = len(self.rows["train"]) / message.scalars["of"]
            key = derive(self.spec.seed, "dropout", self.layer, message.scalars["round"], self.shard.part)
            logits = model.predict(self.train_gathered, key)
            part = self.task.loss(logits, self.train_targets) * share
            part.backward()
            loss = part.item()
        arrays["gradients"] = flat.pack_gradients(model)
        self.clock.worked("step")
        finite = loss is None or bool(np.isfinite(loss))
        unheard = {"unheard": missing} if (missing := self._unheard()) else {}
        return Message("gradient", {"loss": loss if finite else None, "finite": finite, **unheard}, arrays)

    def on_score(self, message: Message) -> Message:
        """Validation counts of the layer's last weights."""
        if self.layer != message.scalars["layer"]:
            return Message("score", self._behind())
        self._keep(message)
        flat.load(self._layer, message.arrays["evaluation"])
        return Message("score", {}, self._score())

    def on_embed(self, message: Message) -> Message:
        """Compute H_{layer + 1} of the inner nodes with the weights sent, held as best, or last loaded."""
        layer = message.scalars["layer"]
        if self.layer != layer:
            return Message("embed", {"behind": True})
        if "weights" in message.arrays:
            flat.load(self._layer, message.arrays["weights"])
        elif message.scalars["use"] == "best":
            assert self.best is not None
            flat.load(self._layer, self.best)
        with torch.no_grad():
            h = self._layer.hidden(self.gathered)
        self.embeddings[layer + 1 :] = [h.numpy()]
        self.clock.worked("embed")
        return Message("embed")

    def _behind(self) -> dict[str, bool | int]:
        """What one says that lacks the inputs of the layer in training."""
        return {"behind": True, "train": len(self.rows["train"])}

    def _unheard(self) -> list[int]:
        """Owners of halo nodes whose rows did not come."""
        if self.model.aggregation == "none":
            return []
        return [owner for owner in np.flatnonzero(np.diff(self.shard.halo_ptr)).tolist() if owner not in self.halo]

    @property
    def _layer(self) -> Layer:
        assert self.layer is not None
        return self.model.layers[self.layer]

    def _keep(self, message: Message) -> None:
        if message.scalars["keep"]:
            self.best = flat.pack(self._layer)

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
        shard, dtype = self.shard, self.spec.torch_dtype
        h = self.embeddings[layer]
        present = np.ones(shard.num_inner + shard.num_halo, dtype=bool)
        blocks = [h]
        for owner in range(shard.num_parts):
            place = shard.halo_of(owner)
            count = place.stop - place.start
            if count == 0:
                continue
            if owner in self.halo:
                blocks.append(self.halo[owner])
            else:
                present[shard.num_inner + place.start : shard.num_inner + place.stop] = False
                blocks.append(_blank(h, count))
        stacked = sp.vstack(blocks, format="csr") if sp.issparse(h) else np.concatenate(blocks)
        matrix = halo_adjacency(self.model.aggregation, shard, numpy_dtype(dtype), present)
        conv = self.model.layers[layer].conv
        factor = features_as_factor(stacked if matrix is not None else h, dtype)
        with torch.no_grad():
            self.gathered = fixed(conv.aggregate(matrix, factor))
        self.train_gathered = select(self.gathered, self.rows["train"])
        self.val_gathered = select(self.gathered, self.rows["val"])


def _to_arrays(name: str, rows: FeatureBlock) -> dict[str, np.ndarray]:
    """Rows as arrays of a message: one dense array, or the three of a CSR matrix."""
    if isinstance(rows, np.ndarray):
        return {name: np.ascontiguousarray(rows)}
    return {f"{name}/data": rows.data, f"{name}/indices": rows.indices, f"{name}/indptr": rows.indptr}


def _from_arrays(arrays: Mapping[str, np.ndarray], peer: int, width: int) -> FeatureBlock:
    """The rows that `peer` sent, [b, width]."""
    mine = {name.partition("/")[2]: array for name, array in arrays.items()}
    if str(peer) in mine:
        return mine[str(peer)]
    data, indices, indptr = (mine[f"{peer}/{part}"] for part in ("data", "indices", "indptr"))
    return sp.csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, width))


def _finite(rows: FeatureBlock) -> bool:
    """Whether all entries are finite."""
    return bool(np.isfinite(rows.data if sp.issparse(rows) else rows).all())


def _blank(h: FeatureBlock, count: int) -> FeatureBlock:
    """`count` rows of zeros beside `h`; no aggregate reads them."""
    if sp.issparse(h):
        return sp.csr_matrix((count, h.shape[1]), dtype=h.dtype)
    return np.zeros((count, h.shape[1]), dtype=h.dtype)
