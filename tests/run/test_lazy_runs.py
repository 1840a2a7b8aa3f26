"""Lazy training's options from a run's start to its saved model: wire, patience, scores after an MLP, skips, links."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from farflung.cli.main import app
from farflung.graph import load
from farflung.run.config import read_yaml, resolve
from farflung.run.saved import SavedRun
from farflung.run.train import execute, train

GRAPH = "sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"
SMALL = {"method": "retexo", "parts": 3, "steps": 12, "hidden": 8, "threads": 1}
LINKS = {"task": "link-prediction", "eval_negatives": 10, "interval": "2steps", "steps": 12}
CASES = {
    "scores": {"first": "mlp"},
    "scores with skips": {"first": "mlp", "residual": True, "encoder": "gcn", "layers": 3},
    "skips": {"residual": True, "wire": "int8"},
    "halves": {"wire": "float16", "lazy": "weights", "interval": "2steps"},
    "links": LINKS,
    "links with skips": {**LINKS, "residual": True, "encoder": "gcn", "wire": "int8", "batch": 32},
    "links by averages": {**LINKS, "lazy": "weights", "decoder": "dot", "layers": 3},
}
EACH = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


@EACH
def test_a_saved_run_scores_as_it_did(options, tmp_path: Path) -> None:
    run = train(GRAPH, out=tmp_path / "run", **{**SMALL, **options})
    saved = SavedRun.open(tmp_path / "run")
    assert saved.evaluate() == {"val": run.val, "test": run.test}
    rows = saved.embed().rows
    width = 3 if options.get("first") == "mlp" else 8
    assert rows.shape == (150, width) and np.isfinite(rows).all()
    assert np.array_equal(rows, run.embed().rows)
    if "task" not in options:
        assert np.array_equal(saved.predict().probabilities, run.predict().probabilities)
    best = [record for record in run.history if record.round == run.metrics["best_round"]]
    assert [dict(record.val) for record in best] == [pytest.approx(run.val, abs=1e-6)]


@EACH
def test_the_folder_trains_the_same_again(options, tmp_path: Path) -> None:
    run = train(GRAPH, out=tmp_path / "run", **{**SMALL, **options})
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    for name, value in run.model.state_dict().items():
        assert np.array_equal(value.numpy(), again.model.state_dict()[name].numpy()), name
    assert again.ledger == run.ledger


def test_history_says_where_patience_ended_a_layer(tmp_path: Path) -> None:
    run = train(GRAPH, out=tmp_path / "run", **{**SMALL, "steps": 400, "lr": 0.05}, patience=2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    stopped = [line["round"] for line in lines if line.get("stopped")]
    layers = [[line["round"] for line in lines if line["phase"] == f"layer{i}"] for i in range(2)]
    assert stopped == [rounds[-1] for rounds in layers]
    assert all("stopped" not in line for line in lines if line["round"] not in stopped)
    assert run.metrics["rounds"] == len(lines) < 400


def test_the_command_line_trains_evaluates_and_embeds_links(tmp_path: Path) -> None:
    runner, folder = CliRunner(), str(tmp_path / "run")
    flags = ["--set", "task=link-prediction", "--set", "eval_negatives=10", "--set", "steps=12", "--set", "hidden=8"]
    flags += ["--set", "interval=3steps", "--set", "wire=int8", "--set", "threads=1"]
    trained = runner.invoke(app, ["train", GRAPH, "--method", "retexo", "--out", folder, *flags])
    assert trained.exit_code == 0, trained.output
    scored = runner.invoke(app, ["evaluate", folder])
    assert scored.exit_code == 0 and "mrr" in scored.output
    table = str(tmp_path / "rows.parquet")
    assert runner.invoke(app, ["embed", folder, "--out", table]).exit_code == 0
    assert Path(table).exists()


def test_links_train_on_given_parts_and_without_features(tmp_path: Path) -> None:
    from farflung.partition import partition

    parts = partition(load(GRAPH), by="mincut", parts=3)
    parts.save(tmp_path / "parts")
    run = train(str(tmp_path / "parts"), features="gaussian:4", **{**SMALL, **LINKS, "parts": 3})
    assert run.partition.digest == parts.digest
    assert run.test["mrr"] is not None
