"""How many rounds and steps a budget buys, on a clock of fixed costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig import Rig, blocks, rig

from farflung.errors import InputError
from farflung.methods.config import Seconds, parse_budget
from farflung.team import PROFILES, LinkProfile


def trained(method: str = "tma", **options: object) -> Rig:
    """A step costs 1/8 s, the link nothing."""
    return rig(blocks(), method, **{"parts": 3, **options}).train()


def steps_of(run: Rig) -> list[dict[int, int]]:
    return [dict(record.steps) for record in run.history]


@pytest.mark.parametrize(
    ("steps", "interval", "rounds"), [(23, 5, [5, 5, 5, 5, 3]), (4, 10, [4]), (10, 5, [5, 5]), (1, 1, [1])]
)
def test_steps_that_the_interval_does_not_divide(steps: int, interval: int, rounds: list[int]) -> None:
    run = trained(steps=steps, interval=interval)
    assert steps_of(run) == [dict.fromkeys(range(3), n) for n in rounds]
    assert [record.round for record in run.history] == list(range(len(rounds)))
    assert run.keeper.rounds == len(rounds)
    assert run.team.now() == steps / 8
    assert [record.seconds for record in run.history] == [n / 8 for n in np.cumsum(rounds)]
    assert [expected[2] for expected in run.diary.expected] == [len(rounds)] * len(rounds)


def test_an_interval_in_seconds_finishes_its_step() -> None:
    run = trained(interval="0.3s", time_limit="3s")
    # A step lasts 1/8 s: the third one passes 0.3 s.
    assert steps_of(run) == [dict.fromkeys(range(3), 3)] * 8
    assert [record.seconds for record in run.history] == [0.375 * (i + 1) for i in range(8)]


def test_a_time_limit_cuts_the_last_interval() -> None:
    run = trained(interval="1s", time_limit="2.5s")
    assert steps_of(run) == [dict.fromkeys(range(3), n) for n in (8, 8, 4)]
    assert run.team.now() == 2.5
    assert [expected[3] for expected in run.diary.expected] == [1.0, 1.0, 0.5]


def test_an_interval_longer_than_the_time_limit() -> None:
    run = trained(interval="60s", time_limit="2s")
    assert steps_of(run) == [dict.fromkeys(range(3), 16)]


def test_steps_do_not_end_intervals_in_seconds() -> None:
    assert len(trained(interval="1s", time_limit="3s", steps=1).history) == 3


def test_a_time_limit_ends_intervals_in_steps_too() -> None:
    run = trained(interval=4, steps=100, time_limit="1.75s")
    assert steps_of(run) == [dict.fromkeys(range(3), 4)] * 4


def test_trainers_without_training_nodes_do_not_hold_up_an_interval_in_seconds() -> None:
    graph = blocks()
    run = rig(
        graph,
        "tma",
        parts=2,
        assignment=np.where(graph.split.train, 0, 1),
        interval="1s",
        time_limit="2s",
    ).train()
    assert steps_of(run) == [{0: 8, 1: 0}] * 2


def test_the_link_takes_its_share_of_the_time() -> None:
    link = LinkProfile(name="l", up_bps=np.inf, down_bps=np.inf, latency_s=0.125)
    run = rig(blocks(), "tma", parts=2, link=link, interval="1s", time_limit="4s").train()
    # The start has four messages, a round of 8 steps four more: 0.5 + 1.5 + 1.5, then half a second is left.
    assert [record.seconds for record in run.history] == [2.0, 3.5, 4.5]
    assert steps_of(run) == [{0: 8, 1: 8}, {0: 8, 1: 8}, {0: 4, 1: 4}]


@pytest.mark.parametrize("method", ["tma", "centralised"])
def test_an_interval_in_seconds_wants_a_time_limit(method: str) -> None:
    with pytest.raises(InputError, match=r"^[^\n]*2s[^\n]*time limit[^\n]*$"):
        trained(method, interval="2s")


def test_a_time_limit_that_the_start_alone_uses_up_is_an_error() -> None:
    """On a slow link handing out the weights takes longer than there is: nothing would be trained."""
    with pytest.raises(InputError, match=r"^[^\n]*time limit[^\n]*0\.01[^\n]*$"):
        trained(link=PROFILES["proximity"], time_limit="0.01s")


@pytest.mark.parametrize("name", ["time_limit", "deadline"])
@pytest.mark.parametrize("value", [0.0, -1.0, "-1s", "0s", "5steps", float("nan")])
def test_times_are_above_nought(name: str, value: object) -> None:
    with pytest.raises((InputError, ValueError)):
        trained(**{name: value})


def test_a_slow_trainer_makes_fewer_steps_in_an_interval_in_seconds() -> None:
    """The point of time-based aggregation: nobody waits for the slow one."""
    run = trained(interval="1s", time_limit="2s", faults="slow:1@0=2x")
    assert steps_of(run) == [{0: 8, 1: 4, 2: 8}] * 2
    assert run.team.now() == 2.0


def test_a_slow_trainer_holds_up_intervals_in_steps() -> None:
    run = trained(interval=4, steps=8, faults="slow:1@1=2x")
    assert steps_of(run) == [dict.fromkeys(range(3), 4)] * 2
    assert [record.seconds for record in run.history] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("steps", "layers", "shares"), [(7, 2, [4, 3]), (8, 2, [4, 4]), (8, 3, [3, 3, 2]), (3, 3, [1, 1, 1]), (5, 1, [5])]
)
def test_lazy_training_shares_its_steps_among_the_layers(steps: int, layers: int, shares: list[int]) -> None:
    run = trained("lazy", steps=steps, layers=layers)
    phases = [record.phase for record in run.history]
    assert [phases.count(f"layer{i}") for i in range(layers)] == shares
    assert phases == sorted(phases)
    assert [record.round for record in run.history] == list(range(steps))
    assert run.keeper.rounds == steps
    assert all(record.steps == {0: 1, 1: 1, 2: 1} for record in run.history)


@pytest.mark.parametrize("keep", ["best", "last"])
def test_lazy_training_with_fewer_steps_than_layers_leaves_the_rest_as_they_began(keep: str) -> None:
    run = trained("lazy", steps=1, layers=3, keep=keep, dtype="float64")
    assert len(run.history) == 1
    chosen = run.keeper.chosen(keep)
    fresh = rig(blocks(), "lazy", layers=3, dtype="float64").setting.model.state_dict()
    assert not np.array_equal(chosen["stack.0.conv.bias"], fresh["stack.0.conv.bias"])
    for name in fresh:
        if not name.startswith("stack.0."):
            assert np.array_equal(chosen[name], fresh[name])
    assert fresh.keys() == chosen.keys()


def test_lazy_training_shares_its_time_among_the_layers() -> None:
    run = trained("lazy", steps=1000, layers=2, time_limit="2s")
    phases = [record.phase for record in run.history]
    assert phases.count("layer0") == 8 and phases.count("layer1") == 8
    assert run.team.now() == 2.0


def test_exchanges_count_against_the_time_of_lazy_training() -> None:
    link = LinkProfile(name="slow", up_bps=math.inf, down_bps=math.inf, latency_s=0.25)
    run = trained("lazy", steps=1000, layers=2, time_limit="8s", link=link)
    by_phase = {phase: [r.seconds for r in run.history if r.phase == phase] for phase in ("layer0", "layer1")}
    # A layer stops with the first round that ends at or after its share of the time; scoring it comes on top.
    assert by_phase["layer0"][-2] < 4 <= by_phase["layer0"][-1] < 5
    assert by_phase["layer1"][-2] < 8 <= by_phase["layer1"][-1] < 9


def test_an_exchange_that_uses_up_the_time_is_an_error() -> None:
    with pytest.raises(InputError, match=r"time limit of 0\.01 s had passed when features had been exchanged"):
        trained("lazy", link=PROFILES["proximity"], time_limit="0.01s")


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_budget_of_seconds_reads_back_exactly(seconds: float) -> None:
    assert parse_budget(str(Seconds(s=seconds))) == Seconds(s=seconds)


def test_budgets_with_exponents_and_round_numbers() -> None:
    assert parse_budget("3e-05s") == Seconds(s=3e-5) and parse_budget("300h") == Seconds(s=1.08e6)
    assert str(Seconds(s=2)) == "2s" and str(parse_budget("50steps")) == "50steps"


def test_lazy_training_makes_a_round_of_each_layer_whatever_the_time() -> None:
    run = trained("lazy", steps=1000, layers=3, time_limit="0.001s")
    assert [record.phase for record in run.history] == ["layer0", "layer1", "layer2"]


def test_lazy_steps_end_before_its_time() -> None:
    assert len(trained("lazy", steps=6, layers=2, time_limit="100s").history) == 6


def test_gathering_and_embedding_take_their_time() -> None:
    run = trained("lazy", steps=4, layers=2, costs={"step": 1, "gather": 16, "embed": 64})
    assert run.team.now() == 4 * 1 + 2 * 16 + 64
