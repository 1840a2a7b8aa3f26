"""Parts and graphs that methods stumble over: empty, without labels, without edges, without a boundary."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from oracle import lazy_loop
from rig import Rig, blocks, rig
from test_tma import trainers_of

from farflung.graph import Graph, Split

METHODS = ["tma", "lazy", "ggs", "synchronous"]
ENCODERS = ["gcn", "sage", "gat", "mlp"]


def trained(graph: Graph, method: str, **options: object) -> Rig:
    options = {"parts": 2, "steps": 6, "interval": 3, "keep": "last", "dtype": "float64", **options}
    return rig(graph, method, **options).train()


def finite(run: Rig) -> None:
    assert np.isfinite(run.vector()).all()
    assert np.isfinite(run.logits()).all()
    assert run.logits().shape == (run.graph.num_nodes, run.graph.num_classes)
    assert all(record.loss is not None and np.isfinite(record.loss) for record in run.history)


def masks(n: int) -> Split:
    place = np.arange(n) % 3
    return Split(place == 0, place == 1, place == 2)


def without_edges(n: int = 9) -> Graph:
    x = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    return Graph.from_edges([], [], num_nodes=n, x=x, y=np.arange(n) // 3 % 2, split=masks(n), name="dust")


def two_components() -> Graph:
    """Two rings of six nodes that share no edge."""
    ring = np.arange(6)
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    return Graph.from_edges(
        np.concatenate([ring, ring + 6]),
        np.concatenate([(ring + 1) % 6, (ring + 1) % 6 + 6]),
        num_nodes=12,
        symmetric=True,
        x=x,
        y=np.arange(12) % 2,
        split=masks(12),
        name="rings",
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("method", METHODS)
def test_an_empty_part_trains_and_weighs_nothing(method: str, encoder: str, sparse: bool) -> None:
    graph = blocks()
    if sparse:
        graph = graph.with_(features=(sp.csr_matrix(graph.x),))
    assignment = 2 * (np.arange(240) % 2)  # parts 0 and 2; 1 and 3 are empty
    run = trained(graph, method, encoder=encoder, assignment=assignment, parts=4)
    without = trained(graph, method, encoder=encoder, assignment=assignment // 2, parts=2)
    finite(run)
    assert all(record.absent == {} and set(record.steps) == {0, 1, 2, 3} for record in run.history)
    assert [record.loss for record in run.history] == pytest.approx([record.loss for record in without.history])
    assert np.abs(run.vector() - without.vector()).max() <= 1e-12
    assert [record.val for record in run.history] == [record.val for record in without.history]


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("method", METHODS)
def test_trainers_without_labels_weigh_nothing_and_answer(method: str, encoder: str) -> None:
    """All training labels are in part 0; the others are heard and their nodes validated."""
    graph = blocks()
    assignment = np.where(graph.split.train, 0, 1 + np.arange(240) % 2)
    run = trained(graph, method, encoder=encoder, assignment=assignment, parts=3)
    finite(run)
    assert all(record.absent == {} for record in run.history)
    for record in run.history:
        val = record.val["accuracy"] * graph.split.val.sum()
        assert val == pytest.approx(round(val)), "not every validation node was counted"
    if method == "lazy":
        weights, losses = lazy_loop(run, rounds=[3, 3])
        assert np.abs(run.vector() - weights).max() <= 1e-9
        assert [record.loss for record in run.history] == pytest.approx(losses, abs=1e-9)
    elif method == "synchronous":
        one = trained(graph, "centralised", encoder=encoder)
        assert np.abs(run.vector() - one.vector()).max() <= 1e-9
    else:
        assert [dict(record.steps) for record in run.history] == [{0: 3, 1: 0, 2: 0}] * 2


def test_the_mean_of_one_that_has_labels_is_its_own() -> None:
    graph = blocks()
    assignment = np.where(graph.split.train, 0, 1 + np.arange(240) % 2)
    run = rig(graph, "tma", assignment=assignment, parts=3, steps=6, interval=3).train()
    loop = trainers_of(run)[0]
    loop.interval(0, 3)
    loop.interval(1, 3)
    assert np.array_equal(run.vector(), loop.vector())
    assert all(np.array_equal(held.arrays["weights"], run.vector()) for held in run.reveal())


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("method", METHODS)
def test_parts_that_share_no_boundary(method: str, encoder: str) -> None:
    graph = two_components()
    run = trained(graph, method, encoder=encoder, assignment=np.repeat([0, 1], 6))
    finite(run)
    assert (0, 1) not in run.ledger.matrix() and (1, 0) not in run.ledger.matrix()
    if method == "lazy":
        weights, _ = lazy_loop(run, rounds=[3, 3])
        assert np.abs(run.vector() - weights).max() <= 1e-9


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("method", METHODS)
def test_a_part_that_is_a_component_beside_parts_that_are_not(method: str, encoder: str) -> None:
    graph = two_components()
    assignment = np.array([0] * 6 + [1, 2] * 3)
    run = trained(graph, method, encoder=encoder, assignment=assignment, parts=3)
    finite(run)
    touched = {k for pair in run.ledger.matrix() for k in pair if min(pair) >= 0}
    assert touched == (set() if method == "tma" else {1, 2})


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("method", [*METHODS, "centralised"])
def test_a_graph_without_edges(method: str, encoder: str) -> None:
    run = trained(without_edges(), method, encoder=encoder)
    finite(run)
    assert run.ledger.total("features") == run.ledger.total("embeddings") == 0


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_part_of_one_node(method: str, encoder: str) -> None:
    graph = two_components()
    run = trained(graph, method, encoder=encoder, assignment=[1] + [0] * 11)
    finite(run)


@pytest.mark.parametrize("method", METHODS)
def test_every_node_is_its_own_part(method: str) -> None:
    graph = two_components()
    run = trained(graph, method, assignment=np.arange(12), parts=12)
    finite(run)
    if method == "lazy":
        one = trained(graph, "lazy", parts=1)
        assert np.abs(run.logits() - one.logits()).max() <= 1e-9


def test_an_mlp_sends_no_rows() -> None:
    run = trained(blocks(), "lazy", encoder="mlp", parts=3)
    assert not {"features", "embeddings"} & set(run.ledger.by_kind())
    one = trained(blocks(), "lazy", encoder="mlp", parts=1)
    assert np.abs(run.logits() - one.logits()).max() <= 1e-9
    assert all(record.absent == {} for record in run.history)


@pytest.mark.parametrize("rate", [1.0, 0.01])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_every_node_is_its_own_part_in_synchronous_training(encoder: str, rate: float) -> None:
    """A boundary of one row is always drawn whole: any share of it is all of it."""
    graph = two_components()
    run = trained(graph, "synchronous", encoder=encoder, assignment=np.arange(12), parts=12, boundary_rate=rate)
    one = trained(graph, "centralised", encoder=encoder)
    assert np.abs(run.vector() - one.vector()).max() <= 1e-9


@pytest.mark.parametrize("layers", [1, 3])
def test_synchronous_training_of_an_mlp_sends_weights_alone(layers: int) -> None:
    run = trained(blocks(), "synchronous", encoder="mlp", parts=3, layers=layers, boundary_rate=0.5)
    one = trained(blocks(), "centralised", encoder="mlp", layers=layers)
    assert np.abs(run.vector() - one.vector()).max() <= 1e-9
    assert not {"features", "embeddings", "embedding-gradients"} & set(run.ledger.by_kind())


@pytest.mark.parametrize("method", METHODS)
def test_features_of_half_precision(method: str) -> None:
    graph = two_components()
    finite(trained(graph.with_(features=(graph.x.astype(np.float16),)), method, dtype="float32"))
