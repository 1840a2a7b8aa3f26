"""The reference team with trainers that do nothing but keep time and send what they are told."""

from __future__ import annotations

import json
import math
import traceback

import numpy as np
import pytest

from farflung.errors import FarflungError, InputError, TrainerError
from farflung.graph import Graph, choose_split, load
from farflung.nn import ModelConfig
from farflung.nn.optim import OptimConfig
from farflung.partition import Partition, partition, to_arrays
from farflung.team import EVALUATOR, PROFILES, SERVER, FaultPlan, FixedCostClock, LinkProfile, Message, Status
from farflung.team.local import LocalTeam
from farflung.trainer import Trainer, TrainerSpec

SLOW = LinkProfile(name="slow", up_bps=8 * 128, down_bps=8 * 512, latency_s=0.25)
"""128 bytes a second up, 512 down: times are exact in binary."""


class Clerk(Trainer):
    """Works as long and sends as much as it is told; remembers what it heard."""

    built = 0

    def __init__(self, shard, spec, clock) -> None:  # type: ignore[no-untyped-def]
        super().__init__(shard, spec, clock)
        self.heard: list[Message] = []
        type(self).built += 1

    def on_work(self, message: Message) -> Message:
        self.heard.append(message)
        self.clock.worked("unit", message.scalars.get("units", 0))
        size = message.scalars.get("floats", 0)
        return Message("work", {}, {"weights": np.full(size, self.shard.part, np.float32)} if size else {})

    def on_rows(self, message: Message) -> Message:
        """For each peer rows that say whence and whither."""
        self.clock.worked("unit", message.scalars.get("units", 0))
        arrays = {
            f"embeddings/{peer}": np.array([[self.shard.part, peer, i] for i in range(rows)], np.float32)
            for peer, rows in message.scalars["to"].items()
        }
        return Message("rows", {}, arrays)

    def on_count(self, message: Message) -> Message:
        return Message("count", {"nodes": self.shard.num_inner})

    def on_wrong_kind(self, message: Message) -> Message:
        return Message("x", {}, {"rubbish": np.zeros(1)})

    def on_fail(self, message: Message) -> Message:
        raise ZeroDivisionError("no good")


def spec(graph: Graph) -> TrainerSpec:
    return TrainerSpec(
        target=f"{__name__}:Clerk",
        model=ModelConfig(hidden=4),
        optim=OptimConfig(),
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        multilabel=False,
        heads=False,
        seed=0,
        dtype="float32",
    )


def made(parts: int = 3, **options: object) -> tuple[LocalTeam, Partition]:
    graph = choose_split(load("sbm:nodes=60,classes=3,degree=4,homophily=0.8,features=5,seed=1"), "random", 0)
    cut = partition(graph, parts=parts)
    faults = FaultPlan.parse(str(options.pop("faults", "")))
    options = {"link": SLOW, "clock": FixedCostClock({"unit": 0.5}), **options}
    score = lambda weights, depth: {"sum": float(weights.sum())}  # noqa: E731
    return LocalTeam(cut.shards, spec(graph), score=score, faults=faults, **options), cut  # type: ignore[arg-type]


def envelope(verb: str, **scalars: object) -> int:
    return len(json.dumps([verb, scalars]))


def clerk(team: LocalTeam, k: int) -> Clerk:
    trainer = team._trainers[k]
    assert isinstance(trainer, Clerk)
    return trainer


def test_a_call_lasts_as_long_as_the_slowest_plus_the_bytes() -> None:
    team, _ = made()
    assert team.now() == 0
    messages = {k: Message("work", {"units": units, "floats": 64}) for k, units in enumerate([4, 10, 2])}
    replies = team.call(messages)
    assert [reply.seconds for reply in replies] == [2.0, 5.0, 1.0]
    assert [reply.status for reply in replies] == [Status.DONE] * 3
    down = sum(envelope("work", units=units, floats=64) for units in (4, 10, 2))
    up = 256 + envelope("work")
    # Down: the server's uplink carries all; up: each trainer's uplink its own, the server's downlink all.
    expected = (0.25 + down / 128) + 5.0 + (0.25 + max(up / 128, 3 * up / 512))
    assert team.now() == expected
    team.call({1: Message("work", {"units": 2})})
    again = (0.25 + envelope("work", units=2) / 128) + 1.0 + (0.25 + envelope("work") / 128)
    assert team.now() == expected + again


