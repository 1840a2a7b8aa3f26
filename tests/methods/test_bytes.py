"""The ledger's training kinds against the closed formulas of docs/methods.md, written out from the partition."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rig import Rig, blocks, digits, rig

from farflung.graph import Graph, choose_split, load
from farflung.team import EVALUATOR, SERVER, TRAINING_KINDS


def cora(data_dir: Path) -> Graph:
    return choose_split(load("cora"), "public", 0)


def graph_named(name: str, request: pytest.FixtureRequest) -> Graph:
    if name == "cora":
        return cora(request.getfixturevalue("data_dir"))
    return {"digits": digits, "sbm": blocks}[name]()


def boundaries(graph: Graph, assignment: np.ndarray) -> dict[tuple[int, int], set[int]]:
    """For each ordered pair (i, j) of parts the nodes of i with an edge to a node of j, edge by edge."""
    found: dict[tuple[int, int], set[int]] = {}
    part = assignment.tolist()
    indices = graph.indices.tolist()
    for v in range(graph.num_nodes):
        for e in range(int(graph.indptr[v]), int(graph.indptr[v + 1])):
            u = indices[e]
            if part[u] != part[v]:
                found.setdefault((part[u], part[v]), set()).add(u)
    return found


def conv_parameters(encoder: str, before: int, after: int, last: bool) -> int:
    """Weights and bias; of attention also two vectors a head, 8 heads, each of the whole width in the last layer."""
    if encoder == "gat":
        width = after * 8 if last else after
        return before * width + 2 * width + after
    return (2 if encoder == "sage" else 1) * before * after + after


def layer_parameters(encoder: str, widths: list[int], classes: int) -> list[int]:
    """Parameters of each layer with norm and head, by hand."""
    sizes = []
    for i, (before, after) in enumerate(pairwise(widths)):
        last = i == len(widths) - 2
        conv = conv_parameters(encoder, before, after, last)
        sizes.append(conv if last else conv + 2 * after + after * classes + classes)
    return sizes


def encoder_parameters(encoder: str, widths: list[int]) -> int:
    """Parameters of the whole network without heads, by hand."""
    convs = sum(conv_parameters(encoder, a, b, i == len(widths) - 2) for i, (a, b) in enumerate(pairwise(widths)))
    return convs + sum(2 * width for width in widths[1:-1])


def training_kinds(run: Rig) -> dict[str, int]:
    return {kind: size for kind, size in run.ledger.by_kind().items() if kind in TRAINING_KINDS}


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("name", ["digits", "cora", "sbm"])
def test_tma(name: str, encoder: str, layers: int, request: pytest.FixtureRequest) -> None:
    graph = graph_named(name, request)
    run = rig(graph, "tma", parts=3, encoder=encoder, layers=layers, hidden=8, steps=5, interval=2).train()
    P = encoder_parameters(encoder, [graph.num_features] + [8] * (layers - 1) + [graph.num_classes])
    M, aggregations = 3, 3
    assert training_kinds(run) == {"weights": 4 * M * P + 8 * M * P * aggregations}
    assert run.ledger.total("evaluation") == 4 * P * aggregations
    assert run.ledger.training() == 4 * M * P + 8 * M * P * aggregations
    matrix = run.ledger.matrix()
    assert {pair for pair in matrix if pair[1] == EVALUATOR} == {(SERVER, EVALUATOR)}
    assert all(SERVER in pair for pair in matrix), "trainers talked to each other"


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("name", ["digits", "cora", "sbm"])
def test_lazy(name: str, encoder: str, layers: int, request: pytest.FixtureRequest) -> None:
    graph = graph_named(name, request)
    run = rig(graph, "lazy", parts=3, encoder=encoder, layers=layers, hidden=8, steps=7).train()
    pairs = boundaries(graph, run.partition.assignment)
    b = sum(len(nodes) for nodes in pairs.values())
    widths = [graph.num_features] + [8] * (layers - 1) + [graph.num_classes]
    if name == "cora":  # rows of a CSR matrix: values and columns of 4 bytes, row pointers of 4
        row = np.diff(graph.x.indptr).tolist()
        features = sum(sum(8 * row[v] for v in nodes) + 4 * (len(nodes) + 1) for nodes in pairs.values())
    else:
        features = 4 * b * widths[0]
    T = {2: [4, 3], 3: [3, 2, 2]}[layers]
    P = layer_parameters(encoder, widths, graph.num_classes)
    W = 3
    assert training_kinds(run) == {
        "features": features,
        "embeddings": 4 * b * sum(widths[1:-1]),
        "gradients": 4 * W * sum(t * p for t, p in zip(T, P, strict=True)),
        "weights": 4 * W * sum(t * p for t, p in zip(T, P, strict=True)),
    }
    # Scoring a layer's last weights is evaluation, not training.
    assert run.ledger.total("evaluation") == 4 * W * sum(P)
    # Counts of a validation: nodes, right, and three per class, each round once.
    assert run.ledger.total("metrics") == W * sum(T) * 8 * (2 + 3 * graph.num_classes)
    table = run.ledger.table()
    between = (table["kind"] == "embeddings") & (table["receiver"] >= 0)
    for (i, j), nodes in pairs.items():
        mine = between & (table["sender"] == i) & (table["receiver"] == j)
        assert table["bytes"][mine].tolist() == [4 * len(nodes) * 8] * (layers - 1)


def test_lazy_keep_last_sends_the_same() -> None:
    best = rig(blocks(), "lazy", parts=3, steps=8, keep="best").train()
    last = rig(blocks(), "lazy", parts=3, steps=8, keep="last").train()
    assert training_kinds(best) == training_kinds(last)


def test_lazy_without_validation_nodes_sends_the_same() -> None:
    graph = blocks()
    split = type(graph.split)(graph.split.train, np.zeros(graph.num_nodes, bool), graph.split.test)
    blind = rig(graph.with_(split=split), "lazy", parts=3, steps=8).train()
    assert training_kinds(blind) == training_kinds(rig(graph, "lazy", parts=3, steps=8).train())


def test_numbers_of_eight_bytes_count_double() -> None:
    single = rig(blocks(), "tma", parts=3, steps=4, interval=2).train()
    double = rig(blocks(), "tma", parts=3, steps=4, interval=2, dtype="float64").train()
    assert double.ledger.training() == 2 * single.ledger.training()


def test_mincut_sends_fewer_embeddings_by_its_own_boundary() -> None:
    run = rig(digits(), "lazy", by="mincut", parts=4, steps=4, hidden=8).train()
    b = sum(len(nodes) for nodes in boundaries(run.graph, run.partition.assignment).values())
    assert training_kinds(run)["features"] == 4 * b * 64
    assert training_kinds(run)["embeddings"] == 4 * b * 8
