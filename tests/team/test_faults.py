import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.team.faults import Fault, FaultPlan


def rounds_where(holds, trainer: int, upto: int = 12) -> list[int]:
    return [r for r in range(upto) if holds(trainer, r)]


def test_parse_reads_every_kind():
    plan = FaultPlan.parse("kill:1@5, delay:0@3=2.5s, nan:2@7,kill:1@5-9 , slow:0@2-4=3x, raise:3@0, delay:4@1=inf")
    assert plan == FaultPlan(
        [
            Fault(1, 5, "kill"),
            Fault(0, 3, "delay", seconds=2.5),
            Fault(2, 7, "nan"),
            Fault(1, 5, "kill", until=9),
            Fault(0, 2, "slow", until=4, factor=3.0),
            Fault(3, 0, "raise"),
            Fault(4, 1, "delay", seconds=math.inf),
        ]
    )
    assert str(plan) == ("kill:1@5, delay:0@3=2.5s, nan:2@7, kill:1@5-9, slow:0@2-4=3x, raise:3@0, delay:4@1=infs")


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_text_is_a_plan_without_faults(text):
    plan = FaultPlan.parse(text)
    assert plan == FaultPlan() and str(plan) == ""
    assert not plan.dead(0, 0)
    assert plan.slowdown(0, 0) == 1 and plan.delay(0, 0) == 0


POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@st.composite
def faults(draw):
    what = draw(st.sampled_from(["kill", "delay", "slow", "nan", "raise"]))
    start = draw(st.integers(0, 50))
    return Fault(
        trainer=draw(st.integers(0, 2**31)),
        round=start,
        what=what,
        seconds=draw(POSITIVE | st.just(math.inf)) if what == "delay" else 0.0,
        until=draw(st.none() | st.integers(start + 1, 60)),
        factor=draw(POSITIVE.filter(lambda f: f != 1)) if what == "slow" else 1.0,
    )


@given(st.lists(faults(), max_size=5))
def test_str_reads_back_as_the_same_plan(plan):
    assert FaultPlan.parse(str(FaultPlan(plan))) == FaultPlan(plan)


def test_a_killed_trainer_stays_dead_without_an_end():
    plan = FaultPlan.parse("kill:1@5")
    assert rounds_where(plan.dead, 1) == [5, 6, 7, 8, 9, 10, 11]
    assert rounds_where(plan.dead, 0) == []


def test_deaths_of_one_trainer_may_overlap():
    plan = FaultPlan.parse("kill:1@2-4, kill:1@6-9, kill:1@7-10")
    assert rounds_where(plan.dead, 1) == [2, 3, 6, 7, 8, 9]


def test_a_trainer_may_be_missing_from_the_start():
    plan = FaultPlan.parse("kill:0@0-2, kill:3@0")
    assert plan.dead(3, 0) and plan.dead(0, 0)
    assert rounds_where(plan.dead, 0) == [0, 1]


def test_delays_last_one_round_or_until_and_add_up():
    plan = FaultPlan.parse("delay:0@3=2.5s, delay:0@2-5=1s")
    assert [plan.delay(0, r) for r in range(6)] == [0, 0, 1.0, 3.5, 1.0, 0]
    assert plan.delay(1, 3) == 0


def test_slow_trainers_stay_slow_and_factors_multiply():
    plan = FaultPlan.parse("slow:0@2=2x, slow:0@3-4=1.5")
    assert [plan.slowdown(0, r) for r in range(6)] == [1, 1, 2, 3, 2, 2]


def test_nan_and_raise_last_one_round_or_until():
    plan = FaultPlan.parse("nan:2@7, raise:2@3-5")
    assert rounds_where(plan.poisons, 2) == [7]
    assert rounds_where(plan.raises, 2) == [3, 4]
    assert rounds_where(plan.poisons, 1) == rounds_where(plan.raises, 1) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("explode:1@2", "use one of kill, delay, slow, nan, raise"),
        ("kill:1", "is no fault"),
        ("kill:1@2, ", "is no fault"),
        ("kill:-1@2", "is no fault"),
        ("kill:1@5-5", "ends before it begins"),
        ("kill:1@5=2s", "only delay has seconds"),
        ("delay:1@5=2x", "only delay has seconds"),
        ("slow:1@5=2s", "only slow has a factor"),
        ("delay:1@5", "has seconds > 0"),
        ("delay:1@5=0s", "has seconds > 0"),
        ("slow:1@5", "has a factor > 0"),
        ("slow:1@5=0x", "has a factor > 0"),
        ("slow:1@5=inf", "has a factor > 0"),
    ],
)
def test_wrong_plans_are_one_line_errors(text, message):
    with pytest.raises(InputError, match=message) as caught:
        FaultPlan.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"trainer": -1},
        {"round": -1},
        {"seconds": 1.0},
        {"factor": 2.0},
        {"what": "delay", "seconds": -1.0},
        {"what": "delay", "seconds": math.nan},
        {"what": "slow", "factor": math.nan},
    ],
)
def test_impossible_faults_are_refused(fields):
    with pytest.raises(InputError):
        Fault(**{"trainer": 0, "round": 0, "what": "kill", **fields})


def test_faults_must_be_for_trainers_that_exist():
    plan = FaultPlan.parse("kill:3@0")
    plan.check(4)
    with pytest.raises(InputError, match=r"use 0\.\.2"):
        plan.check(3)
