"""The reference team: all trainers in this process, one after another, on a virtual clock."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.errors import FarflungError, TrainerError
from farflung.partition import Shard, setup_bytes
from farflung.seeding import derive
from farflung.team.base import Team
from farflung.team.clock import Clock, WallClock
from farflung.team.faults import FaultPlan
from farflung.team.ledger import Ledger
from farflung.team.link import PROFILES, LinkProfile
from farflung.team.message import EVALUATOR, SERVER, Message, Reply, Status
from farflung.team.timeline import Timeline
from farflung.trainer import Trainer, TrainerSpec

Score = Callable[[np.ndarray, int | None], Mapping[str, float | None]]


@dataclass
class _Traffic:
    """What one exchange puts on the wire: sender, receiver, bytes by kind, and whether anyone waits for them."""

    entries: list[tuple[int, int, dict[str, int], bool]] = field(default_factory=list)

    def add(self, sender: int, receiver: int, sizes: Mapping[str, int], awaited: bool = True) -> None:
        self.entries.append((sender, receiver, dict(sizes), awaited))


class _OwnClock:
    """A trainer's view of the team's clock: slowed down while a fault makes its work take longer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since, self._factor = 0.0, 1.0

    def slow_down(self, factor: float) -> None:
        """From now on, time passes `factor` times as fast as the trainer works."""
        self._since, self._factor = self._clock.now(), factor

    def now(self) -> float:
        now = self._clock.now()
        return now if self._factor == 1 else self._since + (now - self._since) * self._factor

    def worked(self, unit: str, amount: float = 1) -> None:
        self._clock.worked(unit, amount)


