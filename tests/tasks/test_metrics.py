import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from farflung.errors import FarflungError, InputError
from farflung.tasks.metrics import count, finish, merge, names

TIED = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
"""Logits that often tie, so that mid-ranks and the first of equals are met."""


@st.composite
def tasks(draw, multilabel: bool | None = None, min_nodes: int = 0):
    multi = draw(st.booleans()) if multilabel is None else multilabel
    n, c = draw(st.integers(min_nodes, 20)), draw(st.integers(1, 5))
    cells = st.lists(TIED, min_size=n * c, max_size=n * c)
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    logits = np.array(draw(cells), dtype=dtype).reshape(n, c)
    if multi:
        y = np.array(draw(st.lists(st.integers(0, 1), min_size=n * c, max_size=n * c)), dtype=np.uint8)
        return logits, y.reshape(n, c)
    return logits, np.array(draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n)), dtype=np.int64)


def naive_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    wins = [
        1.0 if one > zero else 0.5 if one == zero else 0.0 for one in scores[positive] for zero in scores[~positive]
    ]
    return sum(wins) / len(wins)


def naive_f1(truth: list[set[int]], predicted: list[set[int]], num_classes: int) -> list[float | None]:
    scores: list[float | None] = []
    for c in range(num_classes):
        both = sum(c in t and c in p for t, p in zip(truth, predicted, strict=True))
        either = sum((c in t) + (c in p) for t, p in zip(truth, predicted, strict=True))
        scores.append(2 * both / either if either else None)
    return scores


@given(tasks(multilabel=False, min_nodes=1))
def test_single_label_equals_scikit_learn(task):
    logits, y = task
    got = finish(count(logits, y))
    predicted = logits.argmax(axis=1)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, predicted), abs=1e-12)
    assert got["f1_micro"] == pytest.approx(sk.f1_score(y, predicted, average="micro"), abs=1e-12)
    assert got["f1_macro"] == pytest.approx(sk.f1_score(y, predicted, average="macro"), abs=1e-12)
    assert ("roc_auc" in got) == (logits.shape[1] == 2)


@given(tasks(multilabel=True, min_nodes=1))
def test_multi_label_equals_scikit_learn_over_the_labels_that_occur(task):
    logits, y = task
    got = finish(count(logits, y))
    predicted = (logits > 0).astype(np.uint8)
    exact = np.mean([all(a == b) for a, b in zip(y, predicted, strict=True)])
    assert got["accuracy"] == pytest.approx(exact, abs=1e-12)
    occurs = (y | predicted).any(axis=0)
    if not occurs.any():
        assert got["f1_micro"] is None and got["f1_macro"] is None
        return
    truth, guess = y[:, occurs], predicted[:, occurs]
    if occurs.sum() == 1:  # scikit-learn takes one column for a binary task
        micro = macro = sk.f1_score(truth.ravel(), guess.ravel())
    else:
        micro, macro = (sk.f1_score(truth, guess, average=a) for a in ("micro", "macro"))
    assert got["f1_micro"] == pytest.approx(micro, abs=1e-12)
    assert got["f1_macro"] == pytest.approx(macro, abs=1e-12)


@given(tasks(min_nodes=1))
def test_macro_f1_equals_a_naive_loop(task):
    logits, y = task
    if y.ndim == 2:
        truth = [set(np.flatnonzero(row).tolist()) for row in y]
        guess = [set(np.flatnonzero(row > 0).tolist()) for row in logits]
    else:
        truth = [{int(label)} for label in y]
        guess = [{int(row.argmax())} for row in logits]
    scores = [f1 for f1 in naive_f1(truth, guess, logits.shape[1]) if f1 is not None]
    assert finish(count(logits, y))["f1_macro"] == (pytest.approx(np.mean(scores)) if scores else None)


@given(st.lists(st.tuples(TIED, TIED, st.booleans()), min_size=1, max_size=30))
def test_roc_auc_of_two_classes_equals_a_naive_loop_and_scikit_learn(rows):
    logits = np.array([row[:2] for row in rows])
    positive = np.array([row[2] for row in rows])
    scores = logits[:, 1] - logits[:, 0]
    single = finish(count(logits, positive.astype(np.int64)))
    multi = finish(count(scores[:, None], positive[:, None].astype(np.uint8)))
    assert single["roc_auc"] == multi["roc_auc"]
    if positive.all() or not positive.any():
        assert single["roc_auc"] is None
    else:
        assert single["roc_auc"] == pytest.approx(naive_auc(scores, positive), abs=1e-12)
        assert single["roc_auc"] == pytest.approx(sk.roc_auc_score(positive, scores), abs=1e-12)


