"""Means, sums and other aggregations of weight vectors, and what is kept out of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given as draw
from hypothesis import strategies as st
from pydantic import ValidationError

from farflung.methods.aggregate import Aggregator, aggregator, mean_moments, refuse_non_finite, summed, weighted_mean
from farflung.methods.config import TrainConfig
from farflung.team import Message, Reply, Status

AGGREGATIONS = ["mean", "examples", "median", "trimmed-mean", "nesterov"]


def vectors(count: int, dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=50) * 10.0 ** rng.integers(-6, 6, 50)).astype(dtype) for _ in range(count)]


def rule(name: str, **options: object) -> Aggregator:
    return aggregator(TrainConfig.model_validate({"aggregation": name, **options}))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", range(1, 9))
def test_the_mean_of_equals_is_the_identity(count: int, dtype: str) -> None:
    for seed in range(10):
        (vector,) = vectors(1, dtype, seed)
        assert np.array_equal(weighted_mean([vector] * count, [1.0] * count), vector)


def test_the_mean_is_rounded_once() -> None:
    """Against exact fractions: the float32 nearest to the true mean."""
    given = vectors(3, "float32")
    found = weighted_mean(given, [1.0, 1.0, 1.0])
    assert found.dtype == np.float32
    for i, value in enumerate(found):
        exact = sum(Fraction(float(v[i])) for v in given) / 3
        assert value == np.float32(float(exact))


def test_shares_weigh_and_nothing_weighs_nothing() -> None:
    a, b, c = np.array([1.0, 2.0]), np.array([4.0, 8.0]), np.array([np.nan, 1e300])
    assert weighted_mean([a, b, c], [1.0, 2.0, 0.0]).tolist() == [3.0, 6.0]


def test_the_order_is_that_of_the_trainers() -> None:
    given = [np.array([v]) for v in (1e16, 1.0, -1e16)]
    assert summed(given).tolist() == [0.0] and summed([given[0], given[2], given[1]]).tolist() == [1.0]


def test_a_sum_is_scaled_in_double_precision() -> None:
    given = vectors(4, "float32", 1)
    found = summed(given, 1.7)
    assert found.dtype == np.float32
    assert np.array_equal(found, (np.sum([v.astype(np.float64) for v in given], axis=0) * 1.7).astype(np.float32))


def test_what_was_given_stays_as_it_was() -> None:
    given = vectors(2, "float64")
    before = [v.copy() for v in given]
    weighted_mean(given, [1.0, 3.0])
    summed(given, 2.0)
    assert all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))


def reply(k: int, values: list[float], **scalars: object) -> Reply:
    return Reply(k, Status.DONE, 0.0, Message("m", scalars, {"weights": np.array(values)}))


def test_non_finite_updates_are_refused_by_name() -> None:
    replies = [
        reply(0, [1.0, 2.0], finite=True),
        reply(1, [1.0, np.nan]),
        reply(2, [np.inf, 1.0]),
        reply(3, [1.0, 1.0], finite=False),
        reply(4, []),
    ]
    kept, refused = refuse_non_finite(replies, "weights")
    assert [r.trainer for r in kept] == [0, 4]
    assert refused == {
        1: "refused: its weights are not finite",
        2: "refused: its weights are not finite",
        3: "refused: its loss is not finite",
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", AGGREGATIONS[:-1])
def test_equals_make_the_same_again(name: str, count: int, dtype: str) -> None:
    (vector,) = vectors(1, dtype, count)
    made = rule(name)(np.zeros_like(vector), [vector] * count, list(range(3, 3 + count)))
    assert made.dtype == vector.dtype and np.array_equal(made, vector)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_those_without_examples_do_not_count(name: str) -> None:
    current, first, second, idle = vectors(4, "float32")
    full = rule(name)(current, [first, idle, second], [3, 0, 5])
    assert np.array_equal(full, rule(name)(current, [first, second], [3, 5]))
    assert np.array_equal(rule(name)(current, [first, idle], [0, 0]), current)
    assert np.array_equal(rule(name)(current, [], []), current)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_usual_mean_is_that_of_equal_shares_to_the_bit(dtype: str) -> None:
    given = vectors(5, dtype)
    made = rule("mean")(given[0], given, [1, 0, 7, 2, 0])
    assert np.array_equal(made, weighted_mean(given, [1.0, 0.0, 1.0, 1.0, 0.0]))
    naive = (given[0].astype(np.float64) + given[2].astype(np.float64) + given[3].astype(np.float64)) / 3
    assert np.array_equal(made, naive.astype(dtype))


def test_by_the_number_of_examples() -> None:
    a, b = np.array([1.0, 2.0]), np.array([4.0, 8.0])
    assert rule("examples")(a, [a, b], [2, 1]).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("values", "median"), [([5.0], 5.0), ([1.0, 4.0], 2.5), ([9.0, 1.0, 2.0], 2.0), ([7.0, 1.0, 2.0, 5.0], 3.5)]
)
def test_the_median(values: list[float], median: float) -> None:
    made = rule("median")(np.zeros(2, np.float32), [np.array([v, -v], np.float32) for v in values], [1] * len(values))
    assert made.dtype == np.float32 and made.tolist() == [median, -median]


@pytest.mark.parametrize(
    ("count", "trim", "cut"),
    [(1, 0.2, 0), (2, 0.4, 0), (3, 0.2, 1), (3, 0.1, 1), (5, 0.2, 1), (5, 0.4, 2), (10, 0.3, 3), (100, 0.29, 29)],
)
def test_the_trimmed_mean(count: int, trim: float, cut: int) -> None:
    given = vectors(count, "float64")
    made = rule("trimmed-mean", trim=trim)(given[0], given, [1] * count)
    for i in range(len(made)):
        kept = sorted(float(v[i]) for v in given)[cut : count - cut]
        assert made[i] == pytest.approx(sum(kept) / len(kept), rel=1e-9, abs=1e-18)


@draw(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=8),
    st.integers(0, 8),
    st.sampled_from([1e30, -1e30]),
    st.sampled_from(["median", "trimmed-mean"]),
)
def test_one_that_sends_garbage_moves_nothing_beyond_the_others(
    honest: list[float], place: int, garbage: float, name: str
) -> None:
    values = list(honest)
    values.insert(place, garbage)
    given = [np.array([v], np.float32) for v in values]
    (made,) = rule(name)(given[0], given, [1] * len(given)).tolist()
    assert min(honest) <= made <= max(honest)


def test_the_outer_step_is_nesterovs() -> None:
    """Against torch's SGD with Nesterov momentum on the same differences, over five rounds."""
    (current,) = vectors(1, "float64")
    parameter = torch.nn.Parameter(torch.from_numpy(current.copy()))
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    step = rule("nesterov")
    for round in range(5):
        given = vectors(3, "float64", round)
        parameter.grad = parameter.detach() - torch.from_numpy(sum(given) / 3)
        sgd.step()
        current = step(current, given, [1, 2, 3])
        assert np.allclose(current, parameter.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_an_outer_step_without_momentum_at_rate_1_is_the_mean() -> None:
    given = vectors(3, "float32")
    made = rule("nesterov", outer_lr=1.0, outer_momentum=0.0)(given[0], given, [1, 1, 1])
    assert made.dtype == np.float32
    assert np.allclose(made, weighted_mean(given, [1.0] * 3), rtol=1e-6, atol=0)


def test_each_outer_optimiser_remembers_for_itself() -> None:
    current, first, second = vectors(3, "float32")
    one, other = rule("nesterov"), rule("nesterov")
    one(current, [second], [1])
    assert np.array_equal(other(current, [first], [1]), rule("nesterov")(current, [first], [1]))
    assert not np.array_equal(one(current, [first], [1]), rule("nesterov")(current, [first], [1]))


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregations_leave_what_they_were_given(name: str) -> None:
    given = vectors(4, "float32")
    before = [v.copy() for v in given]
    rule(name)(given[0], given[1:], [1, 2, 3])
    assert all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))


def test_moments_are_averaged_over_those_who_sent_finite_ones() -> None:
    def sent(value: float) -> dict[str, np.ndarray]:
        return {
            "weights": np.array([100.0]),
            "weights/exp_avg": np.array([value], np.float32),
            "weights/exp_avg_sq": np.array([value**2], np.float32),
        }

    mean = mean_moments([sent(1.0), {"weights": np.array([7.0])}, sent(3.0), sent(np.inf)])
    assert {name: a.tolist() for name, a in mean.items()} == {"weights/exp_avg": [2.0], "weights/exp_avg_sq": [5.0]}
    assert mean["weights/exp_avg"].dtype == np.float32
    assert mean_moments([]) == mean_moments([{"weights": np.array([7.0])}]) == {}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("aggregation", "average"),
        ("trim", 0.5),
        ("trim", -0.1),
        ("trim", float("nan")),
        ("outer_lr", 0),
        ("outer_momentum", 1),
        ("redeal", -1),
        ("correction_steps", -1),
        ("lazy", "logits"),
        ("moments", "drop"),
    ],
)
def test_options_that_cannot_be(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=option):
        TrainConfig.model_validate({option: value})
