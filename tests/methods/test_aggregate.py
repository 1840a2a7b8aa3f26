"""Means and sums of weight vectors, and what is kept out of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from farflung.methods.aggregate import refuse_non_finite, summed, weighted_mean
from farflung.team import Message, Reply, Status


def vectors(count: int, dtype: str, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=50) * 10.0 ** rng.integers(-6, 6, 50)).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("count", range(1, 9))
def test_the_mean_of_equals_is_the_identity(count: int) -> None:
    (vector,) = vectors(1, "float32")
    assert np.array_equal(weighted_mean([vector] * count, [1.0] * count), vector)


@pytest.mark.parametrize("count", [1, 2])
def test_the_mean_of_equals_is_the_identity_in_double_precision(count: int) -> None:
    (vector,) = vectors(1, "float64")
    assert np.array_equal(weighted_mean([vector] * count, [1.0] * count), vector)


@pytest.mark.parametrize("count", [3, 5, 7, 8])
def test_the_mean_of_equals_in_double_precision_is_as_near_as_doubles_are(count: int) -> None:
    (vector,) = vectors(1, "float64")
    assert np.allclose(weighted_mean([vector] * count, [1.0] * count), vector, rtol=1e-15, atol=0)


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
