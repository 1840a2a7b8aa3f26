"""Inference by the trainers together against inference over the whole graph in one place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from rig import Rig, blocks, digits, rig, tangled
from test_bytes import boundaries

from farflung import local_inference
from farflung.graph import Graph
from farflung.methods import inference
from farflung.nn import flat
from farflung.team import EVALUATOR, SERVER

MODELS: dict[str, dict[str, object]] = {
    "gcn": {"encoder": "gcn"},
    "sage": {"encoder": "sage"},
    "gat": {"encoder": "gat"},
    "mlp": {"encoder": "mlp"},
    "scores passed on": {"encoder": "sage", "first": "mlp"},
    "residual": {"encoder": "gcn", "residual": True},
    "residual attention": {"encoder": "gat", "residual": True, "first": "mlp"},
}


def rows(run: Rig, weights: np.ndarray, layers: int | None = None) -> np.ndarray:
    inference.infer(run.team, run.setting.model, weights, layers)
    parts = inference.rows_of_parts(run.team)
    found = np.full((run.graph.num_nodes, parts[0].shape[1]), np.nan)
    for k, shard in enumerate(run.partition.shards):
        found[shard.inner] = parts[k]
    return found


@pytest.fixture(params=[7, 65536])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows at a time; 7 cuts every part into many."""
    init = local_inference.LocalInference.__init__
    monkeypatch.setattr(
        local_inference.LocalInference, "__init__", lambda self, shard, spec: init(self, shard, spec, request.param)
    )
    return int(request.param)


@pytest.mark.parametrize(("parts", "by"), [(2, "random"), (5, "random"), (2, "mincut"), (5, "mincut")])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("graph", [blocks, tangled])
def test_it_is_central_inference(graph: Callable[[], Graph], model: str, parts: int, by: str, chunk: int) -> None:
    run = rig(graph(), "tma", parts=parts, by=by, dtype="float64", layers=3, model=MODELS[model])
    weights = flat.pack(run.setting.model)
    central = run.evaluator.logits(run.setting.model.state_dict())  # type: ignore[union-attr]
    assert np.ptp(central) > 0.1
    assert np.abs(rows(run, weights) - central).max() <= 1e-9
    hidden = run.evaluator.embeddings(run.setting.model.state_dict())
    assert np.abs(rows(run, weights, 2) - hidden).max() <= 1e-9
    scores = inference.evaluate(run.team, run.setting.model, weights, ["train", "val", "test"])
    assert scores == run.evaluator.metrics(run.setting.model.state_dict(), "train", "val", "test")


@pytest.mark.parametrize("method", ["tma", "synchronous", "llcg"])
def test_training_is_the_same_whoever_evaluates(method: str) -> None:
    found = [
        rig(digits(), method, encoder="sage", dtype="float64", steps=12, interval=3, evaluation=how).train()
        for how in ("central", "exchange")
    ]
    central, apart = found
    assert (central.vector() == apart.vector()).all()
    assert [record.val for record in central.history] == [record.val for record in apart.history]
    assert [record.best for record in central.history] == [record.best for record in apart.history]
    assert central.ledger.training() == apart.ledger.training()
    assert EVALUATOR not in apart.ledger.received_by()


def test_bytes() -> None:
    graph, W, evaluations = digits(), 4, 3
    run = rig(graph, "tma", parts=W, encoder="sage", layers=3, hidden=8, steps=6, interval=2, evaluation="exchange")
    run.train()
    b = sum(len(nodes) for nodes in boundaries(graph, run.partition.assignment).values())
    P = sum(p.numel() for p in run.setting.model.parameters())
    assert run.ledger.total("evaluation") == 4 * b * graph.num_features + evaluations * (4 * W * P + 4 * b * 16)
    assert {s for s, r in run.ledger.matrix() if r >= 0 and s >= 0} == set(range(W)), "rows go from owner to owner"
    metrics = [pair for pair in run.ledger.matrix() if pair[0] >= 0 and pair[1] == SERVER]
    assert len(metrics) == W and run.ledger.total("metrics") > 0


def test_training_is_left_alone_in_between() -> None:
    run = rig(digits(), "synchronous", encoder="sage", steps=4, interval=2, evaluation="exchange", dropout=0.3).train()
    trainer = run.team._trainers[0]
    before = flat.pack(trainer.model).copy()
    rows(run, np.zeros_like(before))
    assert (flat.pack(trainer.model) == before).all()


@pytest.mark.parametrize("plan", ["kill:1@1-9", "delay:1@1=inf"])
def test_a_missing_owner_is_left_out(plan: str) -> None:
    run = rig(digits(), "tma", parts=3, encoder="sage", faults=plan, deadline=9.0, steps=9, interval=3, dtype="float64",
              evaluation="exchange").train()  # fmt: skip
    assert [sorted(record.absent) for record in run.history][1] == [1]
    assert all(record.val["accuracy"] is not None for record in run.history)  # type: ignore[index]
    run.team.begin(1, "late")
    weights = flat.pack(run.setting.model)
    inference.infer(run.team, run.setting.model, weights, deadline=9.0)
    parts = inference.rows_of_parts(run.team, 9.0)
    assert sorted(parts) == [0, 2] and all(np.isfinite(part).all() for part in parts.values())


def test_scores_that_are_no_numbers_are_none() -> None:
    run = rig(digits(), "tma", encoder="sage")
    weights = np.full_like(flat.pack(run.setting.model), np.inf)
    found = inference.evaluate(run.team, run.setting.model, weights, ["val"])
    assert found == {"val": dict.fromkeys(["accuracy", "f1_micro", "f1_macro"])}


def test_new_parts_are_inferred_on() -> None:
    run = rig(digits(), "tma", encoder="sage", steps=12, interval=3, redeal=1, evaluation="exchange", dtype="float64")
    central = rig(digits(), "tma", encoder="sage", steps=12, interval=3, redeal=1, dtype="float64").train()
    assert [record.val for record in run.train().history] == [record.val for record in central.history]
    assert torch.isfinite(torch.from_numpy(run.vector())).all()


def test_features_are_sent_once_though_an_owner_is_gone() -> None:
    run = rig(digits(), "tma", parts=3, encoder="sage", faults="kill:1@0-9", deadline=9.0, steps=9, interval=3,
              evaluation="exchange").train()  # fmt: skip
    table = run.ledger.table()
    sent = [int(table["bytes"][(table["kind"] == "evaluation") & (table["round"] == r)].sum()) for r in range(3)]
    assert sent[0] > sent[1] == sent[2]


def test_counts_that_are_no_numbers_are_left_out() -> None:
    graph = blocks(classes=2)
    run = rig(graph, "tma", parts=3, encoder="sage", faults="nan:1@1", steps=9, interval=3, evaluation="exchange")
    run.train()
    assert [record.val["roc_auc"] is not None for record in run.history] == [True] * 3  # type: ignore[index]


def test_one_that_was_late_for_the_weights_is_not_counted() -> None:
    run = rig(digits(), "tma", parts=3, encoder="sage", faults="delay:1@0=inf", deadline=9.0, steps=9, interval=3,
              evaluation="exchange").train()  # fmt: skip
    assert [record.val["accuracy"] is not None for record in run.history] == [True] * 3  # type: ignore[index]
