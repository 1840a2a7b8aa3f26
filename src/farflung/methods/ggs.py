"""GGS, global graph sampling: synchronous data-parallel SGD over one graph that is spread out, the way of DistDGL
(Zheng et al., arXiv 2010.05337) and a baseline of arXiv 2305.09887.

In each step every trainer samples neighbourhoods of its own seeds over the whole graph. What it does not own it fetches
from the owners: in-edges hop by hop, then features. The server averages the gradients and steps the one Adam.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from farflung.errors import InputError, PeerLostError
from farflung.methods.aggregate import refuse_non_finite, weighted_mean
from farflung.methods.base import Patience, Round, Setting, require_time
from farflung.methods.budget import mean_loss, next_interval, rounds_of, seconds_of, spent
from farflung.methods.config import Seconds, Steps
from farflung.nn import flat
from farflung.nn.model import encoder_of
from farflung.nn.optim import adam
from farflung.team import Message, Reply, absent


def train(setting: Setting) -> None:
    """Train in lockstep; the results are in `setting.keeper`.

    Bytes for W trainers and P parameters of 4 bytes: 8 W P a step for weights down and gradients up, and what the
    samples need of other parts (kinds `neighbours` and `features`).

    Raises PeerLostError where any trainer is late or dead: nobody else has its nodes.
    """
    server = _Server(setting)
    server.introduce()
    require_time(setting, "the partition book had been handed out")
    patience = Patience(setting.train.patience)
    round, steps = 0, 0
    while (interval := next_interval(setting.train, steps, setting.team.now())) is not None:
        setting.team.begin(round, "train")
        setting.journal.expect("train", round, rounds_of(setting.train), seconds_of(interval))
        made = server.interval(interval, round)
        score = setting.team.evaluate(flat.pack(setting.model))
        better = setting.keeper.offer(round, setting.model.state_dict(), score)
        setting.journal.round(
            Round(
                round=round,
                phase="train",
                loss=made.loss,
                val=score,
                steps=made.steps,
                absent=made.absent,
                seconds=setting.team.now(),
                best=better,
            )
        )
        round += 1
        steps += interval.n if isinstance(interval, Steps) else 0
        if patience.over(better):
            break


@dataclass
class _Interval:
    """What happened in an interval."""

    loss: float | None = None
    """Of the last step: mean over the seeds of those that count."""
    steps: dict[int, int] = field(default_factory=dict)
    """In how many steps each trainer's gradient counted."""
    absent: dict[int, str] = field(default_factory=dict)
    """Whose gradient did not count in some step, or whose rows nobody could use."""


class _Server:
    """The server's side: weights, optimiser and the count of steps."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.team, self.model = setting, setting.team, setting.model
        self.optimiser = adam(setting.optim, setting.model.layers)
        aggregations = [layer.aggregation for layer in encoder_of(setting.model).layers]
        self.hops = len(aggregations) - aggregations.count("none")
        self.everyone = range(setting.team.size)
        self.made = 0
        """Steps since the start."""
        self.per_epoch = 1
        """Steps in which every example comes up, once or more."""

    def introduce(self) -> None:
        """Learn who owns which node, and tell everybody."""
        self.team.begin(0, "start")
        hello = self.all_of(self.team.broadcast(Message("hello")), "the ids of its nodes")
        self.per_epoch = max(1, *(reply.scalars["per_epoch"] for reply in hello))
        book = partition_book([reply.arrays["handshake"] for reply in hello])
        self.call(Message("book", {}, {"handshake": book}), "a sign that the partition book has come")

    def interval(self, interval: Steps | Seconds, round: int) -> _Interval:
        """Make steps until the interval is over."""
        made, start, number = _Interval(steps=dict.fromkeys(self.everyone, 0)), self.team.now(), 0
        while not spent(interval, number, self.team.now() - start):
            self.step(round, number, made)
            number += 1
        self.team.begin(round, "train")
        return made

    def step(self, round: int, number: int, made: _Interval) -> None:
        """One step, number `number` of its round: sample, fetch, and one gradient of the mean over all seeds."""
        place = {"round": round, "number": number, "step": self.made}
        self.team.begin(round, "sample")
        for hop in range(self.hops):
            self.fetch("neighbours", {**place, "hop": hop})
        self.team.begin(round, "features")
        self.fetch("features", place)
        self.team.begin(round, "train")
        replies = self.call(Message("gradient", place, {"weights": flat.pack(self.model)}), "its gradient")
        done, refused = refuse_non_finite(replies, "gradients")
        seeds = {reply.trainer: reply.scalars["seeds"] for reply in done}
        if any(seeds.values()):
            gradients = [reply.arrays["gradients"] for reply in done]
            self.descend(weighted_mean(gradients, [float(n) for n in seeds.values()]))
        made.loss = mean_loss((reply.scalars["loss"], seeds[reply.trainer]) for reply in done)
        for trainer, n in seeds.items():
            made.steps[trainer] += n > 0
        made.absent |= refused | dict.fromkeys(_spoilers(done), "refused: rows that it gave are missing or not finite")
        self.made += 1

    def descend(self, gradient: np.ndarray) -> None:
        """One step of Adam."""
        optim = self.setting.optim
        flat.set_gradients(self.model, gradient)
        if optim.clip is not None and self.made // self.per_epoch + 1 >= optim.clip_from:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), optim.clip)
        self.optimiser.step()

    def fetch(self, what: str, scalars: dict[str, Any]) -> None:
        """Everybody pulls `what` (`neighbours`, `features`) from the owners."""
        ask, take = (dict.fromkeys(self.everyone, Message(f"{verb}-{what}", scalars)) for verb in ("ask", "take"))
        replies = self.team.fetch(ask, Message(f"give-{what}", scalars), take, self.setting.train.deadline)
        self.all_of(replies, f"the {what} of its nodes")

    def call(self, message: Message, what: str) -> list[Reply]:
        """The answers of all."""
        return self.all_of(self.team.broadcast(message, self.setting.train.deadline), what)

    def all_of(self, replies: list[Reply], what: str) -> list[Reply]:
        """The replies. Raises PeerLostError where one is missing; `what` was waited for."""
        if missing := absent(replies):
            who = " and ".join(f"trainer {k} ({why})" for k, why in missing.items())
            raise PeerLostError(
                f"lost {who} in round {self.team.round}, waiting for {what}; nobody else has these nodes: bring it "
                "back and train again, or choose a method that goes on without it, such as random-tma"
            )
        return replies


def _spoilers(replies: list[Reply]) -> set[int]:
    """Owners that somebody got nothing useful from."""
    return {owner for reply in replies for owner in reply.scalars.get("spoilt", ())}


def partition_book(inner: list[np.ndarray]) -> np.ndarray:
    """The owner of each node, [N] in the smallest unsigned type, from the ids [n] that each trainer has.

    Raises InputError where these are not 0 .. N - 1, each once.
    """
    ids = np.concatenate(inner)
    count = np.bincount(ids, minlength=len(ids))
    if len(count) > len(ids) or (count != 1).any():
        node = int(np.flatnonzero(count != 1)[0])
        raise InputError(f"node {node} is in {count[node]} parts, expected 1: cut the graph anew")
    owner = np.empty(len(ids), dtype=np.min_scalar_type(max(0, len(inner) - 1)))
    owner[ids] = np.repeat(np.arange(len(inner)), [len(one) for one in inner])
    return owner
