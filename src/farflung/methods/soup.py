"""Greedy soup: several weight vectors made one, as long as validation does not fall.

Wortsman et al., "Model soups" (arXiv 2203.05482); for graphs that do not fit one machine: "Graph Ladling" (arXiv
2306.10466).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from farflung.methods.aggregate import weighted_mean


def greedy_soup(
    score: Callable[[np.ndarray], float | None], candidates: Sequence[np.ndarray]
) -> tuple[np.ndarray, float | None]:
    """The mean of some of the `candidates` [P], at least one, and its score, which is no less than any candidate's.

    From the best candidate on (the first of equals first), each is added if the score of the mean does not fall.
    Candidates without a finite score are left out; if none has one, the first is returned, with None. Means are
    taken in float64 and rounded once.
    """
    scores = [_finite(score(vector)) for vector in candidates]
    order = sorted((k for k, s in enumerate(scores) if s is not None), key=lambda k: -scores[k])  # type: ignore[operator]
    if not order:
        return candidates[0], None
    pot, mixed, best = [candidates[order[0]]], candidates[order[0]], scores[order[0]]
    for k in order[1:]:
        trial = weighted_mean([*pot, candidates[k]], [1.0] * (len(pot) + 1))
        found = _finite(score(trial))
        if found is not None and best is not None and found >= best:
            pot.append(candidates[k])
            mixed, best = trial, found
    return mixed, best


def _finite(score: float | None) -> float | None:
    return score if score is not None and math.isfinite(score) else None
