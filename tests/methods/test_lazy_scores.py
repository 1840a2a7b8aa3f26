"""Lazy training of layers that pass class scores on, or add their input, and its end by patience."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from oracle import dense_matrix
from rig import Rig, blocks, flat_vector, rig, tangled
from test_bytes import boundaries, training_kinds
from test_lazy import held_logits

from farflung.graph import Graph
from farflung.nn import ModelConfig, build_encoder

CUTS = [(1, "random"), (2, "random"), (5, "random"), (5, "mincut")]


@pytest.mark.parametrize("graph", [blocks, tangled])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize(
    ("encoder", "first", "residual"),
    [(e, *kind) for e in ("gcn", "sage") for kind in (("mlp", False), ("mlp", True), ("conv", True))]
    + [("mlp", "conv", True)],
)
def test_they_do_not_depend_on_the_cut(first: str, residual: bool, encoder: str, layers: int, graph) -> None:  # type: ignore[no-untyped-def]
    found = []
    for parts, by in CUTS:
        run = rig(
            graph(), "lazy", parts=parts, by=by, encoder=encoder, first=first, residual=residual, layers=layers,
            steps=15 * layers, dtype="float64", keep="best",
        ).train()  # fmt: skip
        central = run.logits("best")
        assert np.abs(central - held_logits(run, "best")).max() <= 1e-9
        found.append((central, [(record.val["accuracy"], record.best) for record in run.history]))
    assert np.isfinite(found[0][0]).all() and np.ptp(found[0][0]) > 0.1
    for other, history in found[1:]:
        assert np.abs(other - found[0][0]).max() <= 1e-9
        assert history == found[0][1]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_an_mlp_and_then_scores_of_neighbours(encoder: str, residual: bool) -> None:
    """The loop, spelt out: layer 0 on own features, layer 1 on the frozen scores of all."""
    run = rig(
        blocks(), "lazy", parts=3, encoder=encoder, first="mlp", residual=residual, steps=20, dtype="float64",
        keep="last",
    ).train()  # fmt: skip
    graph = run.graph
    config = ModelConfig(encoder=encoder, first="mlp", residual=residual, hidden=16, dropout=0.0)  # type: ignore[arg-type]
    model = build_encoder(config, graph.num_features, graph.num_classes, True, 0, torch.float64)
    matrix = dense_matrix(encoder, graph, run.partition.assignment)
    rows, y = np.flatnonzero(graph.split.train), torch.from_numpy(graph.y)
    h = torch.from_numpy(graph.x.astype(np.float64))
    losses = []

    def output(layer, h: torch.Tensor, number: int) -> torch.Tensor:  # type: ignore[no-untyped-def]
        operands = [h] if number == 0 else [h, matrix @ h] if encoder == "sage" else [matrix @ h]
        out = sum(a @ w for a, w in zip(operands, layer.conv.weights, strict=True)) + layer.conv.bias
        out = F.relu(F.layer_norm(out, (16,), layer.norm.weight, layer.norm.bias))
        out = out @ layer.out.weight.T + layer.out.bias
        return out + h if residual and number else out

    for number, layer in enumerate(model.layers):
        adam = torch.optim.Adam(layer.parameters(), lr=0.01, weight_decay=5e-4)
        for _ in range(10):
            adam.zero_grad()
            loss = F.cross_entropy(output(layer, h, number)[rows], y[rows])
            loss.backward()
            adam.step()
            losses.append(loss.item())
        h = output(layer, h, number).detach()
    assert np.allclose([record.loss for record in run.history], losses, rtol=0, atol=1e-9)
    assert np.abs(run.vector() - flat_vector(model.state_dict())).max() <= 1e-9
    assert np.abs(run.logits() - h.numpy()).max() <= 1e-9


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layers", [2, 4])
def test_features_never_leave_their_owner(layers: int, sparse: bool, wire: str) -> None:
    graph = blocks()
    if sparse:
        graph = graph.with_(features=(sp.csr_matrix(np.asarray(graph.x)),))
    run = rig(graph, "lazy", first="mlp", layers=layers, hidden=8, steps=2 * layers, wire=wire).train()
    b = sum(len(nodes) for nodes in boundaries(graph, run.partition.assignment).values())
    C, d, W = graph.num_classes, graph.num_features, 3
    each = 4 * b * C if wire == "float32" else b * (C + 8)
    P = [k * 8 + 8 + 2 * 8 + 8 * C + C for k in (d, *[C] * (layers - 1))]
    weights = 4 * W * sum(2 * p for p in P)
    assert training_kinds(run) == {"embeddings": (layers - 1) * each, "weights": weights, "gradients": weights}
    before = run.ledger.table()["phase"] == "exchange0"
    assert set(run.ledger.table()["kind"][before]) == {"control"}
    for trainer in run.team._trainers.values():
        assert [np.asarray(h).shape[1] for h in trainer.embeddings[1:]] == [C] * (layers - 1)


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("first", ["conv", "mlp"])
def test_failures_leave_finite_weights(first: str, wire: str) -> None:
    run = rig(
        blocks(), "lazy", first=first, residual=True, steps=20, wire=wire, keep="best", deadline="50s",
        faults="kill:1@3-5,nan:2@10,delay:0@12=100s",
    ).train()  # fmt: skip
    assert np.isfinite(run.vector("best")).all() and np.isfinite(run.vector("last")).all()
    assert not run.history[-1].absent


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("first", ["conv", "mlp"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_tma_trains_them_the_same_on_samples_of_all_neighbours(encoder: str, first: str, residual: bool) -> None:
    options = {
        "encoder": encoder, "first": first, "residual": residual, "dtype": "float64", "steps": 6, "interval": 3,
        "keep": "last",
    }  # fmt: skip
    whole = rig(blocks(), "tma", **options).train()
    sampled = rig(blocks(), "tma", sample={"batch": 240}, **options).train()
    assert np.abs(whole.vector() - sampled.vector()).max() <= 1e-9
    assert whole.history[-1].loss < whole.history[0].loss


def phases(run: Rig) -> list[str]:
    return [record.phase for record in run.history]


def unlucky(graph: Graph) -> Graph:
    """Validation nodes whose labels cannot be learnt: scores stop rising soon."""
    rng = np.random.default_rng(0)
    y = graph.y.copy()
    y[graph.split.val] = rng.integers(0, 3, np.count_nonzero(graph.split.val))
    return graph.with_(y=y)


@pytest.mark.parametrize("patience", [1, 3, 8])
@pytest.mark.parametrize("lazy", ["gradients", "weights"])
def test_patience_ends_a_layer_and_bytes_shrink(lazy: str, patience: int) -> None:
    options = {"lazy": lazy, "steps": 240, "interval": 2, "hidden": 8, "lr": 0.05, "keep": "best"}
    rounds = 120 if lazy == "gradients" else 60
    run = rig(unlucky(blocks()), "lazy", patience=patience, **options).train()
    whole = rig(unlucky(blocks()), "lazy", **options).train()
    assert len(whole.history) == 2 * rounds and not any(record.stopped for record in whole.history)
    per_layer = [phases(run).count(f"layer{i}") for i in range(2)]
    assert max(per_layer) < rounds
    for i in range(2):
        mine = [record for record in run.history if record.phase == f"layer{i}"]
        assert [record.stopped for record in mine] == [False] * (len(mine) - 1) + [True]
        best = max(j for j, record in enumerate(mine[:-1]) if record.best)
        assert len(mine) - 1 - best == patience + 1, "one more round was made while the last was scored"
        gaps = np.diff([j for j, record in enumerate(mine) if record.best])
        assert all(gap <= patience for gap in gaps)
    first = [r for r in whole.history if r.phase == "layer0"][: per_layer[0]]
    again = [r for r in run.history if r.phase == "layer0"]
    assert [r.val for r in first] == [r.val for r in again], "the same until it ends"
    d, C, W = run.graph.num_features, 3, 3
    P = [d * 8 + 8 + 16 + 8 * C + C, 8 * C + C]
    expected = 4 * W * sum(r * p for r, p in zip(per_layer, P, strict=True))
    kinds = training_kinds(run)
    assert kinds["weights"] + kinds.get("gradients", 0) == 2 * expected
    assert run.diary.expected[0][2] == 2 * rounds
    assert run.diary.expected[-1][2] == rounds + per_layer[0], "rounds that will not come are not expected"


def test_patience_of_all_rounds_changes_nothing() -> None:
    run = rig(blocks(), "lazy", steps=40, patience=20).train()
    plain = rig(blocks(), "lazy", steps=40).train()
    assert np.array_equal(run.vector("best"), plain.vector("best")) and run.ledger == plain.ledger


def test_equal_seeds_train_a_net_with_patience_alike() -> None:
    one, other = (rig(unlucky(blocks()), "lazy", steps=80, patience=2, dropout=0.4).train() for _ in range(2))
    assert one.history == other.history and np.array_equal(one.vector("best"), other.vector("best"))
