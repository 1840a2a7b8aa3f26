"""The diagnosis against naive loops, and on real graphs. Pitfalls 9, 12, 15 and 17 by number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.graph import Graph, Split, choose_split, load
from farflung.partition import Partition, diagnose, kept_share_sd, partition


def complete(n: int) -> Graph:
    source, destination = np.nonzero(~np.eye(n, dtype=bool))
    return Graph.from_edges(source, destination, num_nodes=n, y=np.arange(n) % 2)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), e=st.integers(0, 40), parts=st.integers(1, 4))
def test_figures_against_naive_loops(seed: int, n: int, e: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    y, owner = rng.integers(-1, 3, n), rng.integers(0, parts, n)
    graph = Graph.from_edges(
        rng.integers(0, n, e), rng.integers(0, n, e), num_nodes=n, y=y, x=rng.random((n, 3)).astype(np.float32)
    )
    edges = list(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))
    pairs = {(min(u, v), max(u, v)) for u, v in edges if u != v}
    found = diagnose(Partition.of(graph, owner, parts))
    assert found.pairs == len(pairs)
    assert found.loops == sum(u == v for u, v in edges)
    kept = sum(owner[u] == owner[v] for u, v in pairs)
    assert found.kept_share == (pytest.approx(kept / len(pairs)) if pairs else None)
    assert found.nodes_per_part == tuple(int((owner == k).sum()) for k in range(parts))
    assert found.edges_per_part == tuple(sum(owner[v] == k for _, v in edges) for k in range(parts))
    halos = [{u for u, v in edges if owner[v] == k and owner[u] != k} for k in range(parts)]
    assert found.halo_per_part == tuple(len(halo) for halo in halos)
    assert found.boundary_per_part == tuple(sum(owner[u] == k for halo in halos for u in halo) for k in range(parts))
    assert found.halo_ratio == pytest.approx(sum(map(len, halos)) / n)

    def shares(rows: np.ndarray) -> np.ndarray:
        return np.array([(rows == c).mean() for c in range(3)])

    labelled = y >= 0
    variations = [
        0.5 * np.abs(shares(y[labelled & (owner == k)]) - shares(y[labelled])).sum()
        for k in range(parts)
        if (labelled & (owner == k)).any()
    ]
    expected = pytest.approx(np.mean(variations)) if variations else None
    assert found.label_divergence == expected
    x = graph.x.astype(np.float64)
    spread = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    distances = [np.linalg.norm(x[owner == k].mean(0) - x.mean(0)) for k in range(parts) if (owner == k).any()]
    assert found.feature_divergence == pytest.approx(np.mean(distances) / spread if n > 1 else 0.0, abs=1e-6)
    json.dumps(found.as_dict())


def test_multilabel_and_sparse_features_equal_dense_ones() -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((50, 4)) * (rng.random((50, 4)) < 0.5)).astype(np.float32)
    y = rng.integers(0, 2, (50, 3)).astype(np.uint8)
    owner = rng.integers(0, 2, 50)
    dense = Graph.from_edges([0], [1], num_nodes=50, x=x, y=y)
    sparse = dense.with_(features=(sp.csr_matrix(x),))
    first, second = diagnose(Partition.of(dense, owner, 2)), diagnose(Partition.of(sparse, owner, 2))
    assert first.feature_divergence == pytest.approx(second.feature_divergence)
    whole = y.sum(0) / y.sum()
    tv = [0.5 * np.abs(y[owner == k].sum(0) / y[owner == k].sum() - whole).sum() for k in range(2)]
    assert first.label_divergence == pytest.approx(np.mean(tv))


def test_17_k8_in_4_parts_shows_that_the_halo_is_most_of_the_graph() -> None:
    found = diagnose(partition(complete(8), "mincut", parts=4))
    assert found.nodes_per_part == (2, 2, 2, 2)
    assert found.pairs == 28
    assert found.kept_share == pytest.approx(4 / 28)
    assert found.halo_per_part == (6, 6, 6, 6)
    assert found.halo_ratio == 3.0
    assert found.node_balance == found.edge_balance == 1.0
    assert found.label_divergence is not None


def test_15_all_training_labels_in_one_part() -> None:
    train = np.array([1, 1, 0, 0, 0, 0, 0, 0], dtype=bool)
    graph = complete(8).with_(split=Split(train, np.zeros(8, bool), ~train))
    found = diagnose(Partition.of(graph, np.repeat([0, 1], 4), 2))
    assert found.masks == {"train": (2, 0), "val": (0, 0), "test": (2, 4)}
    assert found.warnings == ("all training labels are in part 0: the other parts weigh nothing",)


def test_parts_without_training_labels_and_12_empty_parts_are_named() -> None:
    train = np.array([1, 0, 0, 1, 0, 0, 0, 0], dtype=bool)
    graph = complete(8).with_(split=Split(train, np.zeros(8, bool), ~train))
    found = diagnose(Partition.of(graph, np.array([0, 0, 0, 1, 1, 2, 2, 2]), 4, by="random"))
    assert found.parts == 4
    assert found.warnings[0].startswith("part 3 has no nodes")
    assert found.warnings[1].startswith("part 2 has no training labels")
    assert found.kept_share_expected == 0.25
    assert found.kept_share_sd == pytest.approx(kept_share_sd(4, 28))


def test_parts_that_hold_different_classes_are_warned_of() -> None:
    graph = complete(8)
    assert "label divergence 0.50" in diagnose(Partition.of(graph, graph.y, 2)).warnings[0]
    assert diagnose(Partition.of(graph, np.repeat([0, 1], 4), 2)).label_divergence == 0.0


def test_9_loops_and_duplicates_are_no_pairs(loopy_graph: Graph) -> None:
    found = diagnose(Partition.of(loopy_graph, np.array([0, 0, 1, 1, 1]), 2))
    assert (found.edges, found.loops, found.pairs) == (5, 1, 2)
    assert found.kept_share == 0.5


def test_nothing_to_measure_is_none() -> None:
    found = diagnose(Partition.of(Graph.from_edges([], [], num_nodes=3), np.array([0, 1, 1]), 2))
    assert found.kept_share is None
    assert found.edge_balance is None
    assert found.label_divergence is None
    assert found.feature_divergence is None
    assert found.masks is None
    assert found.halo_ratio == 0.0
    assert found.as_dict()["gradient_bias"] is None


def test_diagnosis_of_an_opened_partition_equals_that_in_memory(tmp_path: Path) -> None:
    graph = load("sbm:nodes=600,classes=4,degree=8,homophily=0.8,features=2,seed=3")
    made = partition(choose_split(graph, "random", 0), "supernode", parts=3)
    made.save(tmp_path / "p")
    first, second = diagnose(made), diagnose(Partition.open(tmp_path / "p"))
    assert first == second
    assert first.clusters == 37
    assert 0 < first.cluster_share < first.kept_share_expected < 1
    assert sum(first.masks["train"]) == 120


@pytest.mark.parametrize("name", ["cora", "facebook_page_page", "amazon_computers", "tolokers"])
def test_random_keeps_less_than_super_less_than_mincut_on_real_graphs(data_dir: Path, name: str) -> None:
    graph = load(name, symmetric=True)
    found = {by: diagnose(partition(graph, by, parts=4, seed=1)) for by in ("random", "supernode", "mincut")}
    random, dealt, mincut = found["random"], found["supernode"], found["mincut"]
    assert random.kept_share < dealt.kept_share < mincut.kept_share
    assert abs(random.kept_share - 0.25) < 3 * random.kept_share_sd
    assert abs(dealt.kept_share - dealt.kept_share_expected) < 0.02
    assert random.label_divergence < dealt.label_divergence + 0.01 < mincut.label_divergence
    assert mincut.edge_balance < 1.1
    assert random.halo_ratio > mincut.halo_ratio
    if name in ("cora", "facebook_page_page"):
        assert mincut.label_divergence > 0.25
        assert any("label divergence" in warning for warning in mincut.warnings)
    assert not random.warnings
