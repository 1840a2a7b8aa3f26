"""Ranks and what is made of them, against loops over edges and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from farflung.errors import FarflungError, InputError
from farflung.tasks.ranking import count, finish, merge, names

TIED = st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0])


@st.composite
def scores(draw: st.DrawFn, min_edges: int = 0) -> tuple[np.ndarray, np.ndarray]:
    k, each = draw(st.integers(min_edges, 15)), draw(st.integers(1, 12))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    cells = draw(st.lists(TIED, min_size=k * (each + 1), max_size=k * (each + 1)))
    table = np.array(cells, dtype=dtype).reshape(k, each + 1)
    return table[:, 0], table[:, 1:]


def naive_rank(positive: float, negative: np.ndarray) -> float:
    optimistic = 1 + sum(s > positive for s in negative)
    pessimistic = 1 + sum(s >= positive for s in negative)
    return (optimistic + pessimistic) / 2


@given(scores(min_edges=1))
def test_metrics_equal_naive_loops_and_scikit_learn(task: tuple[np.ndarray, np.ndarray]) -> None:
    positive, negative = task
    state, ranks = count(positive, negative), [naive_rank(p, n) for p, n in zip(positive, negative, strict=True)]
    assert state["ranks"].tolist() == ranks and state["ranks"].dtype == np.float64
    assert (state["candidates"] == negative.shape[1]).all()
    got = finish(state)
    assert got["mrr"] == pytest.approx(np.mean([1 / r for r in ranks]), rel=1e-14)
    for cut in (1, 10, 50):
        assert got[f"hits@{cut}"] == np.mean([r <= cut for r in ranks])
    truth = np.repeat([1, 0], len(positive))
    both = np.concatenate([positive, negative[:, 0]])
    assert got["roc_auc"] == pytest.approx(sk.roc_auc_score(truth, both), rel=1e-12)
    assert got["average_precision"] == pytest.approx(sk.average_precision_score(truth, both), rel=1e-12)


def test_metrics_of_many_distinct_scores_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.standard_normal(500) + 0.5, rng.standard_normal((500, 3))
    got = finish(count(positive, negative))
    truth, both = np.repeat([1, 0], 500), np.concatenate([positive, negative[:, 0]])
    assert got["roc_auc"] == pytest.approx(sk.roc_auc_score(truth, both), rel=1e-12)
    assert got["average_precision"] == pytest.approx(sk.average_precision_score(truth, both), rel=1e-12)


def test_equal_scores_rank_in_the_middle() -> None:
    state = count(np.zeros(1), np.zeros((1, 9)))
    assert state["ranks"].tolist() == [5.5]
    got = finish(state)
    assert got["mrr"] == pytest.approx(0.1818, abs=1e-4)
    assert got["hits@1"] == 0 and got["hits@10"] == 1 and got["roc_auc"] == 0.5 and got["average_precision"] == 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["positive", "negative"])
def test_a_score_that_is_not_finite_is_an_error(value: float, place: str) -> None:
    positive, negative = np.zeros(3), np.zeros((3, 4))
    (positive if place == "positive" else negative[:, 2])[1] = value
    with pytest.raises(FarflungError, match=r"scores of 1 of 3 edges .* not finite"):
        count(positive, negative)


@pytest.mark.parametrize(("positive", "negative"), [((3,), (2, 4)), ((3,), (3, 0)), ((3,), (3,)), ((3, 1), (3, 4))])
def test_shapes_that_do_not_fit(positive: tuple[int, ...], negative: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="do not fit"):
        count(np.zeros(positive), np.zeros(negative))


@pytest.mark.parametrize("state", [{}, count(np.zeros(0), np.zeros((0, 5)))])
def test_no_edge_gives_no_metric(state: dict[str, np.ndarray]) -> None:
    assert finish(state) == dict.fromkeys(names())
    assert finish(merge([state, state] if state else [])) == dict.fromkeys(names())


def test_one_and_nine_give_the_metrics_of_ten() -> None:
    rng = np.random.default_rng(3)
    positive, negative = rng.standard_normal(10), rng.standard_normal((10, 20))
    parts = [count(positive[:1], negative[:1]), count(positive[1:], negative[1:])]
    assert finish(merge(parts)) == finish(count(positive, negative))
    assert finish(merge(parts)) != finish(parts[1])


@given(scores(), st.randoms(use_true_random=False))
def test_neither_order_nor_spread_moves_a_bit(task: tuple[np.ndarray, np.ndarray], random) -> None:  # type: ignore[no-untyped-def]
    positive, negative = task
    whole = finish(count(positive, negative))
    order = np.array(random.sample(range(len(positive)), len(positive)), dtype=np.int64)
    cuts = sorted(random.choices(range(len(positive) + 1), k=3))
    parts = np.split(order, cuts)
    assert finish(merge(count(positive[p], negative[p]) for p in parts)) == whole


def test_sums_of_many_ranks_do_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(4)
    positive, negative = rng.standard_normal(3000), rng.standard_normal((3000, 100))
    order = rng.permutation(3000)
    whole = finish(count(positive, negative))
    assert finish(count(positive[order], negative[order])) == whole
    assert list(whole) == list(names()) and names()[0] == "mrr"