def test_the_server_downlink_is_shared() -> None:
    team, _ = made(link=LinkProfile(name="x", up_bps=math.inf, down_bps=8 * 512, latency_s=0.0))
    before = envelope("work", floats=64) / 512
    team.broadcast(Message("work", {"floats": 64}))
    assert team.now() == before + 3 * (256 + envelope("work")) / 512


def test_without_a_link_only_work_takes_time() -> None:
    team, _ = made(link=PROFILES["none"])
    team.broadcast(Message("work", {"units": 3, "floats": 1000}))
    assert team.now() == 1.5


def test_a_deadline_caps_the_time_and_names_the_late() -> None:
    team, _ = made(link=PROFILES["none"])
    replies = team.call({0: Message("work", {"units": 1}), 2: Message("work", {"units": 100, "floats": 3})}, 2.0)
    assert [(reply.trainer, reply.status) for reply in replies] == [(0, Status.DONE), (2, Status.LATE)]
    assert replies[1].reason == "50 s passed a deadline of 2 s"
    assert replies[1].message is None and replies[1].arrays == {}
    assert team.now() == 2.0
    assert team.ledger.matrix()[2, SERVER] == 12 + envelope("work"), "what came late was sent all the same"
    punctual = team.call({2: Message("work", {"units": 4})}, 2.0)
    assert punctual[0].done and team.now() == 4.0


def test_nobody_waits_for_bytes_that_come_late() -> None:
    team, _ = made()
    team.call({0: Message("work", {"units": 1, "floats": 0}), 1: Message("work", {"units": 9, "floats": 999})}, 1.0)
    down = envelope("work", units=1, floats=0) + envelope("work", units=9, floats=999)
    assert team.now() == (0.25 + down / 128) + 1.0 + (0.25 + envelope("work") / 128)
    assert team.ledger.matrix()[1, SERVER] == 4 * 999 + envelope("work")


def test_a_delay_and_a_slowdown_add_to_the_work() -> None:
    team, _ = made(link=PROFILES["none"], faults="delay:0@1=3s,slow:2@1-2=4x")
    team.begin(1, "p")
    replies = team.broadcast(Message("work", {"units": 2}))
    assert [reply.seconds for reply in replies] == [4.0, 1.0, 4.0]
    team.begin(2, "p")
    assert [reply.seconds for reply in team.broadcast(Message("work", {"units": 2}))] == [1.0, 1.0, 1.0]


def test_one_that_hangs_sends_nothing() -> None:
    team, _ = made(faults="delay:1@0=inf", link=PROFILES["none"])
    replies = team.broadcast(Message("work", {"units": 2, "floats": 10}), 5.0)
    assert [reply.status for reply in replies] == [Status.DONE, Status.LATE, Status.DONE]
    assert team.now() == 5.0
    assert 1 not in team.ledger.sent_by()


def test_evaluation_costs_no_time_and_is_metered() -> None:
    team, _ = made()
    team.begin(7, "p")
    assert team.evaluate(np.ones(10, np.float32)) == {"sum": 10.0}
    assert team.now() == 0
    assert team.ledger.total("evaluation") == 40
    assert team.ledger.matrix()[SERVER, EVALUATOR] == 40
    assert team.ledger.training() == 0
    assert 7 in team.ledger.rounds()


def test_every_byte_is_entered_once_with_round_phase_and_kind() -> None:
    team, _ = made(hand_out=False)
    team.begin(4, "train")
    team.broadcast(Message("work", {"floats": 8}, {"embeddings/3": np.zeros(5, np.float64)}))
    table = team.ledger.table()
    rows = sorted(
        (int(r), str(p), str(k), int(s), int(d), int(b))
        for r, p, k, s, d, b in zip(
            *(table[n] for n in ("round", "phase", "kind", "sender", "receiver", "bytes")), strict=True
        )
    )
    expected = []
    for k in range(3):
        expected += [
            (4, "train", "control", SERVER, k, envelope("work", floats=8)),
            (4, "train", "embeddings", SERVER, k, 40),
            (4, "train", "control", k, SERVER, envelope("work")),
            (4, "train", "weights", k, SERVER, 32),
        ]
    assert rows == sorted(expected)


def test_a_co_located_team_meters_nothing() -> None:
    team, _ = made(parts=1, colocated=True)
    team.call({0: Message("work", {"units": 4, "floats": 100})})
    team.evaluate(np.ones(5))
    assert len(team.ledger) == 0
    assert team.now() == 2.0
    with pytest.raises(FarflungError, match="one trainer"):
        made(parts=2, colocated=True)


