"""Lazy message passing, RETEXO (Kolluri et al., arXiv 2302.13053): layer by layer, one exchange of embeddings each.

While layer l trains, its inputs are frozen, so aggregation is done once and a step is dense algebra on own rows. A
trainer that was late or restarted heals by getting weights and rows, nothing else. How a round moves the weights, by
one gradient or by averaging over an interval, is said in `lazy_rounds`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from farflung.methods.aggregate import refuse_non_finite
from farflung.methods.base import Round, Setting, require_time
from farflung.methods.budget import next_interval, rounds_of, seconds_of
from farflung.methods.config import Steps, TrainConfig
from farflung.methods.lazy_rounds import mode_of
from farflung.nn import Encoder, Layer, flat
from farflung.tasks.metrics import finish, merge
from farflung.team import Message, Reply, absent, require_some
from farflung.trainer import metric_state


def train(setting: Setting) -> None:
    """Train layer after layer; the results are in `setting.keeper`.

    Bytes for 4-byte numbers, b boundary rows in all, W trainers, P_l parameters of layer l with its head:
    4 b (d_0 + ... + d_{L-1}) for the exchanges, 8 W sum_l R_l P_l for weights down and gradients or weights up.
    R_l, the rounds of layer l, are its steps T_l, or ceil(T_l / s) where weights are averaged every s steps.
    """
    lazy = _Lazy(setting)
    lazy.exchange(0)
    require_time(setting, "features had been exchanged")
    for number, layer in enumerate(lazy.layers):
        lazy.train_layer(number, layer)
        if number < len(lazy.layers) - 1:
            lazy.embed(number, layer)
            lazy.exchange(number + 1)


def _share(options: TrainConfig, layer: int, layers: int) -> TrainConfig:
    """What layer `layer` has of the steps and of the time, as options of a training of its own.

    Steps that do not divide go to the first layers. Layer l ends (l + 1) / L of the time limit after the start.
    """
    limit = options.time_limit
    return options.model_copy(
        update={
            "steps": options.steps // layers + (layer < options.steps % layers),
            "time_limit": None if limit is None else limit * (layer + 1) / layers,
            "interval": Steps(n=1) if options.lazy == "gradients" else options.interval,
        }
    )


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
        assert isinstance(self.setting.model, Encoder)
        self.layers = self.setting.model.layers
        self.shares = [_share(self.setting.train, number, len(self.layers)) for number in range(len(self.layers))]
        rounds = [rounds_of(share) for share in self.shares]
        self.rounds = None if None in rounds else sum(filter(None, rounds))
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
        wire = self.setting.train.wire
        scalars = {"layer": layer, "to": list(receivers), **({} if wire == "float32" else {"wire": wire})}
        send = Message("boundary", scalars)
        sent = self.team.exchange(
            dict.fromkeys(senders, send),
            dict.fromkeys(receivers, Message("halo", {"layer": layer})),
            self.setting.train.deadline,
        )
        if len(receivers) == self.team.size:
            self.owing = (self.owing - set(senders)) | {reply.trainer for reply in sent if not reply.done}

    def train_layer(self, number: int, layer: Layer) -> None:
        """Train one layer with its head for its share of the steps or of the time, with a round at least.

        Leaves the layer's chosen weights in the model. A layer without a share of the steps stays as it is.
        """
        setting, share = self.setting, self.shares[number]
        self.holders, self.loaded = set(), set()
        if rounds_of(share) == 0:
            return
        setting.keeper.forget_best()
        mode = mode_of(setting, number, layer)
        ended: Round | None = None
        better, steps = False, 0
        while interval := next_interval(share, steps, self.team.now()) or (None if ended else Steps(n=1)):
            self.team.begin(self.round, f"layer{number}")
            setting.journal.expect(f"layer{number}", self.round, self.rounds, seconds_of(interval))
            message = Message(
                mode.verb,
                {
                    "layer": number,
                    "round": self.round,
                    **mode.scalars(interval, self.total),
                    "score": ended is not None,
                    "keep": better,
                },
                {"weights": flat.pack(layer)},
            )
            replies = self.team.broadcast(message, setting.train.deadline)
            ready, behind = self._ready(require_some(replies, f"{mode.verb}, round {self.round}"), better)
            if ended is not None:
                better = self._close(ended, ready)
            done, refused = refuse_non_finite(ready, mode.sends)
            mode.update(layer, done, self.sizes)
            ended = Round(
                round=self.round,
                phase=f"layer{number}",
                loss=mode.loss(done, self.sizes),
                val=None,
                steps={reply.trainer: reply.scalars.get("steps", 1) for reply in done},
                absent=dict.fromkeys(self.owing, "its boundary rows are missing")
                | absent(replies)
                | refused
                | dict.fromkeys(behind, "came back, catching up"),
                seconds=self.team.now(),
            )
            self.round += 1
            steps += interval.n if isinstance(interval, Steps) else 0
            if behind:
                self.sizes |= behind
                self.catch_up(list(behind), number)
            elif late := self.owing & {reply.trainer for reply in done}:
                self.exchange(number, senders=sorted(late))
        assert ended is not None
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
                weights = flat.pack(self.layers[below])
                message = Message("embed", {"layer": below, "use": "last"}, {"weights": weights})
                self.team.call(dict.fromkeys(returned, message), self.setting.train.deadline)
        self.exchange(layer, senders=returned)
