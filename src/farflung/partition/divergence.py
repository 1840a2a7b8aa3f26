"""How far the parts of a partition are from the whole, in labels, features and degrees.

Legend for shapes: N nodes, M parts, C classes, F features, B histogram bins.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from farflung.graph import FeatureBlock, Graph

_ROWS = 1 << 16


def label_divergence(y: np.ndarray | None, assignment: np.ndarray, num_parts: int) -> float | None:
    """Mean over parts of TV(P_i(y), P(y)), in 0..1; parts without labels are left out.

    Args:
        y: as `Graph.y`: int64 [N] with -1 = no label, or 0/1 [N, C]: then P is over all labels given.
        assignment: int32 [N].
    """
    if y is None or not len(y):
        return None
    if y.ndim == 2:
        return mean_total_variation(_sum_by_part(y, assignment, num_parts))
    labelled = y >= 0
    return mean_total_variation(_histogram(y[labelled], assignment[labelled], num_parts))


def degree_divergence(graph: Graph, assignment: np.ndarray, num_parts: int) -> float | None:
    """As `label_divergence`, of histograms of the in-degree in bins 0, 1, 2-3, 4-7, ..."""
    bins = np.frexp(graph.in_degree().astype(np.float64))[1].astype(np.int64)
    return mean_total_variation(_histogram(bins, assignment, num_parts))


def feature_divergence(graph: Graph, assignment: np.ndarray, num_parts: int) -> float | None:
    """Mean over parts of ||mean x_i - mean x||, over the root mean square distance of rows from the mean.

    About sqrt(M / N) for random parts. Of several node types, the mean over their blocks.
    """
    found = []
    for t, block in enumerate(graph.features):
        if block is None or not block.shape[0] or not block.shape[1]:
            continue
        owner = assignment if graph.node_type is None else assignment[graph.node_type == t]
        found.append(_mean_distance(block, owner, num_parts))
    return float(np.mean(found)) if found else None


def mean_total_variation(counts: np.ndarray) -> float | None:
    """Mean over the rows i of half the sum of |p_i - p|, for counts [M, B]; empty rows are left out."""
    counts = counts.astype(np.float64)
    totals = counts.sum(axis=1)
    filled = totals > 0
    if not filled.any():
        return None
    whole = counts.sum(axis=0) / totals.sum()
    shares = counts[filled] / totals[filled, None]
    return float(0.5 * np.abs(shares - whole).sum(axis=1).mean())


def _histogram(bins: np.ndarray, assignment: np.ndarray, num_parts: int) -> np.ndarray:
    """Nodes by part and bin, int64 [M, B]."""
    width = int(bins.max(initial=0)) + 1
    cells = assignment.astype(np.int64) * width + bins
    return np.bincount(cells, minlength=num_parts * width).reshape(num_parts, width)


def _mean_distance(block: FeatureBlock, owner: np.ndarray, num_parts: int) -> float:
    sums = _sum_by_part(block, owner, num_parts)
    counts = np.bincount(owner, minlength=num_parts)
    mean = sums.sum(axis=0) / len(owner)
    spread = np.sqrt(max(_sum_of_squares(block) / len(owner) - float(mean @ mean), 0.0))
    filled = counts > 0
    distances = np.linalg.norm(sums[filled] / counts[filled, None] - mean, axis=1)
    return float(distances.mean() / spread) if spread > 0 else 0.0


def _sum_by_part(rows: FeatureBlock, owner: np.ndarray, num_parts: int) -> np.ndarray:
    """Sum of the rows of each part, float64 [M, F], a slice of rows at a time."""
    total = np.zeros((num_parts, rows.shape[1]))
    for start in range(0, rows.shape[0], _ROWS):
        piece = owner[start : start + _ROWS]
        ones = np.ones(len(piece))
        select = sp.csr_matrix((ones, (piece, np.arange(len(piece)))), shape=(num_parts, len(piece)))
        summed = select @ rows[start : start + _ROWS].astype(np.float64)
        total += summed.toarray() if sp.issparse(summed) else summed
    return total


def _sum_of_squares(block: FeatureBlock) -> float:
    values = block if isinstance(block, np.ndarray) else block.data
    total = 0.0
    for start in range(0, len(values), _ROWS):
        piece = values[start : start + _ROWS].astype(np.float64).ravel()
        total += float(piece @ piece)
    return total
