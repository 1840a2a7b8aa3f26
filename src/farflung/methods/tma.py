"""TMA, time-based model aggregation (Zhu et al., arXiv 2305.09887): RandomTMA, SuperTMA and PSGD-PA.

Every trainer learns alone on its own part, where edges to other parts do not exist. After each interval, in steps
or in seconds, the server averages the weights. Which of the three methods it is, the partition decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from farflung.methods.aggregate import aggregator, mean_moments, refuse_non_finite
from farflung.methods.base import Patience, Round, Setting, require_time
from farflung.methods.budget import mean_loss, next_interval, rounds_of, seconds_of
from farflung.methods.config import Seconds, Steps
from farflung.methods.soup import greedy_soup
from farflung.nn import flat
from farflung.team import Message, Reply, absent, require_some
from farflung.trainer import part_message

Correct = Callable[[np.ndarray, int], np.ndarray]
"""What the server does to the mean [P] of a round before it hands it out."""


def train(setting: Setting, correct: Correct | None = None) -> None:
    """Train by averaging weights; the results are in `setting.keeper`.

    The mean (or another aggregation) is over the trainers that have training examples and answered with finite
    weights. Bytes for P parameters of 4 bytes: 4 M P at the start, then 8 M P per aggregation (24 M P where moments are
    averaged), and what remote negatives need.
    """
    server = _Server(setting)
    server.greet()
    server.hand_out()
    require_time(setting, "the initial weights were handed out")
    patience = Patience(setting.train.patience)
    round, steps = 0, 0
    while (interval := next_interval(setting.train, steps, setting.team.now())) is not None:
        server.redeal(round)
        setting.team.begin(round, "train")
        setting.journal.expect("train", round, rounds_of(setting.train), seconds_of(interval))
        if server.pool:
            server.fetch_negatives(round)
        replies = server.train(interval, round)
        done, refused = server.aggregate(replies, round)
        if correct is not None:
            server.weights = correct(server.weights, round)
        server.hand_out(reset=refused)
        score = setting.validate(server.weights)
        better = setting.keeper.offer(round, flat.unpack(setting.model, server.weights), score)
        setting.journal.round(
            Round(
                round=round,
                phase="train",
                loss=mean_loss([(reply.scalars["loss"], server.examples[reply.trainer]) for reply in done]),
                val=score,
                steps={reply.trainer: reply.scalars["steps"] for reply in done},
                absent=absent(replies) | refused,
                seconds=setting.team.now(),
                best=better,
            )
        )
        round += 1
        steps += interval.n if isinstance(interval, Steps) else 0
        if patience.over(better):
            break
    if setting.train.soup and round:
        server.soup(round)


class _Server:
    """What the server knows of the trainers."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.team = setting, setting.team
        self.combine = aggregator(setting.train)
        self.averages_moments = setting.train.moments == "average"
        self.weights = flat.pack(setting.model)
        """[P], as last handed out."""
        self.examples: dict[int, int] = {}
        """Training examples of each trainer."""
        self.nodes: dict[int, int] = {}
        """Nodes of each trainer."""
        self.pool = 0
        """Remote nodes that each trainer asks for per round, as negatives; 0: none."""
        self.current: set[int] = set()
        """Trainers that hold the weights, and the parts, last handed out."""
        self.deal = 0
        """How often the parts were dealt out anew."""
        self.alone: list[np.ndarray] = []
        """The trainers' own weights of the last aggregation."""
        self.moments: dict[str, np.ndarray] = {}
        """Mean moments of the trainers' optimisers, where they are averaged."""

    def greet(self) -> None:
        """Learn from everybody what there is."""
        self.team.begin(0, "train")
        hello = require_some(self.team.broadcast(Message("hello")), "hello")
        self._note(hello)
        self.pool = max(reply.scalars.get("pool", 0) for reply in hello)

    def hand_out(self, reset: dict[int, str] | None = None) -> None:
        """Send the weights to all; those in `reset` also forget their optimiser state."""
        forget = reset or {}
        messages = {
            k: Message(
                "weights",
                {"reset": True} if k in forget else {},
                {"weights": self.weights} | ({} if k in forget else self.moments),
            )
            for k in range(self.team.size)
        }
        done = [reply for reply in self.team.call(messages, self.setting.train.deadline) if reply.done]
        self._note(done)
        self.current = {reply.trainer for reply in done if reply.scalars["deal"] == self.deal}

    def train(self, interval: Steps | Seconds, round: int) -> list[Reply]:
        """Let everybody train for an interval; who lacks the weights or its part gets them along.

        (Moments it does not get: one that was away begins with a fresh Adam, which leaves them aside.)
        """
        scalars = {"interval": str(interval), "round": round} | ({"moments": True} if self.averages_moments else {})
        messages = dict.fromkeys(range(self.team.size), Message("train", scalars))
        for k in messages.keys() - self.current:
            part = self._part(k) if self.deal else Message("part")
            messages[k] = Message("train", {**scalars, **part.scalars}, {"weights": self.weights, **part.arrays})
        return self.team.call(messages, self.setting.train.deadline)

    def aggregate(self, replies: list[Reply], round: int) -> tuple[list[Reply], dict[int, str]]:
        """Make one weight vector of those that came; returns the replies that counted, and who was refused and why."""
        done, refused = refuse_non_finite(require_some(replies, f"train, round {round}"), "weights")
        self._note(done)
        self.alone = [reply.arrays["weights"] for reply in done if self.examples[reply.trainer]]
        self.weights = self.combine(
            self.weights,
            [reply.arrays["weights"] for reply in done],
            [self.examples[reply.trainer] for reply in done],
        )
        if self.averages_moments:
            self.moments = mean_moments([reply.arrays for reply in done if self.examples[reply.trainer]])
        return done, refused

    def fetch_negatives(self, round: int) -> None:
        """Every trainer gets rows of `pool` nodes of the other parts, drawn uniformly over all of them.

        Those that lack the weights, or the part of the last deal, neither ask nor give.
        """
        self.team.begin(round, "negatives")
        nodes = [self.nodes[j] if j in self.current else 0 for j in range(self.team.size)]
        ask = {k: Message("wish", {"round": round, "nodes": nodes}) for k in sorted(self.current)}
        take = Message("take")
        self.team.fetch(ask, Message("give"), dict.fromkeys(ask, take), self.setting.train.deadline)
        self.team.begin(round, "train")

    def redeal(self, round: int) -> None:
        """Draw the parts anew where it is time to; trainers keep weights and optimiser."""
        every = self.setting.train.redeal
        if not every or not round or round % every:
            return
        self.deal += 1
        self.team.begin(round, "redeal")
        messages = {k: self._part(k) for k in range(self.team.size)}
        done = [reply for reply in self.team.call(messages, self.setting.train.deadline) if reply.done]
        self._note(done)
        self.current &= {reply.trainer for reply in done}

    def _part(self, k: int) -> Message:
        """The part that trainer `k` has since the last deal."""
        assert self.setting.deal is not None
        return part_message(self.setting.deal(self.deal)[k], self.deal)

    def soup(self, round: int) -> None:
        """Mix the best weights and the trainers' own last ones, as long as validation does not fall."""
        keeper = self.setting.keeper
        self.team.begin(round, "soup")
        scored: list[tuple[np.ndarray, Mapping[str, float | None]]] = []

        def score(vector: np.ndarray) -> float | None:
            scored.append((vector, self.setting.validate(vector)))
            return scored[-1][1].get(keeper.metric)

        mixed, _ = greedy_soup(score, [flat.pack_state(keeper.chosen("best")), *self.alone])
        val = next(found for vector, found in scored if vector is mixed)
        best = keeper.offer(round, flat.unpack(self.setting.model, mixed), val, last=False)
        self.setting.journal.round(
            Round(round=round, phase="soup", loss=None, val=val, seconds=self.team.now(), best=best)
        )

    def _note(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.examples[reply.trainer] = reply.scalars["train"]
            self.nodes[reply.trainer] = reply.scalars["nodes"]
