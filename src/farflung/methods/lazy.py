"""Lazy message passing, RETEXO (Kolluri et al., arXiv 2302.13053): layer by layer, one exchange of embeddings each.

While layer l trains, its inputs are frozen, so aggregation is done once and a step is dense algebra on own rows. The
optimiser is the server's: a trainer that was late or restarted heals by getting weights and rows, nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from farflung.methods.aggregate import refuse_non_finite, summed
from farflung.methods.base import Round, Setting, require_time
from farflung.nn import Layer, flat
from farflung.nn.optim import adam
from farflung.tasks.metrics import finish, merge
from farflung.team import Message, Reply, absent, require_some
from farflung.trainer import metric_state


def train(setting: Setting) -> None:
    """Train layer after layer; the results are in `setting.keeper`.

    Bytes for 4-byte numbers, b boundary rows in all, W trainers, P_l parameters of layer l with its head:
    4 b (d_0 + ... + d_{L-1}) for the exchanges, 8 W sum_l T_l P_l for weights down and gradients up.
    """
    lazy = _Lazy(setting)
    layers = setting.model.layers
    lazy.exchange(0)
    require_time(setting, "features had been exchanged")
    for number, layer in enumerate(layers):
        lazy.train_layer(number, layer, rounds=_rounds_of(number, len(layers), setting.train.steps))
        if number < len(layers) - 1:
            lazy.embed(number, layer)
            lazy.exchange(number + 1)


def _rounds_of(layer: int, layers: int, steps: int) -> int:
    """Layer `layer`'s share of all steps; what does not divide goes to the first layers."""
    return steps // layers + (layer < steps % layers)


