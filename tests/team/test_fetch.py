"""Pulling remote rows, with trainers that ask for feature rows by number and keep what they get."""

from __future__ import annotations

import numpy as np
import pytest
from test_local import SLOW, by_kind, envelope, spec

from farflung.errors import FarflungError, TrainerError
from farflung.graph import choose_split, load
from farflung.partition import Partition, partition
from farflung.team import PROFILES, SERVER, FaultPlan, FixedCostClock, Message, Reply, Status
from farflung.team.local import LocalTeam
from farflung.trainer import Trainer

WIDTH = 5
ID, ROW = 8, 4 * WIDTH
"""Bytes of a row number and of a row."""


class Reader(Trainer):
    """Asks for the rows that it is told to ask for, and gives half a second to each row that it is asked for."""

    def __init__(self, shard, spec, clock) -> None:  # type: ignore[no-untyped-def]
        super().__init__(shard, spec, clock)
        self.verbs: list[str] = []
        self.asked: dict[str, np.ndarray] = {}
        self.got: dict[str, np.ndarray] | None = None

    def handle(self, message: Message) -> Message:
        self.verbs.append(message.verb)
        return super().handle(message)

    def on_ask(self, message: Message) -> Message:
        self.clock.worked("unit", message.scalars.get("units", 0))
        want = message.scalars["want"].items()
        return Message("ask", {}, {f"features/{owner}": np.array(rows, np.int64) for owner, rows in want})

    def on_requested(self, message: Message) -> Message:
        self.asked = dict(message.arrays)
        return Message("requested")

    def on_give(self, message: Message) -> Message:
        self.clock.worked("unit", sum(len(rows) for rows in self.asked.values()))
        return Message("give", {}, {name: self.shard.x[rows] for name, rows in self.asked.items()})

    def on_refuse(self, message: Message) -> Message:
        raise ZeroDivisionError("no row for you")

    def on_take(self, message: Message) -> Message:
        self.got = dict(message.arrays)
        return Message("take")


def made(link: str = "none", faults: str = "") -> tuple[LocalTeam, Partition]:
    graph = choose_split(load("sbm:nodes=60,classes=3,degree=4,homophily=0.8,features=5,seed=1"), "random", 0)
    cut = partition(graph, parts=3)
    team = LocalTeam(
        cut.shards,
        spec(graph).model_copy(update={"target": f"{__name__}:Reader"}),
        score=lambda weights, depth: {},
        link=SLOW if link == "slow" else PROFILES[link],
        faults=FaultPlan.parse(faults),
        clock=FixedCostClock({"unit": 0.5}),
        hand_out=False,
    )
    return team, cut


def reader(team: LocalTeam, k: int) -> Reader:
    trainer = team._trainers[k]
    assert isinstance(trainer, Reader)
    return trainer


WANTS: dict[int, dict[str, list[int]]] = {0: {"1": [4, 0, 4], "2": [7]}, 1: {"0": [1, 2]}, 2: {"0": [3], "1": []}}
"""What each trainer wants, by owner: rows in any order, some twice, some by two askers, some none."""


def fetched(team: LocalTeam, wants=WANTS, deadline: float | None = None, **units: int) -> list[tuple[int, Status]]:  # type: ignore[no-untyped-def]
    ask = {k: Message("ask", {"want": want, "units": units.get(f"of_{k}", 0)}) for k, want in wants.items()}
    replies = team.fetch(ask, Message("give"), dict.fromkeys(wants, Message("take")), deadline)
    assert all(reply.message is None for reply in replies)
    return [(reply.trainer, reply.status) for reply in replies]


def rows_of(cut: Partition, wants: dict[str, list[int]]) -> dict[str, list[list[float]]]:
    return {f"features/{owner}": cut.shards[int(owner)].x[rows].tolist() for owner, rows in wants.items()}


def got(team: LocalTeam, k: int) -> dict[str, list[list[float]]] | None:
    found = reader(team, k).got
    return None if found is None else {name: rows.tolist() for name, rows in found.items()}


def pairs(wants: dict[int, dict[str, list[int]]]) -> dict[tuple[int, int], int]:
    """Bytes by (sender, receiver): numbers from asker to owner, rows from owner to asker."""
    sizes: dict[tuple[int, int], int] = {}
    for asker, want in wants.items():
        for owner, rows in want.items():
            for pair, size in (((asker, int(owner)), ID), ((int(owner), asker), ROW)):
                sizes[pair] = sizes.get(pair, 0) + size * len(rows)
    return sizes


def test_every_asker_gets_its_rows_in_the_order_it_asked() -> None:
    team, cut = made()
    assert fetched(team) == [(k, Status.DONE) for k in range(3)]
    for k, want in WANTS.items():
        assert got(team, k) == rows_of(cut, want)
    assert reader(team, 2).got["features/1"].shape == (0, WIDTH)
    assert [reader(team, k).verbs for k in range(3)] == 3 * [["ask", "requested", "give", "take"]]


def test_numbers_and_rows_are_metered_once_at_their_sender() -> None:
    team, _ = made()
    team.begin(3, "sampling")
    fetched(team)
    assert by_kind(team, "features") == pairs(WANTS)
    assert team.ledger.total("features") == (ID + ROW) * 7
    assert set(team.ledger.by_kind()) == {"features", "control"}
    assert team.ledger.rounds().keys() == {3}
    told = [envelope("ask", want=WANTS[k], units=0) for k in range(3)]
    others = sum(envelope(verb) for verb in ("requested", "give", "take"))
    assert sum(by_kind(team, "control").values()) == sum(told) + 3 * envelope("ask") + 6 * others
    assert all(SERVER in pair for pair in by_kind(team, "control"))