def test_roc_auc_of_many_scores_equals_scikit_learn():
    rng = np.random.default_rng(0)
    scores, positive = rng.normal(size=(20_000, 1)).astype(np.float32), rng.random((20_000, 1)) < 0.3
    assert finish(count(scores, positive.astype(np.uint8)))["roc_auc"] == pytest.approx(
        sk.roc_auc_score(positive.ravel(), scores.ravel()), abs=1e-12
    )


@given(tasks(), st.data())
def test_any_spread_over_trainers_merges_to_the_whole(task, data):
    logits, y = task
    n = len(logits)
    owner = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=np.int64)
    order = data.draw(st.permutations(range(4)))  # trainers may answer in any order, some own no node
    parts = [count(logits[owner == k], y[owner == k]) for k in order]
    assert finish(merge(parts)) == finish(count(logits, y))
    assert finish(merge([merge(parts[:2]), merge(parts[2:])])) == finish(merge(parts))


def test_trainers_with_one_and_nine_nodes_give_the_metric_of_the_ten():
    logits = np.zeros((10, 2))
    logits[:, 1] = 1  # all predicted 1
    y = np.array([0, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    merged = finish(merge([count(logits[:1], y[:1]), count(logits[1:], y[1:])]))
    assert merged["accuracy"] == 0.9  # and not the mean of 0 and 1
    assert merged["f1_macro"] == pytest.approx((0 + 18 / 19) / 2)
    assert merged["roc_auc"] == 0.5


NOTHING = {"accuracy": None, "f1_micro": None, "f1_macro": None}


def test_nothing_to_count_is_none_and_never_zero():
    assert finish(merge([])) == NOTHING
    assert finish(count(np.zeros((0, 3)), np.zeros(0, np.int64))) == NOTHING
    assert finish(count(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))) == {**NOTHING, "roc_auc": None}
    assert finish(count(np.zeros((0, 3)), np.zeros((0, 3), np.uint8))) == NOTHING
    nobody = finish(count(np.full((4, 3), -1.0), np.zeros((4, 3), np.uint8)))
    assert nobody == {"accuracy": 1.0, "f1_micro": None, "f1_macro": None}


def test_metrics_are_plain_numbers():
    metrics = finish(count(np.eye(2, dtype=np.float32), np.array([0, 1])))
    assert metrics == {"accuracy": 1.0, "f1_micro": 1.0, "f1_macro": 1.0, "roc_auc": 1.0}
    assert {type(value) for value in metrics.values()} == {float}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("y", [np.zeros(3, np.int64), np.zeros((3, 2), np.uint8)])
def test_non_finite_logits_are_an_error(bad, y):
    logits = np.zeros((3, 2), np.float32)
    logits[1, 0] = bad
    with pytest.raises(FarflungError, match="1 of 3 nodes are not finite"):
        count(logits, y)


@pytest.mark.parametrize(
    ("logits", "y", "message"),
    [
        (np.zeros(3), np.zeros(3, np.int64), "do not fit"),
        (np.zeros((3, 2)), np.zeros(4, np.int64), "do not fit"),
        (np.zeros((3, 2)), np.zeros((3, 3), np.uint8), "do not fit"),
        (np.zeros((3, 2)), np.array([0, -1, 1]), "reach from -1 to 1"),
        (np.zeros((3, 2)), np.array([0, 2, 1]), r"expected 0\.\.1"),
        (np.zeros((3, 2)), np.full((3, 2), 2, np.uint8), r"expected 0\.\.1"),
        (np.zeros((3, 2)), np.zeros(3), "give integers"),
    ],
)
def test_what_does_not_fit_is_refused(logits, y, message):
    with pytest.raises(InputError, match=message):
        count(logits, y)


def test_states_of_different_tasks_do_not_merge():
    two = count(np.zeros((1, 2)), np.array([0]))
    three, four = (count(np.zeros((1, c)), np.array([0])) for c in (3, 4))
    for pair in ([two, three], [three, four]):
        with pytest.raises(FarflungError, match="different tasks"):
            merge(pair)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_names_are_what_is_reported_and_the_first_is_the_task_s_own(num_classes, multilabel):
    y = np.zeros((1, num_classes), np.uint8) if multilabel else np.zeros(1, np.int64)
    reported = finish(count(np.zeros((1, num_classes)), y))
    assert set(names(num_classes, multilabel)) == set(reported)
    assert names(num_classes, multilabel)[0] == ("f1_micro" if multilabel else "accuracy")
