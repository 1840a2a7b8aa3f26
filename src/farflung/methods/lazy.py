"""Lazy message passing, RETEXO (Kolluri et al., arXiv 2302.13053): layer by layer, one exchange of embeddings each.

While layer l trains, its inputs are frozen, so aggregation is done once and a step is dense algebra on own rows. A
trainer that was late or restarted heals by getting weights and rows, nothing else. How a round moves the weights, by
one gradient or by averaging over an interval, is said in `lazy_rounds`, and who scores them in `lazy_scoring`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from farflung.methods.aggregate import refuse_non_finite
from farflung.methods.base import Patience, Round, Setting, require_time
from farflung.methods.budget import next_interval, rounds_of, seconds_of
from farflung.methods.config import Steps, TrainConfig
from farflung.methods.lazy_rounds import mode_of
from farflung.methods.lazy_scoring import scoring_of
from farflung.nn import flat
from farflung.nn.model import LinkModel, encoder_of, unit
from farflung.team import Message, Reply, absent, require_some


def train(setting: Setting) -> None:
    """Train layer after layer; the results are in `setting.keeper`.

    Bytes for 4-byte numbers, b boundary rows in all, W trainers, P_l parameters of layer l with its head:
    4 b (d_0 + ... + d_{L-1}) for the exchanges, 8 W sum_l R_l P_l for weights down and gradients or weights up.
    R_l, the rounds of layer l, are its steps T_l, or ceil(T_l / s) where weights are averaged every s steps. Layers
    that gather nothing need no exchange. Where links are learned across parts, an exchange takes twice as much. Where
    the evaluator scores, 4 W P_l of weights come on top for each layer but the last, before its embeddings are made.
    """
    lazy = _Lazy(setting)
    lazy.exchange(0)
    require_time(setting, "features had been exchanged")
    for layer in range(lazy.depth):
        lazy.train_layer(layer)
        if layer < lazy.depth - 1:
            lazy.embed(layer)
            lazy.exchange(layer + 1)


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
    """Training nodes, or pairs, n_k of each trainer."""
    owing: set[int] = field(default_factory=set)
    """Trainers whose boundary rows did not come, or not in numbers, to some peer."""
    holders: set[int] = field(default_factory=set)
    """Trainers that hold the layer's chosen (so far: best) weights."""
    loaded: set[int] = field(default_factory=set)
    """Trainers that loaded the weights of the last message."""
    last_is_chosen: bool = False
    """Whether the layer's chosen weights are those of its last round."""

    def __post_init__(self) -> None:
        self.team = self.setting.team
        self.layers = encoder_of(self.setting.model).layers
        self.depth = len(self.layers)
        self.units = [unit(self.setting.model, layer) for layer in range(self.depth)]
        self.scoring = scoring_of(self.setting)
        self.shares = [_share(self.setting.train, layer, self.depth) for layer in range(self.depth)]
        rounds = [rounds_of(share) for share in self.shares]
        self.rounds = None if None in rounds else sum(filter(None, rounds))
        self.everyone = range(self.team.size)
        self.team.begin(0, "start")
        hello = require_some(self.team.broadcast(Message("hello")), "hello")
        self.sizes = {reply.trainer: reply.scalars["train"] for reply in hello}

    def exchange(
        self, layer: int, senders: Collection[int] | None = None, receivers: Collection[int] | None = None
    ) -> None:
        """Rows of H_layer go from `senders` to `receivers` (None: all), each to whom has them in the halo.

        Where links are learned across parts, all then send what the layer has gathered for these rows.
        """
        self.team.begin(self.round, f"exchange{layer}")
        self._carry("boundary", "halo", layer, senders, receivers)
        if isinstance(self.setting.model, LinkModel) and self.layers[layer].sums:
            self._carry("boundary-sums", "halo-sums", layer)

    def _carry(
        self,
        send: str,
        receive: str,
        layer: int,
        senders: Collection[int] | None = None,
        receivers: Collection[int] | None = None,
    ) -> None:
        """One exchange; notes who owes rows to others."""
        senders = self.everyone if senders is None else senders
        receivers = self.everyone if receivers is None else receivers
        wire = self.setting.train.wire
        scalars = {"layer": layer, "to": list(receivers), **({} if wire == "float32" else {"wire": wire})}
        sent = self.team.exchange(
            dict.fromkeys(senders, Message(send, scalars)),
            dict.fromkeys(receivers, Message(receive, {"layer": layer})),
            self.setting.train.deadline,
        )
        missing = {reply.trainer for reply in sent if not reply.done}
        if send == "boundary" and len(receivers) == self.team.size:
            self.owing = (self.owing - set(senders)) | missing
        elif send != "boundary":
            self.owing |= missing

    def train_layer(self, layer: int) -> None:
        """Train one layer with its head for its share of the steps or of the time, with a round at least.

        Leaves the layer's chosen weights in the model. A layer without a share of the steps stays as it is.
        """
        setting, share, module = self.setting, self.shares[layer], self.units[layer]
        self.holders, self.loaded = set(), set()
        if rounds_of(share) == 0:
            return
        setting.keeper.forget_best()
        mode, patience = mode_of(setting, layer, module), Patience(setting.train.patience)
        ended: Round | None = None
        better, over, steps, first = False, False, 0, self.round
        while not over and (
            interval := next_interval(share, steps, self.team.now()) or (None if ended else Steps(n=1))
        ):
            self.team.begin(self.round, f"layer{layer}")
            setting.journal.expect(f"layer{layer}", self.round, self.rounds, seconds_of(interval))
            due = ended is not None and self.scoring.due(steps)
            message = Message(
                mode.verb,
                {
                    "layer": layer,
                    "round": self.round,
                    **mode.scalars(interval, self.total),
                    "score": due and self.scoring.asks,
                    "keep": better,
                },
                {"weights": flat.pack(module)},
            )
            replies = self.team.broadcast(message, setting.train.deadline)
            ready, behind = self._ready(require_some(replies, f"{mode.verb}, round {self.round}"), better)
            if ended is not None:
                better = self._close(ended, layer, ready, due)
                over = due and patience.over(better)
            done, refused = refuse_non_finite(ready, mode.sends)
            mode.update(module, done, self.sizes)
            ended = Round(
                round=self.round,
                phase=f"layer{layer}",
                loss=mode.loss(done, self.sizes),
                val=None,
                steps={reply.trainer: reply.scalars.get("steps", 1) for reply in done},
                absent=dict.fromkeys(self.owing, "its boundary rows are missing")
                | absent(replies)
                | refused
                | dict.fromkeys(behind, "came back, catching up"),
                seconds=self.team.now(),
                stopped=over,
            )
            self.round += 1
            steps += interval.n if isinstance(interval, Steps) else 0
            if behind:
                self.sizes |= behind
                self.catch_up(list(behind), layer)
            elif late := self.owing & {reply.trainer for reply in done}:
                self.exchange(layer, senders=sorted(late))
        assert ended is not None
        if over and self.rounds is not None:  # what patience saved will not come
            self.rounds -= (rounds_of(share) or 0) - (self.round - first)
        self._finish(layer, ended, better)

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

    def _close(self, ended: Round, layer: int, replies: list[Reply], due: bool = True) -> bool:
        """Complete a round's record with the score that its weights got; True if they are the best so far.

        `replies`: those that loaded these weights; `due`: whether they are scored.
        """
        setting = self.setting
        val = self.scoring.score(layer, replies) if due else None
        better = setting.keeper.offer(ended.round, setting.model.state_dict(), val)
        setting.journal.round(replace(ended, val=val, best=better))
        return better

    def _finish(self, layer: int, ended: Round, better: bool) -> None:
        """Score the weights of the last round, and leave the chosen ones in the model."""
        self.team.begin(self.round, f"layer{layer}")
        ready: list[Reply] = []
        if self.scoring.asks:
            message = Message("score", {"layer": layer, "keep": better}, {"evaluation": flat.pack(self.units[layer])})
            replies = require_some(self.team.broadcast(message, self.setting.train.deadline), "score")
            ready, _ = self._ready(replies, better)
        last_is_best = self._close(ended, layer, ready) or not self.setting.keeper.best
        self.last_is_chosen = last_is_best or self.setting.train.keep == "last"
        if self.last_is_chosen or not self.scoring.asks:
            self.holders = {reply.trainer for reply in ready}
        self.setting.model.load_state_dict(self.setting.keeper.chosen(self.setting.train.keep))

    def embed(self, layer: int) -> None:
        """Every trainer computes H_{layer + 1} of its inner nodes with the chosen weights, sent only where missing."""
        self.team.begin(self.round, f"embed{layer}")
        weights = flat.pack(self.units[layer])
        which = "last" if self.last_is_chosen else "best"
        self.team.call(
            {
                k: Message(
                    "embed",
                    {"layer": layer, "use": which},
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
            self.team.begin(self.round, f"exchange{below}")
            self._carry("boundary", "halo", below, senders=[*others, *returned], receivers=returned)
            if below < layer:
                weights = flat.pack(self.units[below])
                message = Message("embed", {"layer": below, "use": "last"}, {"weights": weights})
                self.team.call(dict.fromkeys(returned, message), self.setting.train.deadline)
        self.exchange(layer, senders=returned)
