import itertools

import pytest

from farflung.errors import InputError
from farflung.team.clock import Clock, FixedCostClock, WallClock


def test_fixed_cost_clock_adds_up_what_was_worked():
    clock = FixedCostClock({"step": 0.5, "load": 3.0}, default=0.25)
    assert clock.now() == 0.0
    clock.worked("load")
    clock.worked("step", 4)
    clock.worked("something else", 2)
    assert clock.now() == 3.0 + 4 * 0.5 + 2 * 0.25


def test_fixed_cost_clock_does_not_depend_on_the_order_of_work():
    times = set()
    for order in itertools.permutations(["a", "b", "c", "a"]):
        clock = FixedCostClock({"a": 0.1, "b": 0.2, "c": 0.3})
        for unit in order:
            clock.worked(unit)
        times.add(clock.now())
    assert len(times) == 1


def test_unlisted_work_is_free_by_default():
    clock = FixedCostClock({})
    clock.worked("step", 1e9)
    assert clock.now() == 0.0


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_impossible_costs_and_amounts_are_refused(cost):
    with pytest.raises(InputError, match="'step' cannot cost"):
        FixedCostClock({"step": cost})
    with pytest.raises(InputError, match="cannot have been worked"):
        FixedCostClock({}).worked("step", cost)


def test_wall_clock_never_runs_backwards_and_ignores_work():
    clock: Clock = WallClock()
    first = clock.now()
    clock.worked("step", 1e12)
    assert 0 <= clock.now() - first < 1e9
