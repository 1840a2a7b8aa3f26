"""Chunked inference against the forward pass over the whole graph, and against loops over dense matrices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.kernels import SparseMatrix
from farflung.nn import Encoder, ModelConfig, build_encoder, graph_adjacency
from farflung.nn.features import features_as_factor, numpy_dtype
from farflung.nn.inference import EDGES_PER_ROW, Inference, row_chunks

ENCODERS = pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "mlp"])
N = 24
CHUNKS = (1, 7, N - 1, N)


def encoder(kind: str, layers: int = 2, hidden: int = 8, dtype: str = "float64", dropout: float = 0.0) -> Encoder:
    config = ModelConfig(encoder=kind, layers=layers, hidden=hidden, dropout=dropout, attention_heads=2)
    return build_encoder(config, 5, 3, False, 7, getattr(torch, dtype))


def sparse(graph: Graph) -> Graph:
    """The graph with most features zero and kept as CSR; row 2 has none."""
    rng = np.random.default_rng(3)
    x = graph.x * (rng.random(graph.x.shape) < 0.3)
    x[2:3] = 0
    return graph.with_(features=(sp.csr_matrix(x),))


def full(model: Encoder, graph: Graph) -> torch.Tensor:
    """The forward pass over the whole graph, as in training."""
    matrix = graph_adjacency(model.aggregation, graph, numpy_dtype(model.dtype))
    return model.infer(matrix, model.prepare(matrix, features_as_factor(graph.x, model.dtype)))


def naive(model: Encoder, graph: Graph, matrix: np.ndarray | None) -> np.ndarray:
    """Layers as dense NumPy products; `matrix` [N, N]. ReLU and LayerNorm after all but the last."""
    h = np.asarray(graph.x.todense() if sp.issparse(graph.x) else graph.x, dtype=np.float64)
    for i, layer in enumerate(model.layers):
        weights = [weight.detach().numpy() for weight in layer.conv.weights]
        gathered = h if matrix is None else matrix @ h
        taken = [h, gathered] if len(weights) == 2 else [gathered]
        h = sum(a @ w for a, w in zip(taken, weights, strict=True)) + layer.conv.bias.detach().numpy()
        if i < len(model.layers) - 1:
            mean, var = h.mean(axis=1, keepdims=True), h.var(axis=1, keepdims=True)
            h = np.maximum((h - mean) / np.sqrt(var + 1e-5), 0)
    return h


@ENCODERS
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_equals_the_full_forward_for_any_chunk(graph, naive_matrix, kind, features):
    if features == "sparse" and graph.num_nodes:
        graph = sparse(graph)
    # Width 8 aggregates first in layer 0, width 4 multiplies first; the last layer (3 classes) always does.
    for layers, hidden in ((1, 8), (2, 8), (2, 4), (3, 4)):
        model = encoder(kind, layers, hidden)
        expected = full(model, graph)
        if kind != "gat":  # the formula of attention has tests of its own
            matrix = None if kind == "mlp" else naive_matrix({"gcn": "gcn", "sage": "mean"}[kind], graph)
            np.testing.assert_allclose(expected, naive(model, graph, matrix), rtol=1e-9, atol=1e-11)
        for chunk in CHUNKS:
            found = Inference(model.aggregation, graph, torch.float64, chunk).embed(model)
            assert not found.requires_grad
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@ENCODERS
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("make", [lambda graph: graph, sparse], ids=["dense", "sparse"])
def test_one_chunk_equals_the_full_forward_to_the_bit_with_any_weights(graph, kind, dropout, make):
    graph = make(graph) if graph.num_nodes else graph
    model = encoder(kind, dtype="float32", dropout=dropout)
    inference = Inference(model.aggregation, graph, torch.float32, max(1, graph.num_nodes))
    for _ in range(2):
        assert torch.equal(inference.embed(model), full(model, graph))
        model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


@ENCODERS
@pytest.mark.parametrize("chunk", [7, N])
def test_the_first_layers_alone_give_their_own_embeddings(graph, kind, chunk):
    model = encoder(kind, 3)
    matrix = graph_adjacency(model.aggregation, graph, np.float64)
    h = features_as_factor(graph.x, torch.float64)
    inference = Inference(model.aggregation, graph, torch.float64, chunk)
    for count, layer in enumerate(model.layers, start=1):
        h = layer.hidden(layer.conv.aggregate(matrix, h)).detach()
        torch.testing.assert_close(inference.embed(model, count), h, rtol=1e-12, atol=1e-12)


def random_graph(**options: object) -> Graph:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N, 5)).astype(np.float32)
    return Graph.from_edges(*rng.integers(0, N, (2, 150)), num_nodes=N, **{"x": x, **options})


@ENCODERS
@pytest.mark.parametrize("hidden", [4, 8])
def test_features_of_half_precision_in_a_read_only_file_are_read_as_such(kind, hidden, tmp_path):
    graph = random_graph()
    np.save(tmp_path / "x.npy", graph.x.astype(np.float16))
    mapped = graph.with_(features=(np.load(tmp_path / "x.npy", mmap_mode="r"),))
    wide = graph.with_(features=(graph.x.astype(np.float16).astype(np.float64),))
    model = encoder(kind, 2, hidden)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Inference(model.aggregation, mapped, torch.float64, 7).embed(model)
    torch.testing.assert_close(found, full(model, wide), rtol=1e-12, atol=1e-12)


@ENCODERS
def test_no_more_rows_than_a_chunk_are_converted_or_gathered_at_a_time(kind, monkeypatch):
    graph = random_graph(edge_weight=None)
    taken: list[int] = []

    def counted(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor | SparseMatrix:
        taken.append(x.shape[0])
        return features_as_factor(x, dtype)

    monkeypatch.setattr("farflung.nn.inference.features_as_factor", counted)
    model = encoder(kind, 2, hidden=4)
    inference = Inference(model.aggregation, graph, torch.float64, 7)
    gathered: list[int] = []
    for layer in model.layers:
        combine = layer.conv.combine
        layer.conv.combine = lambda g, key=None, f=combine: gathered.append(g[-1].shape[0]) or f(g, key)
    inference.embed(model)
    assert max(taken) == 7
    # Once for the product with the neighbours' weights (GCN, SAGE, GAT), once as the rows themselves (SAGE, MLP).
    assert sum(taken) == {"gcn": N, "sage": 2 * N, "gat": N, "mlp": N}[kind]
    assert gathered == 2 * [7, 7, 7, 3]


def test_features_stay_as_they_are():
    graph = random_graph()
    before = graph.x.copy()
    for hidden in (4, 8):
        model = encoder("mlp", 3, hidden, dtype="float32")
        Inference("none", graph, torch.float32, 7).embed(model)
    np.testing.assert_array_equal(graph.x, before)


@pytest.mark.parametrize(
    ("degrees", "rows", "edges", "expected"),
    [
        ([1] * 10, 4, 100, [4, 4, 2]),
        ([1] * 10, 4, 3, [3, 3, 3, 1]),
        ([0, 9, 0, 0, 1], 3, 4, [1, 1, 3]),
        ([9, 9], 5, 2, [1, 1]),
        ([0, 0, 0], 5, 0, [3]),
        ([], 5, 5, []),
    ],
)
def test_chunks_cover_all_rows_within_their_limits(degrees, rows, edges, expected):
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    chunks = row_chunks(indptr, rows, edges)
    assert [chunk.stop - chunk.start for chunk in chunks] == expected
    assert [v for chunk in chunks for v in range(chunk.start, chunk.stop)] == list(range(len(degrees)))


def test_a_row_of_very_many_edges_is_a_chunk_of_its_own():
    chunk = 2
    hub = 2 * EDGES_PER_ROW * chunk
    graph = Graph.from_edges(
        np.arange(hub) % 9 + 1, np.zeros(hub, int), num_nodes=10, x=np.eye(10, 5, dtype=np.float32), duplicates="keep"
    )
    model = encoder("sage")
    inference = Inference("mean", graph, torch.float64, chunk)
    assert [(c.start, c.stop) for c in inference.chunks[:2]] == [(0, 1), (1, 3)]
    torch.testing.assert_close(inference.embed(model), full(model, graph), rtol=1e-12, atol=1e-12)


def test_a_graph_without_features_is_refused_in_one_line():
    with pytest.raises(InputError, match="'graph' has no features") as error:
        Inference("gcn", random_graph(x=None), torch.float32)
    assert "\n" not in str(error.value)
