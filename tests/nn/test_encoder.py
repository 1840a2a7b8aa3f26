from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.graph import Graph
from farflung.kernels import Product, SparseMatrix
from farflung.kernels.dropout import drop
from farflung.nn import Encoder, ModelConfig, build_encoder, flat, graph_adjacency, select
from farflung.nn.features import features_as_factor
from farflung.seeding import derive

ENCODERS = pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def build(num_features: int = 5, *, heads: bool = False, dtype: torch.dtype = torch.float64, **options) -> Encoder:
    """An encoder of 3 classes whose norms, biases and slopes are not at their initial values."""
    model = build_encoder(ModelConfig(**{"dropout": 0.0, "hidden": 7, **options}), num_features, 3, heads, 0, dtype)
    noise = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=noise, dtype=torch.float64).to(dtype)
    return model


ACTIVATIONS = {
    "relu": lambda h, layer: h * (h > 0),
    "prelu": lambda h, layer: torch.where(h > 0, h, layer.activation.weight * h),
    "elu": lambda h, layer: torch.where(h > 0, h, h.exp() - 1),
    "gelu": lambda h, layer: h * (1 + torch.erf(h / 2**0.5)) / 2,
}


def plain_layer(config, layer, a, h, key=None, constant=False):
    """One layer by its formula on dense `a` [R, K] and `h` [K, F]: hidden, before the head.

    Operands of a `constant` h stand side by side under one dropout mask.
    """
    gathered = {"gcn": lambda: [a @ h], "sage": lambda: [h[: len(a)], a @ h], "mlp": lambda: [h]}[config.encoder]()
    weights = list(layer.conv.weights)
    if constant:
        gathered, weights = [torch.cat(gathered, dim=1)], [torch.cat(weights)]
    out = layer.conv.bias
    for place, (operand, weight) in enumerate(zip(gathered, weights, strict=True)):
        if key is not None:
            mask = drop(np.ones(operand.shape), config.dropout, derive(key, "operand", place))
            operand = operand * torch.from_numpy(mask)
        out = out + operand @ weight
    if layer.norm is not None:
        mean, variance = out.mean(1, keepdim=True), ((out - out.mean(1, keepdim=True)) ** 2).mean(1, keepdim=True)
        out = (out - mean) / (variance + 1e-5).sqrt() * layer.norm.weight + layer.norm.bias
    return out if layer.activation is None else ACTIVATIONS[config.activation](out, layer)


def plain(config, model, a, h, key=None):
    """The whole encoder by its formula."""
    for i, layer in enumerate(model.layers):
        h = plain_layer(config, layer, a, h, None if key is None else derive(key, "layer", i), constant=i == 0)
    return h


def inputs(graph: Graph, encoder: str, dtype: type = np.float64):
    """The matrix that an encoder aggregates with, the same dense, and the features as a tensor."""
    matrix = graph_adjacency({"gcn": "gcn", "sage": "mean", "mlp": "none"}[encoder], graph, dtype)
    dense = np.zeros((graph.num_nodes, graph.num_nodes)) if matrix is None else matrix.to_scipy().toarray()
    return matrix, torch.from_numpy(dense), torch.from_numpy(graph.x.astype(dtype))


def gradients(model: Encoder, out: torch.Tensor) -> np.ndarray:
    """Flat gradient of a fixed, uneven sum of the outputs."""
    model.zero_grad()
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)).sum().backward()
    return flat.pack_gradients(model)


@ENCODERS
@pytest.mark.parametrize(
    ("norm", "activation", "layers", "hidden"),
    [
        *product(["layer", "none"], ["relu", "prelu", "elu", "gelu"], [2], [7]),
        ("layer", "relu", 1, 7),
        ("layer", "elu", 4, 3),
        ("none", "relu", 3, 1),
    ],
)
def test_forward_and_gradient_equal_the_formula(loopy_graph, encoder, norm, activation, layers, hidden):
    config = ModelConfig(encoder=encoder, norm=norm, activation=activation, layers=layers, hidden=hidden, dropout=0.0)
    model = build(3, **config.model_dump())
    matrix, a, x = inputs(loopy_graph, encoder)
    gathered = model.prepare(matrix, x)
    out, expected = model(matrix, gathered), plain(config, model, a, x)
    assert out.shape == (5, 3)
    torch.testing.assert_close(out, expected, **CLOSE)
    np.testing.assert_allclose(gradients(model, out), gradients(model, expected), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model.infer(matrix, gathered), out.detach(), rtol=0, atol=0)


@ENCODERS
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_any_graph_gives_the_formula_and_finite_gradients(graph, encoder, dropout, kind):
    config = ModelConfig(encoder=encoder, dropout=dropout, hidden=7)
    model = build(**config.model_dump())
    matrix, a, x = inputs(graph, encoder)
    factor = x if kind == "dense" else features_as_factor(sp.csr_matrix(graph.x), torch.float64)
    gathered = model.prepare(matrix, factor)
    torch.testing.assert_close(model.infer(matrix, gathered), plain(config, model, a, x), **CLOSE)
    out = model(matrix, gathered, key=5)
    assert out.shape == (graph.num_nodes, 3)
    assert torch.isfinite(out).all()
    assert np.isfinite(gradients(model, out)).all()


