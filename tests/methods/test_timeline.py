"""A run's clock told again: on its own link to the bit, on another as if it had been trained there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rig import Rig, blocks, digits, rig

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.team import PROFILES, Ledger, parse_profile
from farflung.team.timeline import Timeline

WAN, EDGE = PROFILES["wan"], PROFILES["edge"]
COSTS = {"step": 0.25, "gather": 0.5, "layer": 0.125}

RUNS: dict[str, tuple[Callable[[], Graph], str, dict[str, object]]] = {
    "tma": (digits, "tma", {"steps": 20}),
    "in seconds": (blocks, "tma", {"interval": "2s", "time_limit": "9s"}),
    "late and dead": (digits, "tma", {"steps": 30, "deadline": 3.5, "faults": "delay:1@1=9s,kill:2@2,delay:0@2=inf"}),
    "moments and new parts": (digits, "tma", {"steps": 30, "moments": "average", "redeal": 1}),
    "fetched negatives": (blocks, "tma", {"steps": 20, "links": {"negatives": "global", "pool": 16}}),
    "llcg": (digits, "llcg", {"steps": 20}),
    "lazy": (digits, "lazy", {"steps": 12}),
    "lazy with a return": (digits, "lazy", {"steps": 12, "deadline": 5.0, "faults": "kill:1@2-3,delay:2@4=9s"}),
    "synchronous": (digits, "synchronous", {"steps": 20}),
}


def trained(name: str, link: str) -> Rig:
    graph, method, options = RUNS[name]
    return rig(graph(), method, link=PROFILES[link], costs=COSTS, **options).train()  # type: ignore[arg-type]


def told(run: Rig, link: str) -> list[float]:
    clock = run.team.timeline.replay(run.ledger, PROFILES[link])
    return run.team.timeline.at_ends(clock, [record.round for record in run.history])


@pytest.mark.parametrize("name", RUNS)
def test_on_its_own_link_it_is_the_clock_of_the_run(name: str) -> None:
    run = trained(name, "edge")
    seconds = [record.seconds for record in run.history]
    assert seconds[-1] > 1 and told(run, "edge") == seconds
    assert run.team.timeline.replay(run.ledger, EDGE)[-1] == run.team.now()


@pytest.mark.parametrize("name", [name for name in RUNS if name != "in seconds"])
def test_on_another_link_it_is_the_run_there(name: str) -> None:
    there = trained(name, "wan")
    assert told(trained(name, "proximity"), "wan") == [record.seconds for record in there.history]
    assert told(there, "none") == [record.seconds for record in trained(name, "none").history]


def test_it_is_kept_on_disk(tmp_path: Path) -> None:
    run = trained("late and dead", "wan")
    run.team.timeline.save(tmp_path / "timeline.parquet")
    run.ledger.save(tmp_path / "ledger.parquet")
    again = Timeline.load(tmp_path / "timeline.parquet")
    ledger = Ledger.load(tmp_path / "ledger.parquet")
    assert len(again) == len(run.team.timeline) > 0
    assert (again.replay(ledger, EDGE) == run.team.timeline.replay(run.ledger, EDGE)).all()


def test_what_is_no_timeline_is_refused(tmp_path: Path) -> None:
    run = trained("tma", "wan")
    with pytest.raises(InputError, match=r"no timeline.*train it again"):
        Timeline.load(tmp_path / "timeline.parquet")
    (tmp_path / "broken").write_bytes(b"PAR1 or not")
    with pytest.raises(InputError, match="Parquet"):
        Timeline.load(tmp_path / "broken")
    run.ledger.save(tmp_path / "ledger.parquet")
    with pytest.raises(InputError, match="no timeline of format"):
        Timeline.load(tmp_path / "ledger.parquet")
    with pytest.raises(InputError, match="not of one run"):
        run.team.timeline.replay(Ledger(), WAN)


def test_a_timeline_without_events() -> None:
    empty = Timeline()
    clock = empty.replay(Ledger(), parse_profile("wan"))
    assert clock.shape == (0,) and empty.at_ends(clock, [0, 1]) == [0.0, 0.0]
    empty.work(3, 2.5)
    clock = empty.replay(Ledger(), WAN)
    assert empty.at_ends(clock, [2, 3, 4]) == [0.0, 2.5, 2.5] and np.isfinite(clock).all()
