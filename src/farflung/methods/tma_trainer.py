"""The trainer's side of TMA: it learns alone on its part, full-batch or on sampled neighbourhoods."""

from __future__ import annotations

import math

import numpy as np
import torch

from farflung.graph.features import stacked
from farflung.methods.budget import spent
from farflung.methods.config import parse_budget
from farflung.nn import flat
from farflung.nn.optim import adam, load_moments, pack_moments
from farflung.partition import Shard
from farflung.seeding import generator
from farflung.tasks.build import build_objective
from farflung.tasks.link_objective import LinkObjective
from farflung.tasks.objective import Step
from farflung.team import Clock, Message
from farflung.team.rows import from_arrays, senders, sound, to_arrays
from farflung.trainer import Trainer, TrainerSpec, shard_of


class TMATrainer(Trainer):
    """Learns alone on its part. Its Adam state is its own, kept across rounds (averaged only on request)."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        self.objective = build_objective(self.model, shard, spec)
        self.optimiser = adam(spec.optim, self.model.layers)
        self.made = 0
        """Steps since the start."""
        self.deal = 0
        """Which deal of the parts this one's is from."""
        self.requested: dict[int, np.ndarray] = {}
        """Inner nodes whose features peers want, by peer."""

    def on_hello(self, message: Message) -> Message:
        """How many nodes and training examples this trainer has, and how many remote nodes it wants per round."""
        links = self.spec.links
        wants = self.spec.task == "link-prediction" and links.negatives == "global"
        return Message("hello", {**self._sizes(), **({"pool": links.pool} if wants else {})})

    def _sizes(self) -> dict[str, int]:
        return {"nodes": self.shard.num_inner, "train": self.objective.examples}

    def on_weights(self, message: Message) -> Message:
        """Take the server's weights, and moments where some come; with `reset`, begin with a fresh optimiser."""
        flat.load(self.model, message.arrays["weights"])
        if message.scalars.get("reset"):
            self.optimiser = adam(self.spec.optim, self.model.layers)
        load_moments(self.optimiser, message.arrays)
        return Message("weights", {"deal": self.deal, **self._sizes()})

    def on_part(self, message: Message) -> Message:
        """Take another part of the graph; weights and optimiser stay."""
        self.shard, self.deal = shard_of(message), message.scalars["deal"]
        self.objective = build_objective(self.model, self.shard, self.spec)
        return Message("part", self._sizes())

    def on_wish(self, message: Message) -> Message:
        """Which rows of each peer this trainer wants as negatives: `pool` of them, uniform over all remote nodes."""
        nodes = list(message.scalars["nodes"])
        nodes[self.shard.part] = 0
        if not (remote := sum(nodes)):
            return Message("wish")
        rng = generator(self.spec.seed, "pool", self.shard.part, message.scalars["round"])
        counts = rng.multinomial(self.spec.links.pool, [n / remote for n in nodes])
        return Message(
            "wish",
            {},
            {f"negatives/{j}": rng.integers(nodes[j], size=count) for j, count in enumerate(counts) if count},
        )

    def on_requested(self, message: Message) -> Message:
        """Remember which rows peers want: as far as the options let them, and as the rows exist."""
        asked = {peer: message.arrays[f"negatives/{peer}"] for peer in senders(message.arrays)}
        self.requested = {peer: rows for peer, rows in asked.items() if self._gives(rows)}
        return Message("requested")

    def _gives(self, rows: np.ndarray) -> bool:
        """Whether a peer may have these rows of features."""
        links = self.spec.links
        shared = self.spec.task == "link-prediction" and links.negatives == "global"
        whole = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) <= links.pool
        return shared and whole and bool(((rows >= 0) & (rows < self.shard.num_inner)).all())

    def on_give(self, message: Message) -> Message:
        """The features of the rows that peers want."""
        assert self.shard.x is not None
        arrays: dict[str, np.ndarray] = {}
        for peer, rows in self.requested.items():
            arrays |= to_arrays(f"negatives/{peer}", self.shard.x[rows])
        return Message("give", {}, arrays)

    def on_take(self, message: Message) -> Message:
        """Take the features of remote nodes; without any, the ones of the last round stay."""
        assert self.shard.x is not None and isinstance(self.objective, LinkObjective)
        width = self.shard.x.shape[1]
        blocks = [from_arrays(message.arrays, peer, width) for peer in senders(message.arrays)]
        if blocks := [rows for rows in blocks if sound(rows, width)]:
            self.objective.take_remote(stacked(blocks))
        return Message("take")

    def on_train(self, message: Message) -> Message:
        """Train for an interval, finish the current step, send the weights.

        A loss that is not finite ends the interval; the answer says so with `finite` false.
        """
        if message.scalars.get("deal", self.deal) != self.deal:
            self.on_part(message)
        if "weights" in message.arrays:
            self.on_weights(message)
        interval, round = parse_budget(message.scalars["interval"]), message.scalars["round"]
        start, steps, loss = self.clock.now(), 0, None
        while self.objective.examples and not spent(interval, steps, self.clock.now() - start):
            loss = self.step(Step(round, steps, self.made))
            self.clock.worked("step")
            steps += 1
            if not math.isfinite(loss):
                break
        good = loss is None or math.isfinite(loss)
        moments = pack_moments(self.optimiser) if message.scalars.get("moments") else {}
        return Message(
            "train",
            {"steps": steps, "loss": loss if good else None, "finite": good, **self._sizes()},
            {"weights": flat.pack(self.model), **moments},
        )

    def step(self, step: Step) -> float:
        """One step of Adam on the mean loss of the step's examples; returns the loss before it."""
        self.optimiser.zero_grad()
        loss = self.objective.loss(step)
        loss.backward()
        optim = self.spec.optim
        if optim.clip is not None and self.made // self.objective.per_epoch + 1 >= optim.clip_from:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), optim.clip)
        self.optimiser.step()
        self.made += 1
        return loss.item()