class LocalTeam(Team):
    """Trainers that take turns in this process.

    The clock is virtual: a call lasts as long as its slowest trainer, measured alone, plus the time that its bytes
    need on the link profile. Evaluation costs the trainers nothing.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        spec: TrainerSpec,
        *,
        score: Score,
        link: LinkProfile = PROFILES["datacentre"],
        faults: FaultPlan | None = None,
        clock: Clock | None = None,
        colocated: bool = False,
        hand_out: bool = True,
        whole: Callable[[], Shard] | None = None,
    ) -> None:
        """`shards`: one per trainer, opened one at a time. `score`: what `evaluate` answers.

        `colocated`: server, evaluator and the only trainer share a machine, so nothing crosses a network.
        `hand_out`: the shards are sent by the server (metered as `setup`), not opened by the trainers themselves.
        `whole`: gives the uncut graph as one shard, for methods whose server trains too; None: it holds no graph.
        """
        if colocated and len(shards) != 1:
            raise FarflungError("a co-located team has one trainer: give it one shard")
        self.ledger = Ledger()
        self.timeline = Timeline()
        self.size = len(shards)
        self._shards = shards
        self._spec = spec
        self._score = score
        self._link = link
        self._faults = faults or FaultPlan()
        self._faults.check(self.size)
        self._clock = clock or WallClock()
        self._colocated = colocated
        self._hand_out = hand_out
        self._whole = whole
        self._own: Trainer | None = None
        self._now = 0.0
        self._trainers: dict[int, Trainer] = {}
        self._clocks: dict[int, _OwnClock] = {}
        for k in range(self.size):
            if not self._faults.dead(k, 0):
                self._start(k)

    def _start(self, k: int) -> None:
        shard = self._shards[k]
        if self._hand_out and not self._colocated:
            self.ledger.add(self.round, self.phase, "setup", SERVER, k, setup_bytes(shard))
        self._clocks[k] = _OwnClock(self._clock)
        self._trainers[k] = self._spec.build_trainer(shard, self._clocks[k])

    def begin(self, round: int, phase: str) -> None:
        super().begin(round, phase)
        for k in [k for k in self._trainers if self._faults.dead(k, round)]:
            del self._trainers[k]

    def now(self) -> float:
        return self._now

    def close(self) -> None:
        self._trainers.clear()
        self._own = None

    def call(self, messages: Mapping[int, Message], deadline: float | None = None) -> list[Reply]:
        replies = self._deliver(messages, deadline)
        up = _Traffic()
        for reply in replies:
            if reply.message is not None:
                up.add(reply.trainer, SERVER, reply.message.bytes_by_kind(), awaited=reply.done)
        self._carry(up)
        return [_without_payload(reply) if reply.status is Status.LATE else reply for reply in replies]

    def exchange(
        self,
        send: Mapping[int, Message],
        receive: Mapping[int, Message],
        deadline: float | None = None,
    ) -> list[Reply]:
        sent = self._deliver(send, deadline)
        rows: dict[int, dict[str, np.ndarray]] = {k: {} for k in receive}
        between = _Traffic()
        for reply in sent:
            sizes: dict[int, dict[str, int]] = {}
            for name, array in reply.arrays.items():
                kind, peer, *rest = name.split("/")
                to = sizes.setdefault(int(peer), {})
                to[kind] = to.get(kind, 0) + array.nbytes
                if reply.done and int(peer) in rows:
                    rows[int(peer)]["/".join([kind, str(reply.trainer), *rest])] = array
            for peer_id, by_kind in sizes.items():
                between.add(reply.trainer, peer_id, by_kind, awaited=reply.done)
            _acknowledge(between, reply)
        self._carry(between)
        received = self._deliver(
            {k: Message(m.verb, m.scalars, {**m.arrays, **rows[k]}) for k, m in receive.items()},
            deadline,
            from_peers=True,
        )
        up = _Traffic()
        for reply in received:
            _acknowledge(up, reply)
        self._carry(up)
        return [_without_payload(reply) for reply in sent]

    def evaluate(self, weights: np.ndarray, depth: int | None = None) -> Mapping[str, float | None]:
        if not self._colocated:
            self.ledger.add(self.round, self.phase, "evaluation", SERVER, EVALUATOR, weights.nbytes)
        return self._score(weights, depth)

    def at_server(self, message: Message) -> Message:
        if self._own is None:
            self._own = self._server_trainer()
        start = self._clock.now()
        try:
            answer = self._own.handle(message)
        except Exception as error:
            raise TrainerError(
                f"the server failed in round {self.round} on '{message.verb}': {type(error).__name__}: {error}"
            ) from error
        self._work(self._clock.now() - start)
        return answer

    def _server_trainer(self) -> Trainer:
        """A trainer on the whole graph beside the server; every part goes there, once."""
        if self._whole is None:
            raise FarflungError("the server of this team holds no graph: give the team the whole of it")
        if not self._colocated:
            sizes = np.array([setup_bytes(shard) for shard in self._shards], dtype=np.int64)
            self.ledger.add(self.round, self.phase, "setup", np.arange(self.size), np.full(self.size, SERVER), sizes)
        spec = self._spec.model_copy(update={"seed": derive(self._spec.seed, "server")})
        return spec.build_trainer(self._whole(), self._clock)

    def _deliver(
        self, messages: Mapping[int, Message], deadline: float | None, from_peers: bool = False
    ) -> list[Reply]:
        """Hand messages to the trainers and move the clock on by the slowest of them.

        Replies that come after the deadline are LATE but still hold their message (it was sent).
        `from_peers`: the arrays came from peers and are metered already.
        """
        down = _Traffic()
        for k in messages:
            if k not in self._trainers and not self._faults.dead(k, self.round):
                self._start(k)
        for k, message in messages.items():
            if not self._faults.dead(k, self.round):
                sizes = message.bytes_by_kind()
                down.add(SERVER, k, {"control": sizes["control"]} if from_peers else sizes)
        self._carry(down)
        replies = [self._ask(k, messages[k], deadline) for k in sorted(messages)]
        waits = [reply.seconds for reply in replies if reply.status is not Status.DEAD]
        slowest = max(waits, default=0.0)
        self._work(slowest if deadline is None else min(slowest, deadline))
        return replies

    def _work(self, seconds: float) -> None:
        """Everybody waits for the slowest."""
        self.timeline.work(self.round, seconds)
        self._now += seconds

    def _ask(self, k: int, message: Message, deadline: float | None) -> Reply:
        if self._faults.dead(k, self.round):
            return Reply(k, Status.DEAD, reason=f"killed in or before round {self.round}")
        clock = self._clocks[k]
        clock.slow_down(self._faults.slowdown(k, self.round))
        start = clock.now()
        try:
            if self._faults.raises(k, self.round):
                raise RuntimeError(f"fault plan: trainer {k} raises in round {self.round}")
            answer = self._trainers[k].handle(message)
        except Exception as error:
            raise TrainerError(
                f"trainer {k} failed in round {self.round} on '{message.verb}': {type(error).__name__}: {error}"
            ) from error
        seconds = clock.now() - start + self._faults.delay(k, self.round)
        if self._faults.poisons(k, self.round):
            answer = _poisoned(answer)
        if deadline is not None and seconds > deadline:
            sent = None if math.isinf(seconds) else answer  # one that hangs sends nothing
            return Reply(k, Status.LATE, seconds, sent, f"{seconds:.3g} s passed a deadline of {deadline:g} s")
        return Reply(k, Status.DONE, seconds, answer)

    def _carry(self, traffic: _Traffic) -> None:
        """Meter what is on the wire and move the clock on by the time that what is awaited needs."""
        if self._colocated or not traffic.entries:
            return
        senders, receivers, totals = [], [], []
        by_kind: dict[str, list[tuple[int, int, int, bool]]] = {}
        for sender, receiver, sizes, awaited in traffic.entries:
            senders.append(sender)
            receivers.append(receiver)
            totals.append(sum(sizes.values()) if awaited else 0)
            for kind, size in sizes.items():
                by_kind.setdefault(kind, []).append((sender, receiver, size, awaited))
        begin, late = len(self.ledger), []
        for kind, entries in by_kind.items():
            columns = np.array(entries, dtype=np.int64).T
            late += (len(self.ledger) + np.flatnonzero(columns[3] == 0)).tolist()
            self.ledger.add(self.round, self.phase, kind, columns[0], columns[1], columns[2])
        self.timeline.depart(self.round, begin, len(self.ledger), late)
        self._now += self._link.seconds(np.array(senders), np.array(receivers), np.array(totals))


def _acknowledge(traffic: _Traffic, reply: Reply) -> None:
    """The envelope of an answer whose arrays, if any, went to peers."""
    if reply.message is not None:
        traffic.add(reply.trainer, SERVER, {"control": reply.message.bytes_by_kind()["control"]}, awaited=reply.done)


def _without_payload(reply: Reply) -> Reply:
    return Reply(reply.trainer, reply.status, reply.seconds, None, reply.reason)


def _poisoned(message: Message) -> Message:
    """A copy whose floating-point arrays are all NaN."""
    arrays = {
        name: np.full_like(array, np.nan) if array.dtype.kind == "f" else copy.copy(array)
        for name, array in message.arrays.items()
    }
    return Message(message.verb, message.scalars, arrays)