def test_a_fetch_takes_the_time_of_its_steps_and_their_fullest_links() -> None:
    team, cut = made("slow")
    want = {"1": [4, 0, 4], "2": [7]}
    fetched(team, {0: want}, of_0=8)
    assert got(team, 0) == rows_of(cut, want)
    asking = (0.25 + envelope("ask", want=want, units=8) / 128) + 4.0 + (0.25 + (4 * ID + envelope("ask")) / 128)
    # The server's uplink carries three messages; each trainer answers by its own.
    requested = (0.25 + 3 * envelope("requested") / 128) + (0.25 + envelope("requested") / 128)
    giving = (0.25 + 3 * envelope("give") / 128) + 1.5 + (0.25 + (3 * ROW + envelope("give")) / 128)
    taking = 2 * (0.25 + envelope("take") / 128)
    assert team.now() == asking + requested + giving + taking


def test_one_asker_alone_takes() -> None:
    team, cut = made()
    assert fetched(team, {1: {"2": [5, 6]}}) == [(k, Status.DONE) for k in range(3)]
    assert by_kind(team, "features") == {(1, 2): 2 * ID, (2, 1): 2 * ROW}
    assert got(team, 1) == rows_of(cut, {"2": [5, 6]})
    assert got(team, 0) is None and got(team, 2) is None
    assert reader(team, 0).asked == {}


def test_another_fetch_gives_what_is_asked_then() -> None:
    team, cut = made()
    fetched(team)
    fetched(team, {0: {"2": [1]}})
    assert got(team, 0) == rows_of(cut, {"2": [1]})
    assert got(team, 1) == rows_of(cut, WANTS[1]), "who did not ask again keeps what it has"


def test_rows_of_a_dead_owner_are_missing_and_its_requests_are_lost() -> None:
    team, cut = made(faults="kill:2@0")
    assert fetched(team) == [(0, Status.DONE), (1, Status.DONE), (2, Status.DEAD)]
    assert got(team, 0) == rows_of(cut, {"1": WANTS[0]["1"]})
    assert got(team, 1) == rows_of(cut, WANTS[1])
    # The asker does not know; nothing comes back.
    assert by_kind(team, "features") == {
        (0, 1): 3 * ID + 2 * ROW,
        (1, 0): 3 * ROW + 2 * ID,
        (0, 2): ID,
    }


def test_an_asker_that_comes_late_is_left_out_but_gives() -> None:
    team, cut = made()
    assert fetched(team, deadline=3.0, of_0=100) == [(0, Status.LATE), (1, Status.DONE), (2, Status.DONE)]
    assert got(team, 0) is None
    assert got(team, 1) == rows_of(cut, WANTS[1])
    assert got(team, 2) == rows_of(cut, WANTS[2])
    answered = pairs({1: WANTS[1], 2: WANTS[2]})
    late = {(0, 1): 3 * ID, (0, 2): ID}  # sent all the same
    assert by_kind(team, "features") == {
        pair: answered.get(pair, 0) + late.get(pair, 0) for pair in answered.keys() | late.keys()
    }
    assert team.now() == 3.0 + 1.5


def test_rows_that_come_late_are_metered_but_not_taken() -> None:
    team, cut = made()
    wants = {0: {"1": [1, 2, 3, 4, 5, 6], "2": [0]}}
    assert fetched(team, wants, deadline=2.0) == [(0, Status.DONE), (1, Status.LATE), (2, Status.DONE)]
    assert got(team, 0) == rows_of(cut, {"2": [0]})
    assert by_kind(team, "features") == pairs(wants)
    assert team.now() == 2.0


def test_where_nobody_asks_in_time_nobody_gives() -> None:
    team, _ = made(faults="kill:2@0")
    replies = fetched(team, {0: WANTS[0], 2: WANTS[2]}, deadline=1.0, of_0=9)
    assert replies == [(0, Status.LATE), (2, Status.DEAD)]
    assert "give" not in reader(team, 1).verbs


def test_a_reply_says_why_somebody_is_missing() -> None:
    team, _ = made(faults="kill:2@0")
    late, done, dead = team.fetch(
        {0: Message("ask", {"want": {}, "units": 9}), 1: Message("ask", {"want": {}})}, Message("give"), {}, 1.0
    )
    assert isinstance(late, Reply) and "deadline of 1 s" in late.reason
    assert done.reason == "" and "killed" in dead.reason


def test_an_owner_that_raises_is_named() -> None:
    team, _ = made()
    with pytest.raises(TrainerError, match=r"trainer 0 failed in round 0 on 'refuse': ZeroDivisionError"):
        team.fetch({1: Message("ask", {"want": WANTS[1]})}, Message("refuse"), {1: Message("take")})


def test_rows_of_no_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    team, _ = made()
    monkeypatch.setattr(Reader, "on_give", lambda self, _: Message("give", {}, {"rubbish/1": np.zeros(1)}))
    with pytest.raises(FarflungError, match="rubbish"):
        fetched(team)
