"""Gradient bias and spread against plain autograd on dense matrices."""

import numpy as np
import pytest
import torch

import farflung
from farflung.graph import Graph, Split
from farflung.nn import ModelConfig, build_encoder
from farflung.run.config import resolve
from farflung.run.discrepancy import gradient_discrepancy
from farflung.run.inspect import inspect_partition

N = 30


@pytest.fixture
def graph() -> Graph:
    rng = np.random.default_rng(3)
    masks = np.zeros((3, N), dtype=bool)
    masks[0, ::2], masks[1, 1::4], masks[2, 3::4] = True, True, True
    return Graph.from_edges(
        *rng.integers(0, N, (2, 120)),
        num_nodes=N,
        x=rng.standard_normal((N, 5)).astype(np.float32),
        y=rng.integers(0, 3, N),
        split=Split(*masks),
        name="tiny",
    )


def naive(graph: Graph, keep: np.ndarray, config: ModelConfig, seed: int) -> np.ndarray | None:
    """Gradient of the mean training loss over the nodes in `keep`, edges from elsewhere dropped; dense SAGE-mean."""
    model = build_encoder(config, 5, 3, False, seed, torch.float64)
    adjacency = np.zeros((N, N))
    for v in range(N):
        for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]:
            if keep[u] and keep[v]:
                adjacency[v, u] += 1
    mean = torch.from_numpy(adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1))
    h = torch.from_numpy(graph.x.astype(np.float64))
    for layer in model.stack:
        own, others = layer.conv.weights
        h = h @ own + (mean @ h) @ others + layer.conv.bias
        if layer.norm is not None:
            h = torch.relu(layer.norm(h))
    rows = np.flatnonzero(keep & graph.split.train)
    if not len(rows):
        return None
    torch.nn.functional.cross_entropy(h[rows], torch.from_numpy(graph.y[rows]).long()).backward()
    return np.concatenate([p.grad.numpy().ravel() for p in model.parameters()])


def test_bias_and_spread_equal_plain_autograd(graph):
    config = ModelConfig(encoder="sage", hidden=6, dropout=0.5)
    parts = farflung.cut(graph, by="random", parts=3, seed=1)
    found = gradient_discrepancy(graph, parts, config, seed=4)
    whole = naive(graph, np.ones(N, dtype=bool), config, 4)
    each = [naive(graph, parts.assignment == k, config, 4) for k in range(3)]
    mean = sum(each) / 3
    assert found.norm == pytest.approx(np.linalg.norm(whole), rel=1e-9)
    assert found.bias == pytest.approx(np.linalg.norm(mean - whole), rel=1e-9)
    assert found.spread == pytest.approx(np.mean([np.linalg.norm(g - mean) for g in each]), rel=1e-9)


def test_one_part_has_neither_bias_nor_spread(graph):
    found = gradient_discrepancy(graph, farflung.cut(graph, parts=1), ModelConfig(hidden=6), seed=0)
    assert found.norm > 0
    assert found.bias == found.spread == 0


def test_parts_without_training_nodes_do_not_count(graph):
    lonely = graph.with_(columns={"side": graph.split.train.astype(np.int64)})
    parts = farflung.cut(lonely, by="given", parts=None, given="side")
    found = gradient_discrepancy(lonely, parts, ModelConfig(hidden=6), seed=0)
    assert found.spread == 0
    assert found.bias > 0


def test_inspection_reports_them_beside_the_diagnosis(graph):
    parts = farflung.cut(graph, by="random", parts=3, seed=1)
    config = resolve({"graph": "tiny", "parts": 3, "hidden": 6})
    report = inspect_partition(graph, parts, config)
    assert report["gradient_bias_relative"] == pytest.approx(report["gradient_bias"] / report["gradient_norm"])
    assert report["kept_share_expected"] == pytest.approx(1 / 3)
    assert sum(report["masks"]["train"]) == N // 2


def test_a_graph_without_features_or_labels_is_inspected_without_gradients(graph):
    config = resolve({"graph": "tiny", "parts": 3})
    for bare in (graph.with_(features=(None,)), graph.with_(y=None, split=None)):
        report = inspect_partition(bare, farflung.cut(bare, parts=3), config)
        assert report["gradient_bias"] is None
        assert report["nodes"] == N
