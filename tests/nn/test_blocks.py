import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dense_attention import attention
from farflung.errors import InputError
from farflung.kernels import SparseMatrix
from farflung.nn import Encoder, ModelConfig, build_encoder, layer_key
from farflung.nn.adjacency import adjacency
from farflung.nn.blocks import Batch, Neighbourhoods, embed

ENCODERS = pytest.mark.parametrize("encoder", ["gcn", "sage", "gat", "mlp"])
FEATURES = pytest.mark.parametrize("sparse", [False, True])
AGGREGATION = {"gcn": "gcn", "sage": "mean", "gat": "attention", "mlp": "none"}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
NONE = np.empty(0, np.int64)


def build(encoder: str, layers: int = 2, hidden: int = 7, width: int = 5, **options) -> Encoder:
    """An encoder of 3 classes, in float64, whose biases are not at their initial values."""
    config = ModelConfig(
        encoder=encoder,
        layers=layers,
        hidden=hidden,
        attention_heads=math.gcd(hidden, 2),
        **{"dropout": 0.0, **options},
    )
    model = build_encoder(config, width, 3, False, 0, torch.float64)
    for parameter in model.parameters():
        parameter.data += 0.1
    return model


def features(num_nodes: int, sparse: bool, width: int = 5) -> torch.Tensor | SparseMatrix:
    x = np.random.default_rng(0).standard_normal((num_nodes, width))
    if sparse:
        return SparseMatrix.from_scipy(sp.csr_matrix(x * (np.abs(x) > 0.7)), np.float64)
    return torch.from_numpy(x)


def dense(x: torch.Tensor | SparseMatrix) -> torch.Tensor:
    return torch.from_numpy(x.to_scipy().toarray()) if isinstance(x, SparseMatrix) else x


def neighbourhoods(encoder: str, graph, x, layers: int = 2, fanouts=None, replace: bool = False) -> Neighbourhoods:
    csr = graph.indptr, graph.indices, graph.edge_weight
    return Neighbourhoods(AGGREGATION[encoder], *csr, x, layers, torch.float64, fanouts, replace)


