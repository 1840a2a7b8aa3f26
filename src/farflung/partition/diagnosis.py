"""What a partition does to a graph, before anyone trains on it.

Legend for shapes: N nodes, M parts, C classes, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from farflung.graph import Graph
from farflung.graph.degrees import degree_without_loops
from farflung.graph.graph import MASKS
from farflung.partition import loops
from farflung.partition.divergence import degree_divergence, feature_divergence, label_divergence
from farflung.partition.expectations import kept_share_expected, kept_share_sd
from farflung.partition.partition import Partition
from farflung.partition.shards import find_layout
from farflung.partition.undirected import undirected_csr

HIGH_LABEL_DIVERGENCE = 0.25
"""Above this, on average a quarter of a part's labels would have to change for it to look like the whole."""


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a partition; None where there is nothing to measure."""

    graph: str
    by: str
    parts: int
    part_names: tuple[str, ...] | None
    """For `given` by a column: the value that each part stands for."""
    nodes: int
    edges: int
    """Directed edges, loops and duplicates included."""
    loops: int
    pairs: int
    """Undirected pairs of distinct nodes with an edge between them, each counted once."""
    nodes_per_part: tuple[int, ...]
    edges_per_part: tuple[int, ...]
    """In-edges of each part's nodes."""
    node_balance: float
    """Largest part over the mean; 1 is perfect."""
    edge_balance: float | None
    kept_share: float | None
    """Share of the pairs that have both ends in one part."""
    kept_share_expected: float | None
    """By the closed formulas for `random` and `supernode`; there is none for the others."""
    kept_share_sd: float | None
    """Standard deviation of the kept share, for `random`."""
    clusters: int | None
    """Super-nodes of a `supernode` partition."""
    cluster_share: float | None
    """Share of the pairs that are inside super-nodes."""
    halo_per_part: tuple[int, ...]
    boundary_per_part: tuple[int, ...]
    """Rows that each part sends in one exchange; their sum is b in the byte formulas."""
    halo_ratio: float
    """Halo nodes of all parts over N: how many copies of a node an exchange makes on average."""
    label_divergence: float | None
    """Mean over parts of the total variation between a part's labels and all labels, 0..1."""
    feature_divergence: float | None
    """Mean over parts of the distance of a part's feature mean from that of all, over the spread of the rows."""
    degree_divergence: float | None
    """As for labels, of histograms of the in-degree in powers of two."""
    masks: dict[str, tuple[int, ...]] | None
    """Nodes of each mask per part: train, val, test; None where no split is chosen."""
    warnings: tuple[str, ...]
    gradient_bias: float | None = None
    """|| mean over parts of g_i - g || at common weights, where it was measured (it needs a model)."""
    gradient_spread: float | None = None
    """Mean over parts of || g_i - mean g || at common weights, where it was measured."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key != "masks"
        } | {"masks": None if self.masks is None else {name: list(n) for name, n in self.masks.items()}}


def diagnose(partition: Partition) -> Diagnosis:
    """Measure a partition; of an opened folder it reads, and so verifies, everything."""
    graph, assignment, num_parts = partition.graph(), partition.assignment, partition.num_parts
    part_names = partition.manifest.get("part_names")
    nodes = np.bincount(assignment, minlength=num_parts)
    edges = np.bincount(assignment, weights=graph.in_degree(), minlength=num_parts).astype(np.int64)
    layout = find_layout(graph, assignment, num_parts)
    halo = [len(places) for places in layout.halos]
    rows_sent = sum((np.diff(layout.halo_ptr(part)) for part in range(num_parts)), np.zeros(num_parts, np.int64))
    kept = _measure_kept(graph, assignment, num_parts, partition.by, partition.clusters)
    labels = label_divergence(graph.y, assignment, num_parts)
    masks = _count_masks(graph, assignment, num_parts)
    return Diagnosis(
        graph=graph.name,
        by=partition.by,
        parts=num_parts,
        part_names=None if part_names is None else tuple(part_names),
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        loops=graph.num_edges - int(degree_without_loops(graph.indptr, graph.indices).sum()),
        nodes_per_part=_ints(nodes),
        edges_per_part=_ints(edges),
        node_balance=_balance(nodes) or 1.0,
        edge_balance=_balance(edges),
        halo_per_part=_ints(halo),
        boundary_per_part=_ints(rows_sent),
        halo_ratio=sum(halo) / max(graph.num_nodes, 1),
        label_divergence=labels,
        feature_divergence=feature_divergence(graph, assignment, num_parts),
        degree_divergence=degree_divergence(graph, assignment, num_parts),
        masks=masks,
        warnings=_list_warnings(nodes, masks, labels),
        **kept,
    )


def _measure_kept(
    graph: Graph, assignment: np.ndarray, num_parts: int, by: str, clusters: np.ndarray | None
) -> dict[str, Any]:
    """The kept-edge share and the formula it stands beside."""
    indptr, indices = undirected_csr(graph)
    pairs = len(indices) // 2
    found: dict[str, Any] = {
        "pairs": pairs,
        "kept_share": loops.count_kept(indptr, indices, assignment) / (2 * pairs) if pairs else None,
        "kept_share_expected": kept_share_expected(num_parts) if by == "random" else None,
        "kept_share_sd": kept_share_sd(num_parts, pairs) if by == "random" and pairs else None,
        "clusters": None,
        "cluster_share": None,
    }
    if clusters is not None:
        dealt = np.unique(np.stack([clusters, assignment]), axis=1)
        found["clusters"] = int(clusters.max(initial=-1)) + 1
        if pairs:
            share = loops.count_kept(indptr, indices, clusters) / (2 * pairs)
            found["cluster_share"] = share
            found["kept_share_expected"] = kept_share_expected(
                num_parts, share, np.bincount(dealt[1], minlength=num_parts)
            )
    return found


def partition_warnings(graph: Graph, assignment: np.ndarray, num_parts: int) -> tuple[str, ...]:
    """The warnings of the diagnosis that need no pass over edges or labels, one sentence each.

    `assignment` int32 [N] with values 0..num_parts-1.
    """
    nodes = np.bincount(assignment, minlength=num_parts)
    return _list_warnings(nodes, _count_masks(graph, assignment, num_parts), None)


def _count_masks(graph: Graph, assignment: np.ndarray, num_parts: int) -> dict[str, tuple[int, ...]] | None:
    if graph.split is None:
        return None
    return {name: _ints(np.bincount(assignment[getattr(graph.split, name)], minlength=num_parts)) for name in MASKS}


def _list_warnings(
    nodes: np.ndarray, masks: dict[str, tuple[int, ...]] | None, labels: float | None
) -> tuple[str, ...]:
    found = []
    empty = np.flatnonzero(nodes == 0)
    if len(empty):
        found.append(f"{_name_parts(empty)} no nodes: it trains on nothing and weighs nothing")
    if masks is not None:
        train = np.asarray(masks["train"])
        without = np.flatnonzero((train == 0) & (nodes > 0))
        if len(train) > 1 and train.sum() and np.count_nonzero(train) == 1:
            found.append(f"all training labels are in part {int(train.argmax())}: the other parts weigh nothing")
        elif train.sum() and len(without):
            found.append(f"{_name_parts(without)} no training labels: it weighs nothing in training")
        elif not train.sum():
            found.append("no node is in the training mask: choose another split")
    if labels is not None and labels > HIGH_LABEL_DIVERGENCE:
        found.append(
            f"label divergence {labels:.2f}: parts hold different classes, which hurts trainers "
            "that learn alone; random or supernode parts avoid it"
        )
    return tuple(found)


def _name_parts(parts: np.ndarray) -> str:
    if len(parts) == 1:
        return f"part {parts[0]} has"
    shown = ", ".join(str(part) for part in parts[:5])
    return f"each of {len(parts)} parts ({shown}{', ...' if len(parts) > 5 else ''}) has"


def _balance(counts: np.ndarray) -> float | None:
    mean = float(counts.mean())
    return float(counts.max()) / mean if mean else None


def _ints(values: Sequence[int] | np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