def test_setup_is_the_bytes_of_the_shards_and_is_paid_again_on_restart() -> None:
    team, cut = made(faults="kill:1@2-4,kill:2@0-3")
    sizes = [sum(array.nbytes for array in to_arrays(shard).values()) for shard in cut.shards]
    assert by_kind(team, "setup") == {(SERVER, 0): sizes[0], (SERVER, 1): sizes[1]}
    team.broadcast(Message("work"))
    assert by_kind(team, "setup") == {(SERVER, 0): sizes[0], (SERVER, 1): sizes[1]}
    for round in range(6):
        team.begin(round, "p")
        team.broadcast(Message("work"))
        team.broadcast(Message("work"))
    assert by_kind(team, "setup") == {(SERVER, 0): sizes[0], (SERVER, 1): 2 * sizes[1], (SERVER, 2): sizes[2]}
    rows = team.ledger.table()
    mine = rows["kind"] == "setup"
    assert list(zip(rows["round"][mine].tolist(), rows["receiver"][mine].tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (3, 2),
        (4, 1),
    ]


def by_kind(team: LocalTeam, kind: str) -> dict[tuple[int, int], int]:
    rows, sums = team.ledger.table(), {}
    for k, s, d, b in zip(rows["kind"], rows["sender"], rows["receiver"], rows["bytes"], strict=True):
        if k == kind:
            sums[int(s), int(d)] = sums.get((int(s), int(d)), 0) + int(b)
    return sums


def test_shards_that_trainers_open_themselves_are_not_sent() -> None:
    team, _ = made(hand_out=False)
    assert len(team.ledger) == 0


def test_a_dead_trainer_gets_nothing_and_a_restarted_one_has_lost_its_state() -> None:
    team, _ = made(faults="kill:1@1-2")
    team.broadcast(Message("work"))
    old = clerk(team, 1)
    assert len(old.heard) == 1
    received = team.ledger.received_by()[1]
    team.begin(1, "p")
    replies = team.broadcast(Message("work"))
    assert [reply.status for reply in replies] == [Status.DONE, Status.DEAD, Status.DONE]
    assert replies[1].reason == "killed in or before round 1" and replies[1].seconds == 0
    assert team.ledger.received_by()[1] == received
    team.begin(2, "p")
    assert all(reply.done for reply in team.broadcast(Message("work")))
    assert clerk(team, 1) is not old and len(clerk(team, 1).heard) == 1
    assert len(clerk(team, 0).heard) == 3


def test_shards_are_opened_one_at_a_time_when_a_trainer_starts() -> None:
    _, cut = made()
    opened: list[int] = []

    class Watched(list):  # type: ignore[type-arg]
        def __getitem__(self, k):  # type: ignore[no-untyped-def]
            opened.append(k)
            return super().__getitem__(k)

    LocalTeam(
        Watched(cut.shards),
        spec(cut.graph()),
        score=lambda w, depth: {},
        faults=FaultPlan.parse("kill:1@0"),
    )
    assert opened == [0, 2]


def test_an_array_of_no_kind_is_refused_both_ways() -> None:
    team, _ = made()
    with pytest.raises(FarflungError, match="rubbish"):
        team.call({0: Message("work", {}, {"rubbish": np.zeros(1)})})
    with pytest.raises(FarflungError, match="rubbish"):
        team.call({0: Message("wrong-kind")})


def test_an_unknown_verb_and_an_exception_name_the_trainer_at_once() -> None:
    team, _ = made()
    with pytest.raises(TrainerError, match="trainer 2 failed in round 0 on 'dance'"):
        team.call({2: Message("dance")})
    with pytest.raises(TrainerError, match=r"trainer 1 .*ZeroDivisionError: no good") as caught:
        team.call({0: Message("work"), 1: Message("fail")})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].name == "on_fail"


def test_the_plan_must_fit_the_team() -> None:
    with pytest.raises(InputError, match="trainer"):
        made(faults="kill:3@0")


def test_replies_come_in_the_order_of_trainers() -> None:
    team, _ = made()
    replies = team.call({2: Message("work", {"floats": 2}), 0: Message("work", {"floats": 2})})
    assert [reply.trainer for reply in replies] == [0, 2]
    assert [reply.arrays["weights"][0] for reply in replies] == [0, 2]


def test_poison_is_in_the_arrays_alone() -> None:
    team, cut = made(faults="nan:1@0")
    replies = team.broadcast(Message("work", {"floats": 3}))
    assert [bool(np.isnan(reply.arrays["weights"]).all()) for reply in replies] == [False, True, False]
    counted = team.broadcast(Message("count"))
    assert [reply.scalars["nodes"] for reply in counted] == [shard.num_inner for shard in cut.shards]