def pairs_to_hide(graph, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Some edges and their reverses, which may be no edges."""
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    some = np.random.default_rng(1).permutation(graph.num_edges)[:count]
    u, v = graph.indices[some].astype(np.int64), destinations[some]
    return np.append(u, v), np.append(v, u)


def without(graph, sources: np.ndarray, destinations: np.ndarray) -> SimpleNamespace:
    """The graph without the edges of these pairs, as the naive matrices read it."""
    gone = set(zip(sources.tolist(), destinations.tolist(), strict=True))
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    kept = [e for e in range(graph.num_edges) if (graph.indices[e], rows[e]) not in gone]
    return SimpleNamespace(
        indptr=np.searchsorted(rows[kept], np.arange(graph.num_nodes + 1)),
        indices=graph.indices[kept],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[kept],
        num_nodes=graph.num_nodes,
        num_edges=len(kept),
    )


def plain(model: Encoder, encoder: str, matrices: list, h: torch.Tensor) -> torch.Tensor:
    """An encoder of ReLU layers without norm, by its formula on dense matrices [R, K]."""
    for i, (layer, a) in enumerate(zip(model.layers, matrices, strict=True)):
        if encoder == "gat":
            h = attention(layer.conv, a, h)
        else:
            gathered = {"gcn": lambda a, h: [a @ h], "sage": lambda a, h: [h[: len(a)], a @ h], "mlp": lambda a, h: [h]}
            operands = gathered[encoder](a, h)
            h = layer.conv.bias + sum(g @ w for g, w in zip(operands, layer.conv.weights, strict=True))
        h = h if i == len(model.layers) - 1 else h * (h > 0)
    return h


@ENCODERS
@FEATURES
@pytest.mark.parametrize(("layers", "hidden"), [(1, 7), (2, 7), (3, 7), (2, 300)])
def test_all_neighbours_give_the_whole_graph_without_what_is_hidden(
    encoder, sparse, layers, hidden, graph, naive_matrix
):
    x, model = features(graph.num_nodes, sparse), build(encoder, layers, hidden)
    inputs = neighbourhoods(encoder, graph, x, layers)
    seeds = np.random.default_rng(2).permutation(graph.num_nodes)[: max(1, graph.num_nodes * 2 // 3)]
    for count in (0, 30, 5, 0):
        pairs = pairs_to_hide(graph, count)
        inputs.hide(*pairs)
        matrix = None
        if encoder == "gat":
            rest = without(graph, *pairs)
            unread = np.zeros(graph.num_nodes)
            matrix = adjacency("attention", rest.indptr, rest.indices, unread, rest.edge_weight, np.float64)
        elif encoder != "mlp":
            naive = naive_matrix(AGGREGATION[encoder], without(graph, *pairs))
            matrix = SparseMatrix.from_scipy(sp.csr_matrix(naive), np.float64)
        expected = model(matrix, model.prepare(matrix, x))[torch.from_numpy(seeds)]
        got = embed(model, inputs.batch(seeds, key=0))
        np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), **CLOSE)


@ENCODERS
@FEATURES
@pytest.mark.parametrize("hidden", [2, 300])
@pytest.mark.parametrize("fanouts", [(2, 3), (None, 1)])
def test_value_and_gradient_equal_the_dense_formula_on_the_same_sample(encoder, sparse, hidden, fanouts, graph):
    x = features(graph.num_nodes, sparse)
    model = build(encoder, 2, hidden, norm="none")
    batch = neighbourhoods(encoder, graph, x, 2, fanouts).batch(np.arange(graph.num_nodes)[::-2], key=4)
    probe = torch.from_numpy(np.random.default_rng(3).standard_normal((len(np.arange(graph.num_nodes)[::-2]), 3)))
    out = embed(model, batch)
    gradients = torch.autograd.grad((out * probe).sum(), list(model.parameters()))
    matrices = [None if m is None else torch.from_numpy(m.to_scipy().toarray()) for m in batch.matrices]
    expected = plain(model, encoder, matrices, dense(batch.x)[torch.from_numpy(batch.nodes)])
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), **CLOSE)
    for got, want in zip(
        gradients, torch.autograd.grad((expected * probe).sum(), list(model.parameters())), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("encoder", "replace"), [("gcn", False), ("gcn", True), ("sage", False), ("sage", True)])
@pytest.mark.parametrize("hidden_edges", [0, 20])
def test_samples_average_to_the_whole(encoder, replace, hidden_edges, graph, naive_matrix):
    if encoder == "sage" and graph.edge_weight is not None:
        pytest.skip("a weighted mean over a sample is a ratio of two sums, which is biased")
    inputs = neighbourhoods(encoder, graph, features(graph.num_nodes, False), 1, (2,), replace)
    pairs = pairs_to_hide(graph, hidden_edges)
    inputs.hide(*pairs)
    n, draws = graph.num_nodes, 400
    total, squares = np.zeros((n, n)), np.zeros((n, n))
    for key in range(draws):
        batch = inputs.batch(np.arange(n), key)
        sampled = batch.matrices[0].to_scipy().toarray()
        total += sampled
        squares += sampled**2
    mean = total / draws
    error = np.sqrt(np.maximum(squares / draws - mean**2, 0) / draws)
    expected = naive_matrix(AGGREGATION[encoder], without(graph, *pairs))
    assert (np.abs(mean - expected) <= 5.5 * error + 1e-9).all()


@ENCODERS
def test_rows_keep_the_order_of_edges_with_the_loop_in_front(encoder, loopy_graph):
    inputs = neighbourhoods(encoder, loopy_graph, features(5, False), 1)
    (matrix,) = inputs.batch(np.array([2, 1, 4]), key=0).matrices
    if encoder == "mlp":
        assert matrix is None
        return
    # In-edges of 1: 0, 0, 3; of 2: 2 (a loop); of 4: none.
    looped = [0, 1, 5, 6], [0, 1, 3, 3, 4, 2]
    expected = {"sage": ([0, 1, 4, 4], [0, 3, 3, 4]), "gcn": looped, "gat": looped}[encoder]
    np.testing.assert_array_equal(matrix.pattern.indptr, expected[0])
    np.testing.assert_array_equal(matrix.pattern.indices, expected[1])
    assert matrix.shape == (3, 5)


@ENCODERS
def test_a_key_names_a_sample(encoder, graph):
    inputs = neighbourhoods(encoder, graph, features(graph.num_nodes, False), 2, (1, 2))
    model, seeds = build(encoder), np.arange(graph.num_nodes)
    one, again = (embed(model, inputs.batch(seeds, key=9)) for _ in range(2))
    assert torch.equal(one, again)
    if encoder != "mlp" and graph.num_edges > 100:
        assert not torch.equal(one, embed(model, inputs.batch(seeds, key=10)))


@ENCODERS
@FEATURES
def test_dropout_draws_from_the_keys_of_the_layers(encoder, sparse, graph):
    model = build(encoder, dropout=0.5)
    batch = neighbourhoods(encoder, graph, features(graph.num_nodes, sparse), 2, (3, 3)).batch(
        np.arange(graph.num_nodes), key=0
    )
    rows = dense(batch.x)[torch.from_numpy(batch.nodes)]
    first, second = model.layers
    h = first.hidden(first.conv.aggregate(batch.matrices[0], rows), layer_key(5, 0))
    expected = second.hidden(second.conv.aggregate(batch.matrices[1], h), layer_key(5, 1))
    got = embed(model, batch, key=5)
    if not sparse:  # dropout draws for the stored entries of a sparse operand
        np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), **CLOSE)
    assert torch.equal(got, embed(model, batch, key=5))
    if graph.num_nodes > 3:
        assert not torch.equal(got, embed(model, batch, key=6))


@ENCODERS
@FEATURES
def test_no_seeds_give_no_rows(encoder, sparse, loopy_graph):
    for fanouts in (None, (2, 2)):
        batch = neighbourhoods(encoder, loopy_graph, features(5, sparse), 2, fanouts).batch(NONE, key=0)
        assert embed(build(encoder), batch).shape == (0, 3)


@ENCODERS
def test_features_may_be_replaced_by_more_rows(encoder, loopy_graph):
    x = features(9, False)
    indptr = np.append(loopy_graph.indptr, np.full(4, loopy_graph.num_edges))  # room for 4 nodes without edges
    csr = indptr, loopy_graph.indices, loopy_graph.edge_weight
    inputs = Neighbourhoods(AGGREGATION[encoder], *csr, x[:5], 2, torch.float64, None)
    model = build(encoder)
    before = embed(model, inputs.batch(np.arange(5), key=0))
    inputs.x = x
    after = embed(model, inputs.batch(np.array([7, 0, 1, 2, 3, 4]), key=0))
    np.testing.assert_allclose(after[1:].detach().numpy(), before.detach().numpy(), **CLOSE)
    alone = Neighbourhoods(AGGREGATION[encoder], np.zeros(2, np.int64), NONE, None, x[7:8], 2, torch.float64, None)
    expected = embed(model, alone.batch(np.array([0]), key=0))
    np.testing.assert_allclose(after[:1].detach().numpy(), expected.detach().numpy(), **CLOSE)


@ENCODERS
def test_a_batch_may_bring_its_own_rows(encoder, graph):
    """As when features come over the network: only the sources' rows are there."""
    x, model = features(graph.num_nodes, False), build(encoder)
    batch = neighbourhoods(encoder, graph, x, 2, (2, 2)).batch(np.arange(graph.num_nodes)[:2], key=1)
    own = Batch(batch.matrices, x[torch.from_numpy(batch.nodes)], np.arange(len(batch.nodes)))
    np.testing.assert_allclose(
        embed(model, own).detach().numpy(), embed(model, batch).detach().numpy(), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggregation", ["gcn", "mean"])
def test_matrices_have_the_type_asked_for(aggregation, dtype, loopy_graph):
    csr = loopy_graph.indptr, loopy_graph.indices, loopy_graph.edge_weight
    inputs = Neighbourhoods(aggregation, *csr, features(5, False).to(dtype), 2, dtype, (1, 1))
    for matrix in inputs.batch(np.arange(5), key=0).matrices:
        assert matrix.values.dtype == torch.empty(0, dtype=dtype).numpy().dtype


def test_undoing_what_was_hidden_leaves_no_rounding_behind(graph):
    inputs = neighbourhoods("gcn", graph, features(graph.num_nodes, False), 1)
    before = inputs.batch(np.arange(graph.num_nodes), key=0).matrices[0].values
    for count in (1, 10, 30):
        inputs.hide(*pairs_to_hide(graph, count))
    inputs.hide(NONE, NONE)
    np.testing.assert_array_equal(inputs.batch(np.arange(graph.num_nodes), key=0).matrices[0].values, before)


def test_a_fan_out_per_layer_is_asked_for(loopy_graph):
    with pytest.raises(InputError, match="3 layers need as many fan-outs, found 2"):
        neighbourhoods("sage", loopy_graph, features(5, False), 3, (10, 25))


def test_weights_that_leave_no_root_are_refused_at_once_and_when_edges_are_hidden():
    indptr, indices = np.array([0, 2, 2, 2]), np.array([1, 2], np.int32)
    options = (features(3, False), 1, torch.float64, None)
    with pytest.raises(InputError, match="node 0 weigh -2 together"):
        Neighbourhoods("gcn", indptr, indices, np.array([-3.0, 1.0]), *options)
    inputs = Neighbourhoods("gcn", indptr, indices, np.array([-3.0, 4.0]), *options)
    with pytest.raises(InputError, match="node 0 weigh -3 together"):
        inputs.hide(np.array([2]), np.array([0]))
    Neighbourhoods("mean", indptr, indices, np.array([-3.0, 1.0]), *options)
