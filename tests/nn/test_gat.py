"""Graph attention as a layer: against PyG's, against its formula, and in the ways that layers are used."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from pydantic import ValidationError
from torch_geometric.nn import GATConv as PygGAT

from dense_attention import attention
from farflung.graph import Graph
from farflung.kernels import Neighbours, SparseMatrix
from farflung.kernels.dropout import drop
from farflung.nn import ModelConfig, build_encoder, fixed, flat, graph_adjacency, halo_adjacency, select
from farflung.nn.attention import GATConv
from farflung.nn.features import features_as_factor
from farflung.nn.inference import Inference
from farflung.nn.model import build_link_model
from farflung.partition import build_shards
from farflung.seeding import derive

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def conv(num_features: int = 5, out: int = 6, average: bool = False, dropout: float = 0.0, heads: int = 3) -> GATConv:
    """A convolution in float64 whose bias is not zero."""
    torch.manual_seed(0)
    made = GATConv(num_features, out, dropout, heads, average).double()
    torch.nn.init.uniform_(made.bias, -1, 1)
    return made


def counts(graph: Graph) -> torch.Tensor:
    """How often each edge is there, a loop once at each node, [N, N]."""
    found = np.eye(graph.num_nodes)
    for v, u in zip(graph.destinations().tolist(), graph.indices.tolist(), strict=True):
        found[v, u] += v != u
    return torch.from_numpy(found)


def features(graph: Graph) -> torch.Tensor:
    return torch.from_numpy(graph.x).double()


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
def test_it_equals_pyg_with_its_gradients(graph, heads, average):
    mine, theirs = (
        conv(heads=heads, average=average),
        PygGAT(5, 6 if average else 6 // heads, heads, not average).double(),
    )
    theirs.lin.weight.data = mine.weights[0].detach().T.clone()
    theirs.att_src.data, theirs.att_dst.data = (
        mine.source.detach()[None].clone(),
        mine.destination.detach()[None].clone(),
    )
    theirs.bias.data = mine.bias.detach().clone()
    x = features(graph).requires_grad_()
    edges = torch.from_numpy(np.stack([graph.indices, graph.destinations()]).astype(np.int64))
    out = mine.combine(mine.aggregate(graph_adjacency("attention", graph, np.float64), x))
    expected = theirs(x, edges)
    assert out.shape == expected.shape == (graph.num_nodes, 6)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
    probe = torch.from_numpy(np.random.default_rng(0).standard_normal(out.shape))
    got = torch.autograd.grad((out * probe).sum(), [x, *mine.weights, mine.source, mine.destination, mine.bias])
    want = torch.autograd.grad(
        (expected * probe).sum(), [x, theirs.lin.weight, theirs.att_src, theirs.att_dst, theirs.bias]
    )
    for one, other in zip(got, [want[0], want[1].T, want[2][0], want[3][0], want[4]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_it_equals_the_formula_and_sparse_features_stay_sparse(graph, sparse, average):
    x, factor = features(graph), features(graph)
    if sparse:
        x = x * (x.abs() > 1.5)
        factor = SparseMatrix.from_scipy(sp.csr_matrix(x.numpy()), np.float64)
    layer = conv(average=average)
    gathered = fixed(layer.aggregate(graph_adjacency("attention", graph, np.float64), factor))
    few = sparse and factor.density < 0.25
    assert isinstance(gathered[0].factor, SparseMatrix if few else torch.Tensor)
    torch.testing.assert_close(layer.combine(gathered), attention(layer, counts(graph), x), **CLOSE)


def test_weights_of_edges_have_no_part_in_it(graph):
    layer, x = conv(), features(graph)
    plain = graph.with_(edge_weight=None)
    one, other = (
        layer.combine(layer.aggregate(graph_adjacency("attention", g, np.float64), x)) for g in (graph, plain)
    )
    assert torch.equal(one, other)


def test_dropout_acts_on_the_rows_of_the_sources(graph):
    layer, x = conv(dropout=0.4), features(graph)
    matrix = graph_adjacency("attention", graph, np.float64)
    mask = torch.from_numpy(drop(np.ones(x.shape), 0.4, derive(8, "operand", 0)))
    expected = attention(layer, counts(graph), x * mask)
    torch.testing.assert_close(layer.combine(layer.aggregate(matrix, x), key=8), expected, **CLOSE)
    torch.testing.assert_close(layer.combine(layer.aggregate(matrix, x)), attention(layer, counts(graph), x), **CLOSE)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("index", [[], [2], [9, 0, 21]])
def test_selected_rows_multiply_only_the_sources_they_refer_to(sparse, index):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 9)) * (rng.random((30, 9)) < (0.15 if sparse else 1))
    graph = Graph.from_edges(*rng.integers(0, 22, (2, 40)), num_nodes=30, x=x.astype(np.float32))
    factor = features_as_factor(sp.csr_matrix(graph.x) if sparse else graph.x, torch.float64)
    layer = conv(9)
    gathered = fixed(layer.aggregate(graph_adjacency("attention", graph, np.float64), factor))
    part = select(gathered, np.array(index, np.int64))
    assert torch.equal(layer.combine(part), layer.combine(gathered)[index])
    needed = {u for v in index for u in [v, *graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist()]}
    assert part[0].factor.shape[0] == len(needed)
    again = select(part, np.arange(len(index))[::-1].copy())
    assert torch.equal(layer.combine(again), layer.combine(part).flip(0))


def test_rows_of_a_missing_peer_are_left_out_of_the_softmax(graph):
    layer, x = conv(), features(graph)
    assignment = np.arange(graph.num_nodes) % 3
    for shard in build_shards(graph, assignment, 3):
        sources = np.r_[shard.inner, shard.halo]
        there = assignment[sources] != (shard.part + 1) % 3
        matrix = halo_adjacency("attention", shard, np.float64, there)
        expected = attention(layer, counts(graph)[shard.inner][:, sources] * torch.from_numpy(there), x[sources])
        held = torch.where(torch.from_numpy(there)[:, None], x[sources], torch.nan)
        torch.testing.assert_close(layer.combine(layer.aggregate(matrix, held)), expected, **CLOSE)


def test_hidden_layers_share_the_width_and_the_last_averages_class_scores():
    config = ModelConfig(encoder="gat", hidden=12, attention_heads=4, layers=3)
    encoder = build_encoder(config, 5, 3, True, 0, torch.float32)
    convs = [layer.conv for layer in encoder.layers]
    assert [c.weights[0].shape for c in convs] == [(5, 12), (12, 12), (12, 12)]
    assert [(c.average, len(c.bias), tuple(c.source.shape)) for c in convs] == [
        (False, 12, (4, 3)),
        (False, 12, (4, 3)),
        (True, 3, (4, 3)),
    ]
    links = build_link_model(config, "dot", 5, 1, 0, torch.float32).encoder
    assert [c.conv.average for c in links.layers] == [False] * 3, "links are scored from embeddings"
    scores = build_encoder(config.model_copy(update={"first": "mlp"}), 5, 3, False, 0, torch.float32)
    assert [type(layer.conv).__name__ for layer in scores.layers] == ["DenseConv", "GATConv", "GATConv"]
    assert all(not layer.conv.average for layer in scores.layers[1:])


def test_a_width_that_heads_cannot_share_is_refused_in_one_line():
    with pytest.raises(ValidationError, match="8 attention heads cannot share a hidden width of 100: choose"):
        ModelConfig(encoder="gat", hidden=100)
    assert ModelConfig(encoder="gat", hidden=100, attention_heads=5).hidden == 100
    assert ModelConfig(encoder="sage", hidden=100).attention_heads == 8
    with pytest.raises(ValueError, match="3 heads cannot share a width of 4"):
        GATConv(5, 4, heads=3)


def test_initial_weights_are_glorots_and_depend_on_the_seed_alone():
    config = ModelConfig(encoder="gat", hidden=48, attention_heads=6)
    layer = build_encoder(config, 50, 3, False, 0, torch.float32).layers[0].conv
    for parameter in (layer.weights[0], layer.source, layer.destination):
        bound = (6 / sum(parameter.shape)) ** 0.5
        assert 0.9 * bound < parameter.abs().max() <= bound
    assert (layer.bias == 0).all()
    torch.manual_seed(5)
    again = build_encoder(config, 50, 3, False, 0, torch.float32)
    np.testing.assert_array_equal(flat.pack(again.layers[0].conv), flat.pack(layer))


@pytest.mark.parametrize("sparse", [False, True])
def test_chunked_inference_multiplies_each_row_once(sparse, monkeypatch):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((24, 9)) * (rng.random((24, 9)) < (0.15 if sparse else 1))).astype(np.float32)
    x = sp.csr_matrix(x) if sparse else x
    graph = Graph.from_edges(*rng.integers(0, 24, (2, 90)), num_nodes=24, x=x)
    # As many outputs as inputs: a layer that aggregates first would have the features as a whole.
    config = ModelConfig(encoder="gat", hidden=12, attention_heads=3, dropout=0.0)
    encoder = build_encoder(config, 9, 3, False, 0, torch.float64)
    taken: list[int] = []

    def counted(rows, dtype):  # type: ignore[no-untyped-def]
        taken.append(rows.shape[0])
        return features_as_factor(rows, dtype)

    monkeypatch.setattr("farflung.nn.inference.features_as_factor", counted)
    found = Inference("attention", graph, torch.float64, 7).embed(encoder)
    assert taken == ([] if sparse else [7, 7, 7, 3])
    matrix = graph_adjacency("attention", graph, np.float64)
    expected = encoder.infer(matrix, encoder.prepare(matrix, features_as_factor(graph.x, torch.float64)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_constant_input_gathers_once_and_trains(graph):
    """What a lazy layer does: gather, fix, then only combine, forward and back."""
    layer = conv(dropout=0.2)
    (gathered,) = fixed(layer.aggregate(graph_adjacency("attention", graph, np.float64), features(graph)))
    assert isinstance(gathered, Neighbours)
    out = layer.combine((gathered,), key=3)
    assert torch.equal(out, layer.combine((gathered,), key=3))
    out.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