ROUTES = {0: {"1": 2, "2": 1}, 1: {"0": 3}, 2: {"0": 1, "1": 4}}


def exchanged(team: LocalTeam, deadline: float | None = None, **units: int) -> list[tuple[int, Status]]:
    send = {k: Message("rows", {"to": to, "units": units.get(f"of_{k}", 0)}) for k, to in ROUTES.items()}
    receive = dict.fromkeys(ROUTES, Message("work", {}))
    return [(reply.trainer, reply.status) for reply in team.exchange(send, receive, deadline)]


def test_an_exchange_brings_rows_to_the_right_peers_in_order() -> None:
    team, _ = made(hand_out=False)
    assert exchanged(team) == [(0, Status.DONE), (1, Status.DONE), (2, Status.DONE)]
    for k in range(3):
        (heard,) = clerk(team, k).heard
        assert set(heard.arrays) == {f"embeddings/{s}" for s in ROUTES if str(k) in ROUTES[s]}
        for name, rows in heard.arrays.items():
            sender = int(name.split("/")[1])
            count = ROUTES[sender][str(k)]
            assert rows.tolist() == [[sender, k, i] for i in range(count)]
    assert by_kind(team, "embeddings") == {(s, int(d)): 12 * rows for s, to in ROUTES.items() for d, rows in to.items()}
    assert team.ledger.total("embeddings") == 12 * 11


def test_an_exchange_takes_the_time_of_its_slowest_sender_and_its_fullest_link() -> None:
    team, _ = made()
    exchanged(team, of_1=8)
    asked = sum(envelope("rows", to=to, units=8 if k == 1 else 0) for k, to in ROUTES.items())
    answer = envelope("rows")
    between = max((12 * 5 + answer) / 128, 12 * 6 / 512)  # trainer 2 sends five rows, trainer 1 gets six
    told = envelope("work")
    acknowledged = max(told / 128, 3 * told / 512)
    assert team.now() == (
        (0.25 + asked / 128) + 4.0 + (0.25 + between) + (0.25 + 3 * told / 128) + (0.25 + acknowledged)
    )


def test_rows_that_come_late_are_metered_but_not_handed_on() -> None:
    team, _ = made(hand_out=False)
    assert exchanged(team, 2.0, of_2=100) == [(0, Status.DONE), (1, Status.DONE), (2, Status.LATE)]
    assert set(clerk(team, 0).heard[0].arrays) == {"embeddings/1"}
    assert set(clerk(team, 1).heard[0].arrays) == {"embeddings/0"}
    assert team.ledger.total("embeddings") == 12 * 11


def test_rows_of_a_dead_peer_are_missing_and_rows_for_it_are_lost() -> None:
    team, _ = made(faults="kill:2@0", hand_out=False)
    assert exchanged(team) == [(0, Status.DONE), (1, Status.DONE), (2, Status.DEAD)]
    assert set(clerk(team, 0).heard[0].arrays) == {"embeddings/1"}
    assert set(clerk(team, 1).heard[0].arrays) == {"embeddings/0"}
    assert team.ledger.matrix()[0, 2] == 12, "the sender does not know"


def test_answers_to_an_exchange_come_without_their_rows() -> None:
    team, _ = made()
    replies = team.exchange({0: Message("rows", {"to": {"1": 2}})}, {1: Message("work", {"a": 1}, {})})
    assert [reply.message for reply in replies] == [None]
    (heard,) = clerk(team, 1).heard
    assert heard.scalars == {"a": 1} and list(heard.arrays) == ["embeddings/0"]


def test_a_star_sends_rows_twice() -> None:
    plain, _ = made(link=LinkProfile(name="a", up_bps=8 * 128, down_bps=math.inf, latency_s=0.0), hand_out=False)
    star, _ = made(
        link=LinkProfile(name="b", up_bps=8 * 128, down_bps=math.inf, latency_s=0.0, star=True), hand_out=False
    )
    exchanged(plain)
    exchanged(star)
    # The hub passes on all eleven rows by itself; without it, trainer 2 sends five rows and its answer.
    assert star.now() - plain.now() == pytest.approx((12 * (11 - 5) - envelope("rows")) / 128)
    assert star.ledger == plain.ledger


def test_closing_lets_the_trainers_go() -> None:
    team, _ = made()
    team.close()
    assert team._trainers == {}
