"""TMA, time-based model aggregation (Zhu et al., arXiv 2305.09887): RandomTMA, SuperTMA and PSGD-PA.

Every trainer learns alone on its own part, where edges to other parts do not exist. After each interval, in steps
or in seconds, the server averages the weights. Which of the three methods it is, the partition decides.
"""

from __future__ import annotations

import math

import numpy as np

from farflung.errors import InputError
from farflung.methods.aggregate import refuse_non_finite, weighted_mean
from farflung.methods.base import Round, Setting, require_time
from farflung.methods.config import Seconds, Steps, TrainConfig, parse_budget
from farflung.nn import flat, local_adjacency
from farflung.nn.optim import adam
from farflung.partition import Shard
from farflung.seeding import derive
from farflung.team import Clock, Message, absent, require_some
from farflung.trainer import Trainer, TrainerSpec, numpy_dtype


def train(setting: Setting) -> None:
    """Train by averaging weights; the results are in `setting.keeper`.

    The mean is uniform over the trainers that have training nodes and answered with finite weights.
    Bytes for P parameters of 4 bytes: 4 M P at the start, then 8 M P per aggregation.
    """
    team, options = setting.team, setting.train
    weights = flat.pack(setting.model)
    team.begin(0, "train")
    hello = require_some(team.broadcast(Message("hello")), "hello")
    trains = {reply.trainer: reply.scalars["train"] for reply in hello}
    current = _hand_out(setting, weights, reset=())
    require_time(setting, "the initial weights were handed out")
    round, steps = 0, 0
    while (interval := _next_interval(options, steps, team.now())) is not None:
        team.begin(round, "train")
        setting.journal.expect("train", round, _rounds(options), _seconds(interval))
        late_starters = {k for k in range(team.size) if k not in current}
        replies = team.call(
            {
                k: Message(
                    "train",
                    {"interval": str(interval), "round": round},
                    {"weights": weights} if k in late_starters else {},
                )
                for k in range(team.size)
            },
            options.deadline,
        )
        done, refused = refuse_non_finite(require_some(replies, f"train, round {round}"), "weights")
        trains |= {reply.trainer: reply.scalars["train"] for reply in done}
        shares = [float(trains[reply.trainer] > 0) for reply in done]
        if any(shares):
            weights = weighted_mean([reply.arrays["weights"] for reply in done], shares)
        current = _hand_out(setting, weights, reset=refused)
        score = team.evaluate(weights)
        setting.journal.round(
            Round(
                round=round,
                phase="train",
                loss=_mean_loss([(reply.scalars["loss"], trains[reply.trainer]) for reply in done]),
                val=score,
                steps={reply.trainer: reply.scalars["steps"] for reply in done},
                absent=absent(replies) | refused,
                seconds=team.now(),
                best=setting.keeper.offer(round, flat.unpack(setting.model, weights), score),
            )
        )
        round += 1
        steps += interval.n if isinstance(interval, Steps) else 0


def _hand_out(setting: Setting, weights: np.ndarray, reset: dict[int, str] | tuple[()]) -> set[int]:
    """Send the weights to all; those in `reset` also forget their optimiser state. Returns who has them now."""
    messages = {
        k: Message("weights", {"reset": True} if k in reset else {}, {"weights": weights})
        for k in range(setting.team.size)
    }
    return {reply.trainer for reply in setting.team.call(messages, setting.train.deadline) if reply.done}


def _next_interval(options: TrainConfig, steps: int, now: float) -> Steps | Seconds | None:
    """The budget of the next round, cut where steps or time end; None: training is over."""
    left = np.inf if options.time_limit is None else options.time_limit - now
    if left <= 0:
        return None
    if isinstance(options.interval, Steps):
        n = min(options.interval.n, options.steps - steps)
        return Steps(n=n) if n > 0 else None
    if options.time_limit is None:
        raise InputError(f"an interval in time ({options.interval}) needs a time limit: add --time-limit, e.g. 60s")
    return Seconds(s=min(options.interval.s, left))


def _rounds(options: TrainConfig) -> int | None:
    return -(-options.steps // options.interval.n) if isinstance(options.interval, Steps) else None


def _seconds(interval: Steps | Seconds) -> float | None:
    return interval.s if isinstance(interval, Seconds) else None


def _mean_loss(losses: list[tuple[float | None, int]]) -> float | None:
    """Mean of the trainers' losses by their numbers of training nodes; None if nobody had any."""
    counted = [(loss, n) for loss, n in losses if loss is not None and n > 0]
    return sum(loss * n for loss, n in counted) / sum(n for _, n in counted) if counted else None


class TMATrainer(Trainer):
    """Learns alone on its part, full-batch. Its Adam state is its own: never averaged, kept across rounds."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        self.matrix = local_adjacency(self.model.aggregation, shard, numpy_dtype(spec.torch_dtype))
        self.gathered = self.model.prepare(self.matrix, self.factor())
        self.optimiser = adam(spec.optim, self.model.layers)

    def on_weights(self, message: Message) -> Message:
        """Take the server's weights; with `reset`, begin with a fresh optimiser."""
        flat.load(self.model, message.arrays["weights"])
        if message.scalars.get("reset"):
            self.optimiser = adam(self.spec.optim, self.model.layers)
        return Message("weights")

    def on_train(self, message: Message) -> Message:
        """Train for an interval, finish the current step, send the weights.

        A loss that is not finite ends the interval; the answer says so with `finite` false.
        """
        if "weights" in message.arrays:
            self.on_weights(message)
        interval, round = parse_budget(message.scalars["interval"]), message.scalars["round"]
        start, steps, loss = self.clock.now(), 0, None
        while len(self.rows["train"]) and not _spent(interval, steps, self.clock.now() - start):
            loss = self.step(derive(self.spec.seed, "dropout", round, self.shard.part, steps))
            self.clock.worked("step")
            steps += 1
            if not math.isfinite(loss):
                break
        finite = loss is None or math.isfinite(loss)
        return Message(
            "train",
            {
                "steps": steps,
                "loss": loss if finite else None,
                "finite": finite,
                "train": len(self.rows["train"]),
            },
            {"weights": flat.pack(self.model)},
        )

    def step(self, key: int) -> float:
        """One full-batch step of Adam on the mean loss of this part's training nodes; returns the loss before it."""
        self.optimiser.zero_grad()
        logits = self.model(self.matrix, self.gathered, key)[self.train_rows]
        loss = self.task.loss(logits, self.train_targets)
        loss.backward()
        self.optimiser.step()
        return loss.item()


def _spent(interval: Steps | Seconds, steps: int, seconds: float) -> bool:
    return steps >= interval.n if isinstance(interval, Steps) else seconds >= interval.s