@ENCODERS
def test_dropout_acts_on_each_gathered_operand_with_a_key_of_its_own(loopy_graph, encoder):
    config = ModelConfig(encoder=encoder, dropout=0.4, hidden=7, layers=3)
    model = build(3, **config.model_dump())
    matrix, a, x = inputs(loopy_graph, encoder)
    gathered = model.prepare(matrix, x)
    out, expected = model(matrix, gathered, key=8), plain(config, model, a, x, key=8)
    torch.testing.assert_close(out, expected, **CLOSE)
    np.testing.assert_allclose(gradients(model, out), gradients(model, expected), rtol=1e-8, atol=1e-10)
    assert torch.equal(out, model(matrix, gathered, key=8))
    assert not torch.equal(out, model(matrix, gathered, key=9))
    assert not torch.equal(out, model(matrix, gathered))
    assert torch.equal(model(matrix, gathered), model.infer(matrix, gathered))


@ENCODERS
def test_a_head_predicts_from_the_hidden_rows_and_the_last_layer_has_none(loopy_graph, encoder):
    config = ModelConfig(encoder=encoder, hidden=7, layers=2, dropout=0.0)
    model = build(3, heads=True, **config.model_dump())
    matrix, a, x = inputs(loopy_graph, encoder)
    first, last = model.layers
    gathered = model.prepare(matrix, x)
    hidden = plain_layer(config, first, a, x)
    torch.testing.assert_close(first.hidden(gathered), hidden, **CLOSE)
    torch.testing.assert_close(first.predict(gathered), hidden @ first.head.weight.T + first.head.bias, **CLOSE)
    assert last.head is None
    assert torch.equal(
        last.predict(last.conv.aggregate(matrix, hidden)), last.hidden(last.conv.aggregate(matrix, hidden))
    )
    assert all(layer.head is None for layer in build(3, **config.model_dump()).layers)


@ENCODERS
@pytest.mark.parametrize("index", [[], [2], [4, 0, 1]])
def test_selected_rows_give_the_rows_of_the_whole(loopy_graph, encoder, index):
    model = build(3, heads=True, encoder=encoder)
    matrix, _, x = inputs(loopy_graph, encoder)
    for factor in (x, features_as_factor(sp.csr_matrix(loopy_graph.x), torch.float64)):
        gathered = model.prepare(matrix, factor)
        part = model.layers[0].predict(select(gathered, np.array(index, np.int64)))
        torch.testing.assert_close(part, model.layers[0].predict(gathered)[index], **CLOSE)


def bag_of_words(num_nodes: int, num_words: int, per_node: int, degree: int) -> tuple[Graph, sp.csr_matrix]:
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(num_nodes), per_node)
    x = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, rng.integers(0, num_words, len(rows)))))
    x.resize(num_nodes, num_words)
    ends = rng.integers(0, num_nodes, (2, num_nodes * degree))
    return Graph.from_edges(*ends, num_nodes=num_nodes, x=x), x


@ENCODERS
@pytest.mark.parametrize(
    ("num_words", "per_node", "degree", "dropout", "kind"),
    [
        (400, 6, 5, 0.0, Product),
        (400, 6, 5, 0.5, SparseMatrix),
        (400, 1, 1, 0.0, SparseMatrix),
        (20, 6, 5, 0.5, torch.Tensor),
    ],
)
def test_sparse_features_equal_dense_ones_formed_or_not(encoder, num_words, per_node, degree, dropout, kind):
    graph, x = bag_of_words(40, num_words, per_node, degree)
    config = ModelConfig(encoder=encoder, dropout=dropout, hidden=7)
    model = build(num_words, **config.model_dump())
    matrix, a, dense = inputs(graph.with_(features=(x.toarray(),)), encoder)
    gathered = model.prepare(matrix, features_as_factor(x, torch.float64))
    assert isinstance(gathered[-1], SparseMatrix if encoder == "mlp" and kind is Product else kind)
    out, expected = model(matrix, gathered), plain(config, model, a, dense)
    torch.testing.assert_close(out, expected, **CLOSE)
    np.testing.assert_allclose(gradients(model, out), gradients(model, expected), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model.infer(matrix, model.prepare(matrix, dense)), expected, **CLOSE)


@ENCODERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_precision_features_are_read_in_the_model_dtype(loopy_graph, encoder, dtype):
    half = (loopy_graph.x / 7).astype(np.float16)
    model = build(3, encoder=encoder, dtype=dtype)
    matrix, _, _ = inputs(loopy_graph, encoder, np.float32 if dtype == torch.float32 else np.float64)
    outputs = [
        model.infer(matrix, model.prepare(matrix, features_as_factor(x, dtype)))
        for x in (half, half.astype(np.float32), half.astype(np.float64))
    ]
    assert outputs[0].dtype == model.dtype == dtype
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@ENCODERS
def test_initial_weights_depend_on_the_seed_alone(encoder):
    config = ModelConfig(encoder=encoder)

    def vector(seed, dtype=torch.float32):
        return flat.pack(build_encoder(config, 5, 3, True, seed, dtype))

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = vector(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.testing.assert_array_equal(vector(0), first)
    np.testing.assert_array_equal(vector(0, torch.float64), first.astype(np.float64))
    assert (vector(1) != first).any()


@pytest.mark.parametrize(("encoder", "bound"), [("gcn", (6 / (50 + 40)) ** 0.5), ("sage", 50**-0.5), ("mlp", 50**-0.5)])
def test_initial_weights_are_spread_as_documented(encoder, bound):
    conv = build_encoder(ModelConfig(encoder=encoder, hidden=40), 50, 3, False, 0, torch.float32).layers[0].conv
    for weight in conv.weights:
        assert 0.97 * bound < weight.abs().max() <= bound
        assert abs(weight.std() / (bound / 3**0.5) - 1) < 0.05
    assert (conv.bias == 0).all() if encoder == "gcn" else (0 < conv.bias.abs().max() <= bound)
