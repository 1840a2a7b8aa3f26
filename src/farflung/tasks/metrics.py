"""Classification metrics that merge exactly: counts that add up, and scores that are put together.

Each trainer counts its own nodes; the metrics of the merged state are those of all nodes together, to the
bit, however the nodes were spread. Legend for shapes: n nodes, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from farflung.errors import FarflungError, InputError, NotFiniteError

State = dict[str, np.ndarray]
"""What a trainer reports of its nodes.

- `nodes` int64 [1]: how many they are; `right` int64 [1]: how many are predicted exactly (all C labels of a
  multi-label node).
- `true_positives`, `false_positives`, `false_negatives` int64 [C].
- `scores` float64 [n] and `positive` bool [n], only where there are two classes: a node's score for the
  second class, and whether it is of that class.
"""


def names(num_classes: int, multilabel: bool) -> tuple[str, ...]:
    """Metrics that such a task reports, the one to choose the best weights by first."""
    two = num_classes == (1 if multilabel else 2)
    ranked = ("f1_micro", "accuracy", "f1_macro") if multilabel else ("accuracy", "f1_micro", "f1_macro")
    return (*ranked, "roc_auc") if two else ranked


def count(logits: np.ndarray, y: np.ndarray) -> State:
    """Count right and wrong predictions.

    `logits`: float [n, C]. `y`: int64 [n], one label of 0..C-1 per node, predicted by the largest logit (the
    first of equals); or uint8 [n, C] of 0/1, each label predicted where its logit is > 0. n may be 0.

    Raises InputError for shapes or labels that do not fit, NotFiniteError for logits that are not finite.
    """
    if logits.ndim != 2 or y.shape != (logits.shape if y.ndim == 2 else logits.shape[:1]):
        raise InputError(
            f"logits of shape {logits.shape} and labels of shape {y.shape} do not fit: give [n, C] and [n] or [n, C]"
        )
    num_classes = logits.shape[1]
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise NotFiniteError(
            f"the logits of {np.count_nonzero(~finite)} of {len(logits)} nodes are not finite: "
            "the weights have diverged, lower the learning rate"
        )
    _check_labels(y, num_classes)
    return _count_multilabel(logits, y) if y.ndim == 2 else _count_single(logits, y)


def merge(states: Iterable[Mapping[str, np.ndarray]]) -> State:
    """The state of all nodes together: counts add up, scores are put behind each other.

    Raises FarflungError if the states are of different tasks. Without any state, an empty one.
    """
    every = list(states)
    if not every:
        return {}
    for state in every[1:]:
        if state.keys() != every[0].keys() or any(
            state[name].shape != every[0][name].shape for name in state if name not in ("scores", "positive")
        ):
            raise FarflungError("metrics of different tasks do not merge: give states with the same classes")
    return {
        name: np.concatenate([state[name] for state in every])
        if name in ("scores", "positive")
        else np.sum([state[name] for state in every], axis=0)
        for name in every[0]
    }


def finish(state: Mapping[str, np.ndarray]) -> dict[str, float | None]:
    """Metrics of a merged state, each 0..1; None where it is not defined, never 0 instead.

    - `accuracy`: share of nodes predicted right; of a multi-label node, all of its labels (exact match).
    - `f1_micro`: 2 TP / (2 TP + FP + FN) over all classes together; equals the accuracy for single labels.
      None where no label is given or predicted at all.
    - `f1_macro`: mean F1 of the classes that occur in truth or prediction.
    - `roc_auc`, only where there are two classes: the chance that a node of the second class outscores one of
      the first, ties counting half. None where one of them has no node.
    """
    metrics: dict[str, float | None] = {"accuracy": None, "f1_micro": None, "f1_macro": None}
    if state and int(state["nodes"][0]) > 0:
        hits = 2 * state["true_positives"]
        either = hits + state["false_positives"] + state["false_negatives"]
        occurs = either > 0
        metrics["accuracy"] = int(state["right"][0]) / int(state["nodes"][0])
        if occurs.any():
            metrics["f1_micro"] = int(hits.sum()) / int(either.sum())
            metrics["f1_macro"] = float(np.mean(hits[occurs] / either[occurs]))
    if "scores" in state:
        metrics["roc_auc"] = _roc_auc(state["scores"], state["positive"].astype(bool))
    return metrics


def _check_labels(y: np.ndarray, num_classes: int) -> None:
    low, high = (0, 1) if y.ndim == 2 else (0, num_classes - 1)
    if y.dtype.kind not in "iub":
        raise InputError(f"labels have dtype {y.dtype}: give integers in {low}..{high}")
    if y.size and (y.min() < low or y.max() > high):
        raise InputError(
            f"labels reach from {y.min()} to {y.max()}, expected {low}..{high}: "
            "leave nodes without a label out of the count"
        )


def _count_single(logits: np.ndarray, y: np.ndarray) -> State:
    num_classes = logits.shape[1]
    y = y.astype(np.int64, copy=False)
    predicted = logits.argmax(axis=1)
    right = predicted == y
    true_positives = np.bincount(y[right], minlength=num_classes)
    state = _state(
        len(y),
        right,
        true_positives,
        np.bincount(predicted, minlength=num_classes) - true_positives,
        np.bincount(y, minlength=num_classes) - true_positives,
    )
    if num_classes == 2:
        wide = logits.astype(np.float64)
        state |= {"scores": wide[:, 1] - wide[:, 0], "positive": y == 1}
    return state


def _count_multilabel(logits: np.ndarray, y: np.ndarray) -> State:
    predicted, truth = logits > 0, y.astype(bool)
    state = _state(
        len(y),
        (predicted == truth).all(axis=1),
        np.count_nonzero(predicted & truth, axis=0),
        np.count_nonzero(predicted & ~truth, axis=0),
        np.count_nonzero(~predicted & truth, axis=0),
    )
    if logits.shape[1] == 1:
        state |= {"scores": logits[:, 0].astype(np.float64), "positive": truth[:, 0]}
    return state


def _state(
    nodes: int,
    right: np.ndarray,
    true_positives: np.ndarray,
    false_positives: np.ndarray,
    false_negatives: np.ndarray,
) -> State:
    return {
        "nodes": np.array([nodes], dtype=np.int64),
        "right": np.array([np.count_nonzero(right)], dtype=np.int64),
        "true_positives": np.asarray(true_positives, dtype=np.int64),
        "false_positives": np.asarray(false_positives, dtype=np.int64),
        "false_negatives": np.asarray(false_negatives, dtype=np.int64),
    }


def _roc_auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Mann-Whitney U over its maximum; counted in whole half-pairs, so that no order of the nodes matters."""
    if not np.isfinite(scores).all():
        raise FarflungError("ROC-AUC needs finite scores: the weights have diverged, lower the learning rate")
    _, place = np.unique(scores, return_inverse=True)
    ones = np.bincount(place[positive], minlength=int(place.max(initial=-1)) + 1)
    zeros = np.bincount(place[~positive], minlength=len(ones))
    pairs = int(ones.sum()) * int(zeros.sum())
    if pairs == 0:
        return None
    below = np.cumsum(zeros) - zeros
    return int((ones * (2 * below + zeros)).sum()) / (2 * pairs)
