"""Link-prediction metrics that merge exactly: the rank of each edge among its own negatives.

Each trainer ranks its own edges; the metrics of the merged state are those of all edges together, to the bit,
however the edges were spread. Legend for shapes: k positives, K negatives of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from farflung.errors import InputError, NotFiniteError
from farflung.tasks.metrics import State

_CUTS = (1, 10, 50)


def names() -> tuple[str, ...]:
    """Metrics that are reported, the one to choose the best weights by first."""
    return ("mrr", *(f"hits@{cut}" for cut in _CUTS), "roc_auc", "average_precision")


def count(positive: np.ndarray, negative: np.ndarray) -> State:
    """Rank positives among their negatives.

    Args:
        positive: scores, float [k]; k may be 0.
        negative: scores, float [k, K], K >= 1.

    Returns:
        `ranks` float64 [k]: 1 + the number of negatives with a higher score + half the number of those with the same,
        which is the mean of the optimistic and the pessimistic rank; `positive` float64 [k]; `negative` float64 [k]:
        the score of each positive's first negative; `candidates` int64 [k]: K.

    Raises InputError for shapes that do not fit, NotFiniteError for scores that are not finite.
    """
    if positive.ndim != 1 or negative.ndim != 2 or len(positive) != len(negative) or negative.shape[1] < 1:
        raise InputError(
            f"scores of shapes {positive.shape} and {negative.shape} do not fit: give [k] and [k, K] with K >= 1"
        )
    finite = np.isfinite(positive) & np.isfinite(negative).all(axis=1)
    if not finite.all():
        raise NotFiniteError(
            f"the scores of {np.count_nonzero(~finite)} of {len(positive)} edges or of their negatives are not finite: "
            "the weights have diverged, lower the learning rate"
        )
    higher = np.count_nonzero(negative > positive[:, None], axis=1)
    equal = np.count_nonzero(negative == positive[:, None], axis=1)
    return {
        "ranks": 1 + higher + equal / 2,
        "positive": positive.astype(np.float64),
        "negative": negative[:, 0].astype(np.float64),
        "candidates": np.full(len(positive), negative.shape[1], dtype=np.int64),
    }


def merge(states: Iterable[Mapping[str, np.ndarray]]) -> State:
    """The state of all edges together. Without any state, an empty one."""
    every = list(states)
    return {name: np.concatenate([state[name] for state in every]) for name in (every[0] if every else ())}


def finish(state: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Metrics of a merged state, each 0..1; None where there is no edge, never 0 instead.

    - `mrr`: mean reciprocal rank.
    - `hits@1`, `hits@10`, `hits@50`: share of edges with at most that rank; with K < 10 or 50 negatives always 1.
    - `roc_auc`: the chance that an edge outscores a negative, ties counting half; and
    - `average_precision`: precision, averaged over the recall that each threshold adds (equal scores share one). Both
      take one negative per edge, its first: as many negatives as edges.

    Sums are rounded once, so that no order of the edges matters.
    """
    edges = len(state["ranks"]) if state else 0
    if edges == 0:
        return dict.fromkeys(names())
    ranks = state["ranks"]
    hits = {f"hits@{cut}": int(np.count_nonzero(ranks <= cut)) / edges for cut in _CUTS}
    _, place = np.unique(np.concatenate([state["positive"], state["negative"]]), return_inverse=True)
    ones = np.bincount(place[:edges], minlength=int(place.max()) + 1)[::-1]
    zeros = np.bincount(place[edges:], minlength=len(ones))[::-1]
    return {
        "mrr": math.fsum(1 / ranks) / edges,
        **hits,
        "roc_auc": _roc_auc(ones, zeros),
        "average_precision": _average_precision(ones, zeros),
    }


def _roc_auc(ones: np.ndarray, zeros: np.ndarray) -> float:
    """Mann-Whitney U over its maximum, of edges and negatives at each score, highest first; in whole half-pairs."""
    below = zeros.sum() - np.cumsum(zeros)
    return int((ones * (2 * below + zeros)).sum()) / (2 * int(ones.sum()) * int(zeros.sum()))


def _average_precision(ones: np.ndarray, zeros: np.ndarray) -> float:
    found = np.cumsum(ones)
    return math.fsum(ones * (found / (found + np.cumsum(zeros)))) / int(found[-1])
