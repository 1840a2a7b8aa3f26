"""Greedy soup against what is worked out by hand, and its promise: never worse than the best candidate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.methods.soup import greedy_soup


def distance_to(target: float):  # type: ignore[no-untyped-def]
    """A score that is best where the only weight is `target`."""
    return lambda vector: -abs(float(vector[0]) - target)


def one(*values: float) -> list[np.ndarray]:
    return [np.array([v], np.float32) for v in values]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0], 1.0),
        ([2.0, -2.0], 0.0),  # equals: both are taken, the mean is better than either
        ([1.0, 4.0], 1.0),  # the mean, 2.5, would be worse
        ([4.0, 1.0], 1.0),
        ([9.0, -1.0, 3.0], 1.0),  # -1, then 3 (mean 1, no worse), not 9
        ([1.0, 1.0, 1.0], 1.0),
    ],
)
def test_by_hand(values: list[float], expected: float) -> None:
    mixed, score = greedy_soup(distance_to(0.0), one(*values))
    assert mixed.tolist() == [expected] and score == -abs(expected)
    assert mixed.dtype == np.float32


def test_the_first_of_equals_begins() -> None:
    """Of two that score alike, where no mean is accepted, the first stays."""
    scores = {1.0: 0.5, 2.0: 0.5}
    mixed, score = greedy_soup(lambda v: scores.get(float(v[0]), 0.0), one(1.0, 2.0))
    assert mixed.tolist() == [1.0] and score == 0.5


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_candidates_without_a_score_are_left_out(nothing: float | None) -> None:
    def score(vector: np.ndarray) -> float | None:
        return nothing if vector[0] > 5 else float(vector[0])

    mixed, best = greedy_soup(score, one(9.0, 1.0, 3.0))
    assert mixed.tolist() == [3.0] and best == 3.0


def test_a_mean_without_a_score_is_not_taken() -> None:
    mixed, best = greedy_soup(lambda v: float(v[0]) if v[0] in (1.0, 3.0) else None, one(1.0, 3.0))
    assert mixed.tolist() == [3.0] and best == 3.0


def test_without_any_score_the_first_counts() -> None:
    mixed, best = greedy_soup(lambda _: None, one(4.0, 1.0))
    assert mixed.tolist() == [4.0] and best is None


def test_each_candidate_is_scored_once_and_each_mean_once() -> None:
    seen: list[float] = []

    def score(vector: np.ndarray) -> float:
        seen.append(float(vector[0]))
        return 1.0

    greedy_soup(score, one(0.0, 2.0, 4.0))
    assert seen == [0.0, 2.0, 4.0, 1.0, 2.0]


@given(
    st.lists(st.tuples(st.floats(-10, 10, width=32), st.floats(-10, 10, width=32)), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_it_is_at_least_as_good_as_the_best_candidate(points: list[tuple[float, float]], steps: int) -> None:
    """On a score with plateaus, as accuracy has."""

    def score(vector: np.ndarray) -> float:
        return float(np.floor(steps * np.exp(-np.square(vector - 1).sum() / 20)))

    candidates = [np.array(p, np.float32) for p in points]
    mixed, best = greedy_soup(score, candidates)
    assert best == score(mixed) >= max(map(score, candidates))
    assert all(min(c[i] for c in candidates) <= mixed[i] <= max(c[i] for c in candidates) for i in range(2))