@dataclass
class _Lazy:
    """The server's side: what it knows of the trainers while a layer trains."""

    setting: Setting
    round: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    """Training nodes n_k of each trainer."""
    owing: set[int] = field(default_factory=set)
    """Trainers whose boundary rows did not come, or not in numbers, to some peer."""
    holders: set[int] = field(default_factory=set)
    """Trainers that hold the layer's chosen (so far: best) weights."""
    loaded: set[int] = field(default_factory=set)
    """Trainers that loaded the weights of the last message."""
    scorers: frozenset[int] = frozenset()
    """Trainers on whose validation nodes the last score was made."""
    last_is_chosen: bool = False
    """Whether the layer's chosen weights are those of its last round."""

    def __post_init__(self) -> None:
        self.team = self.setting.team
        self.everyone = range(self.team.size)
        self.team.begin(0, "start")
        hello = require_some(self.team.broadcast(Message("hello")), "hello")
        self.sizes = {reply.trainer: reply.scalars["train"] for reply in hello}

    def exchange(
        self, layer: int, senders: Collection[int] | None = None, receivers: Collection[int] | None = None
    ) -> None:
        """Rows of H_layer go from `senders` to `receivers` (None: all), each to whom has them in the halo."""
        senders = self.everyone if senders is None else senders
        receivers = self.everyone if receivers is None else receivers
        self.team.begin(self.round, f"exchange{layer}")
        send = Message("boundary", {"layer": layer, "to": list(receivers)})
        sent = self.team.exchange(
            dict.fromkeys(senders, send),
            dict.fromkeys(receivers, Message("halo", {"layer": layer})),
            self.setting.train.deadline,
        )
        if len(receivers) == self.team.size:
            self.owing = (self.owing - set(senders)) | {reply.trainer for reply in sent if not reply.done}

    def train_layer(self, number: int, layer: Layer, rounds: int) -> None:
        """Train one layer with its head for at most `rounds` rounds; leaves its chosen weights in the model.

        A time limit is shared out equally: layer l ends (l + 1) / L of it after the start, with a round at least.
        """
        setting, keeper = self.setting, self.setting.keeper
        self.holders, self.loaded = set(), set()
        if rounds == 0:
            return
        keeper.forget_best()
        optimiser = adam(setting.optim, [layer], first=number)
        end = (setting.train.time_limit or math.inf) * (number + 1) / len(setting.model.layers)
        ended, better = None, False
        for t in range(rounds):
            if t > 0 and self.team.now() >= end:
                break
            self.team.begin(self.round, f"layer{number}")
            setting.journal.expect(f"layer{number}", self.round, setting.train.steps, None)
            message = Message(
                "gradient",
                {"layer": number, "round": self.round, "of": self.total, "score": t > 0, "keep": better},
                {"weights": flat.pack(layer)},
            )
            replies = self.team.broadcast(message, setting.train.deadline)
            ready, behind = self._ready(require_some(replies, f"gradient, round {self.round}"), better)
            if ended is not None:
                better = self._close(ended, ready)
            done, refused = refuse_non_finite(ready, "gradients")
            self._step(layer, optimiser, done)
            ended = Round(
                round=self.round,
                phase=f"layer{number}",
                loss=self._loss(done),
                val=None,
                steps={reply.trainer: 1 for reply in done},
                absent=dict.fromkeys(self.owing, "its boundary rows are missing")
                | absent(replies)
                | refused
                | dict.fromkeys(behind, "came back, catching up"),
                seconds=self.team.now(),
            )
            self.round += 1
            if behind:
                self.sizes |= behind
                self.catch_up(list(behind), number)
            elif late := self.owing & {reply.trainer for reply in done}:
                self.exchange(number, senders=sorted(late))
        if ended is not None:
            self._finish(number, layer, ended, better)

    @property
    def total(self) -> int:
        """Training nodes of all trainers n."""
        return sum(self.sizes.values())

    def _ready(self, done: list[Reply], kept: bool) -> tuple[list[Reply], dict[int, int]]:
        """The replies that took part, and the trainers that came back without their inputs, with their sizes.

        `kept`: the message asked to hold the weights of the one before; those who had loaded them do.
        """
        returned = {reply.trainer: reply.scalars["train"] for reply in done if reply.scalars.get("behind")}
        ready = [reply for reply in done if reply.trainer not in returned]
        answered = {reply.trainer for reply in ready}
        self.holders = self.loaded & answered if kept else self.holders - set(returned)
        self.loaded = answered
        self.owing |= {owner for reply in ready for owner in reply.scalars.get("unheard", ())}
        return ready, returned

    def _step(self, layer: Layer, optimiser: torch.optim.Adam, done: list[Reply]) -> None:
        """One step of the server's Adam on the gradient of the mean loss over the training nodes present."""
        present = sum(self.sizes[reply.trainer] for reply in done)
        if present:
            gradients = [reply.arrays["gradients"] for reply in done]
            flat.set_gradients(layer, summed(gradients, self.total / present))
            optimiser.step()

    def _loss(self, done: list[Reply]) -> float | None:
        present = sum(self.sizes[reply.trainer] for reply in done)
        losses = [reply.scalars["loss"] for reply in done if reply.scalars["loss"] is not None]
        return sum(losses) * self.total / present if present else None

    def _close(self, ended: Round, replies: list[Reply]) -> bool:
        """Complete a round's record with the score that its weights got; True if they are the best so far.

        Scores over the nodes of different trainers do not compare: where others answer, the best is sought anew.
        """
        states = {reply.trainer: state for reply in replies if (state := metric_state(reply.arrays))}
        finite = {k: s for k, s in states.items() if all(np.isfinite(counts).all() for counts in s.values())}
        val = finish(merge(finite.values())) if finite else None
        scorers = frozenset(k for k, state in finite.items() if state["nodes"].any())
        if scorers != self.scorers:
            self.setting.keeper.forget_best()
            self.scorers = scorers
        better = self.setting.keeper.offer(ended.round, self.setting.model.state_dict(), val)
        self.setting.journal.round(replace(ended, val=val, best=better))
        return better

    def _finish(self, number: int, layer: Layer, ended: Round, better: bool) -> None:
        """Score the weights of the last round, and leave the chosen ones in the model."""
        self.team.begin(self.round, f"layer{number}")
        message = Message("score", {"layer": number, "keep": better}, {"evaluation": flat.pack(layer)})
        replies = require_some(self.team.broadcast(message, self.setting.train.deadline), "score")
        ready, _ = self._ready(replies, better)
        last_is_best = self._close(ended, ready) or not self.setting.keeper.best
        self.last_is_chosen = last_is_best or self.setting.train.keep == "last"
        if self.last_is_chosen:
            self.holders = {reply.trainer for reply in ready}
        self.setting.model.load_state_dict(self.setting.keeper.chosen(self.setting.train.keep))

    def embed(self, number: int, layer: Layer) -> None:
        """Every trainer computes H_{number + 1} of its inner nodes with the chosen weights, sent only where missing."""
        self.team.begin(self.round, f"embed{number}")
        weights = flat.pack(layer)
        which = "last" if self.last_is_chosen else "best"
        self.team.call(
            {
                k: Message(
                    "embed",
                    {"layer": number, "use": which},
                    {} if k in self.holders else {"weights": weights},
                )
                for k in self.everyone
            },
            self.setting.train.deadline,
        )

    def catch_up(self, returned: list[int], layer: int) -> None:
        """Bring restarted trainers to the inputs of `layer`: rows from their peers and the weights of layers below.

        In the end their own rows go to the peers, which had to do without.
        """
        self.team.begin(self.round, "catch-up")
        for below in range(layer + 1):
            others = [k for k in self.everyone if k not in returned]
            self.exchange(below, senders=[*others, *returned], receivers=returned)
            if below < layer:
                weights = flat.pack(self.setting.model.layers[below])
                message = Message("embed", {"layer": below, "use": "last"}, {"weights": weights})
                self.team.call(dict.fromkeys(returned, message), self.setting.train.deadline)
        self.exchange(layer, senders=returned)
