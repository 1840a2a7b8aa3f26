"""Closed formulas for the share of edges that a partition keeps, in expectation.

A pair is an undirected pair of distinct nodes with an edge between them, counted once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farflung.errors import InputError


def kept_share_expected(
    num_parts: int,
    cluster_share: float | None = None,
    clusters_per_part: Sequence[int] | np.ndarray | None = None,
) -> float:
    """The expected share of pairs whose ends are in the same part, for nodes or super-nodes dealt at random.

    Without clusters, each node goes uniformly to one of M parts: 1/M. With them, r_c + (1 - r_c) sum_i
    n_i (n_i - 1) / (N (N - 1)), for clusters of about equal size, N of them, dealt n_i to part i.

    Args:
        num_parts: M.
        cluster_share: r_c, the share of pairs inside super-nodes.
        clusters_per_part: n_i, [M].

    Raises:
        InputError: one of the two cluster arguments is missing.
    """
    if cluster_share is None and clusters_per_part is None:
        return 1.0 / num_parts
    if cluster_share is None or clusters_per_part is None:
        raise InputError("kept_share_expected: `cluster_share` and `clusters_per_part` go together: pass both")
    counts = np.asarray(clusters_per_part, dtype=np.float64)
    total = float(counts.sum())
    if total < 2:
        return 1.0
    together = float((counts * (counts - 1)).sum()) / (total * (total - 1))
    return cluster_share + (1.0 - cluster_share) * together


def kept_share_sd(num_parts: int, num_pairs: int) -> float:
    """Standard deviation of the kept share of a random partition: sqrt((1/M) (1 - 1/M) / pairs)."""
    return math.sqrt((1.0 / num_parts) * (1.0 - 1.0 / num_parts) / num_pairs)
