"""Layers that gather class scores after an MLP, and layers with a skip: against dense formulas, chunked and sampled."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.graph import Graph
from farflung.nn import Encoder, ModelConfig, build_encoder, graph_adjacency
from farflung.nn.blocks import Neighbourhoods, embed
from farflung.nn.features import features_as_factor
from farflung.nn.inference import Inference

F, C, HIDDEN = 5, 3, 8
AGGREGATION = {"gcn": "gcn", "sage": "mean", "mlp": "none"}
KINDS = [(e, f, r) for e in ("gcn", "sage") for f in ("conv", "mlp") for r in (False, True)] + [("mlp", "conv", True)]
MODELS = pytest.mark.parametrize(
    ("encoder", "first", "residual", "layers"),
    [(*kind, layers) for kind in KINDS for layers in (1, 2, 3) if layers > 1 or kind[1] == "conv"],
)
FEATURES = pytest.mark.parametrize("sparse", [False, True])


def build(encoder: str, first: str, residual: bool, layers: int, hidden: int = HIDDEN) -> Encoder:
    config = ModelConfig(encoder=encoder, first=first, residual=residual, layers=layers, hidden=hidden, dropout=0.0)
    model = build_encoder(config, F, C, False, 0, torch.float64)
    for parameter in model.parameters():
        parameter.data += 0.1
    return model


def with_features(graph: Graph, sparse: bool) -> Graph:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(graph.num_nodes, F)) * (rng.random((graph.num_nodes, F)) < 0.4)
    return graph.with_(features=(sp.csr_matrix(x) if sparse else x,))


def naive(model: Encoder, encoder: str, first: str, x: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """The layers as products of dense NumPy matrices."""
    h = x
    for i, layer in enumerate(model.layers):
        weights = [w.detach().numpy() for w in layer.conv.weights]
        dense = encoder == "mlp" or (first == "mlp" and i == 0)
        operands = [h] if dense else [h, matrix @ h] if encoder == "sage" else [matrix @ h]
        out = sum(a @ w for a, w in zip(operands, weights, strict=True)) + layer.conv.bias.detach().numpy()
        if first == "mlp" or i < len(model.layers) - 1:
            mean, var = out.mean(axis=1, keepdims=True), out.var(axis=1, keepdims=True)
            scale, shift = layer.norm.weight.detach().numpy(), layer.norm.bias.detach().numpy()
            out = np.maximum((out - mean) / np.sqrt(var + 1e-5) * scale + shift, 0)
        if first == "mlp":
            out = out @ layer.out.weight.detach().numpy().T + layer.out.bias.detach().numpy()
        if layer.skip is not None:
            out = out + (h if layer.skip.weight is None else h @ layer.skip.weight.detach().numpy())
        h = out
    return h


def full(model: Encoder, graph: Graph) -> torch.Tensor:
    matrix = graph_adjacency(model.aggregation, graph, np.float64)
    return model.infer(matrix, model.prepare(matrix, features_as_factor(graph.x, torch.float64)))


@MODELS
@FEATURES
def test_equals_the_dense_formula(graph, naive_matrix, encoder, first, residual, layers, sparse):
    model, graph = build(encoder, first, residual, layers), with_features(graph, sparse)
    assert [layer.skip is not None for layer in model.layers] == [
        residual and not (first == "mlp" and i == 0) for i in range(layers)
    ]
    matrix = None if encoder == "mlp" else naive_matrix(AGGREGATION[encoder], graph)
    x = graph.x.toarray() if sparse else graph.x
    np.testing.assert_allclose(full(model, graph), naive(model, encoder, first, x, matrix), rtol=1e-9, atol=1e-10)


@MODELS
@FEATURES
@pytest.mark.parametrize("hidden", [2, HIDDEN])
def test_chunks_equal_the_whole(graph, encoder, first, residual, layers, sparse, hidden):
    model, graph = build(encoder, first, residual, layers, hidden), with_features(graph, sparse)
    expected = full(model, graph)
    for chunk in (1, 7, max(1, graph.num_nodes)):
        inference = Inference(model.aggregation, graph, torch.float64, chunk)
        torch.testing.assert_close(inference.embed(model), expected, rtol=1e-11, atol=1e-11)
        for depth in range(1, layers):
            below = inference.embed(model, depth)
            torch.testing.assert_close(inference.embed(model, None, (depth, below)), expected, rtol=1e-11, atol=1e-11)


@MODELS
@FEATURES
def test_all_neighbours_in_a_batch_give_the_whole(graph, encoder, first, residual, layers, sparse):
    model, graph = build(encoder, first, residual, layers), with_features(graph, sparse)
    seeds = np.random.default_rng(2).permutation(graph.num_nodes)[: max(1, graph.num_nodes * 2 // 3)]
    x = features_as_factor(graph.x, torch.float64)
    csr = graph.indptr, graph.indices, graph.edge_weight
    inputs = Neighbourhoods(model.aggregation, *csr, x, layers, torch.float64, None)
    found = embed(model, inputs.batch(seeds, key=0))
    torch.testing.assert_close(found, full(model, graph)[torch.from_numpy(seeds)], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("encoder", "first", "residual"), KINDS)
def test_gradients_flow_through_skips_and_scores(graph, encoder, first, residual):
    model, graph = build(encoder, first, residual, 2), with_features(graph, False)
    matrix = graph_adjacency(model.aggregation, graph, np.float64)
    model(matrix, model.prepare(matrix, features_as_factor(graph.x, torch.float64)), 3).square().sum().backward()
    if graph.num_edges > 5:
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
