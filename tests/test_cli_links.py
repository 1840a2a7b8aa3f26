"""The command line where links are predicted, and with batches and other ways of averaging."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from command_line import complaint
from farflung.cli import main
from farflung.graph import Graph
from farflung.graph.store import save_graph
from farflung.methods.presets import PRESETS
from farflung.run.saved import SavedRun
from farflung.tasks import ranking

LINKS = ["--task", "link-prediction", "--split", "random:0.8/0.1/0.1", "--set", "eval_negatives=10"]
SMALL = ["--steps", "4", "--interval", "2steps", "--hidden", "8", "--batch", "32", "--threads", "1"]
ABLE = [name for name, one in PRESETS.items() if "link-prediction" in one.tasks]
SBM = "sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def ring(tmp_path) -> str:
    """Path of a ring with chords, 40 nodes, string ids, no labels."""
    near, far = np.arange(40), (np.arange(40) + 7) % 40
    graph = Graph.from_edges(
        np.concatenate([near, near]), np.concatenate([(near + 1) % 40, far]), num_nodes=40, symmetric=True,
        x=np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32), name="ring",
    )  # fmt: skip
    save_graph(graph.with_(ids=np.array([f"n{i:02d}" for i in range(40)])), tmp_path / "ring.npz")
    return str(tmp_path / "ring.npz")


def metrics_of(folder: str | Path) -> dict:
    return json.loads(Path(folder, "metrics.json").read_text())


def history_of(folder: str | Path) -> list[dict]:
    return [json.loads(line) for line in Path(folder, "history.jsonl").read_text().splitlines()]


def test_a_run_from_start_to_end(ring, tmp_path, capsys):
    out = str(tmp_path / "run")
    command = ["train", ring, "--method", "random-tma", "--parts", "2", "--seed", "3", "--fanouts", "3,3"]
    assert main([*command, *LINKS, *SMALL, "--plain", "--out", out]) == 0
    captured = capsys.readouterr()
    assert all(name in captured.out for name in ranking.names())
    assert "random-tma train round 1/2" in captured.err and "val mrr" in captured.err
    metrics = metrics_of(out)
    assert metrics["links"] == {"train": 64, "val": 8, "test": 8, "negatives": 10, "directed": False}
    assert json.loads(Path(out, "manifest.json").read_text())["seeds"]["run"] == 3

    assert main(["evaluate", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"test": metrics["test"], "val": metrics["val"]}
    assert main(["evaluate", out]) == 0
    assert f"{metrics['test']['mrr']:.4f}" in capsys.readouterr().out

    table = tmp_path / "e.parquet"
    assert main(["embed", out, "--out", str(table)]) == 0
    assert capsys.readouterr().out == f"40 nodes written to {table}\n"
    rows = pq.read_table(table).to_pydict()
    assert rows["id"] == [f"n{i:02d}" for i in range(40)]
    assert np.array_equal(np.array(rows["embedding"], np.float32), SavedRun.open(out).embed().rows)
    assert "predicts links" in complaint(capsys, "predict", out, "--out", str(tmp_path / "p.parquet"))
    assert not (tmp_path / "p.parquet").exists()

    again = str(tmp_path / "again")
    assert main(["train", "--config", f"{out}/config.yaml", "--quiet", "--out", again]) == 0
    assert capsys.readouterr().err == ""
    assert Path(again, "model.safetensors").read_bytes() == Path(out, "model.safetensors").read_bytes()
    assert metrics_of(again)["test"] == metrics["test"]


@pytest.mark.parametrize("method", [name for name in PRESETS if name not in ABLE])
def test_a_method_that_cannot_names_those_that_can(method, ring, capsys):
    said = complaint(capsys, "train", ring, "--method", method, "--task", "link-prediction")
    assert f"method '{method}' cannot do task 'link-prediction'" in said and ", ".join(ABLE) in said
    assert ", ".join(ABLE) in complaint(capsys, "presets", method, "--task", "link-prediction")
    assert ", ".join(ABLE) in complaint(capsys, "compare", ring, "--methods", method, "--task", "link-prediction")


def test_the_default_method_trains_links_too(ring, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", ring, "--parts", "2", *LINKS, *SMALL, "--plain", "--out", out]) == 0
    assert "retexo layer1" in capsys.readouterr().err
    assert metrics_of(out)["test"]["mrr"] is not None
    assert [line["val"] is not None for line in history_of(out)] == [False, True] * 2
    refused = complaint(capsys, "train", ring, *LINKS, "--set", "mask_targets=true")
    assert "option 'links.mask_targets' cannot be true with method 'retexo'" in refused


@pytest.mark.parametrize("arguments", [["train", SBM], ["compare", SBM], ["presets", "super-tma"]])
def test_an_unknown_task_lists_what_exists(arguments, capsys):
    said = complaint(capsys, *arguments, "--task", "regression")
    assert "unknown task 'regression': choose from node-classification, link-prediction" in said


@pytest.mark.parametrize("method", ABLE)
def test_presets_print_yaml_that_trains_links(method, ring, tmp_path, capsys):
    assert main(["presets", method, "--task", "link-prediction"]) == 0
    printed = capsys.readouterr().out
    assert "task: link-prediction" in printed and "eval_negatives: 1000" in printed
    (tmp_path / "mine.yaml").write_text(printed)
    command = ["train", ring, "--config", str(tmp_path / "mine.yaml"), *LINKS, *SMALL, "--quiet"]
    if "clusters: 15000" in printed:
        command += ["--set", "clusters=9", "--set", "time_limit=null"]
    assert main(command) == 0
    assert "mrr" in capsys.readouterr().out


def test_parts_on_disk_train_links(ring, tmp_path, capsys):
    parts, out = str(tmp_path / "parts"), str(tmp_path / "run")
    assert main(["partition", ring, "--by", "random", "--parts", "3", "--seed", "1", "--out", parts]) == 0
    assert main(["train", parts, "--method", "super-tma", *LINKS, *SMALL, "--quiet", "--out", out]) == 0
    assert metrics_of(out)["links"]["test"] == 8
    capsys.readouterr()
    assert main(["evaluate", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == metrics_of(out)["test"]
    said = complaint(capsys, "train", parts, "--method", "super-tma", "--parts", "7", *LINKS, *SMALL)
    assert "cut already" in said


def test_a_comparison_is_by_mrr_and_goes_on_where_it_was(ring, tmp_path, capsys):
    grid = tmp_path / "grid"
    command = ["compare", ring, "--methods", "centralised,random-tma[fanouts=2/2,parts=2]", *LINKS, *SMALL]
    command += ["--out", str(grid)]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "mrr %" in first.out and "accuracy" not in first.out
    assert first.err.count("test mrr") == 2
    content = json.loads((grid / "compare.json").read_text())
    assert content["metric"] == "mrr" and content["failed"] == []
    assert [row["label"] for row in content["methods"]] == ["centralised", "random-tma[fanouts=2/2,parts=2]"]
    assert all(0 < row["test"]["mean"] <= 1 for row in content["methods"])
    (cell,) = grid.glob("cells/random-tma*.json")
    record = json.loads(cell.read_text())
    assert record["config"]["sample"]["fanouts"] == "2,2" and record["result"]["links"]["negatives"] == 10
    cell.unlink()
    assert main(command) == 0
    second = capsys.readouterr()
    assert second.err.count("from an earlier call") == 1
    again = json.loads(cell.read_text())
    assert again["result"]["test"] == record["result"]["test"]
    assert main(command) == 0
    assert capsys.readouterr().out == second.out
    assert main([*command, "--show"]) == 0
    assert capsys.readouterr().out == second.out
    assert "other options (links.eval_negatives)" in complaint(capsys, *command, "--set", "eval_negatives=11")


def test_what_has_no_links_to_score_is_null_not_nought(ring, tmp_path, capsys):
    out = str(tmp_path / "run")
    command = ["train", ring, "--method", "centralised", *LINKS, "--split", "random:1/0/0", *SMALL, "--plain"]
    assert main([*command, "--out", out]) == 0
    assert "0.0000" not in capsys.readouterr().out
    assert metrics_of(out)["test"] == metrics_of(out)["val"] == dict.fromkeys(ranking.names())
    assert metrics_of(out)["links"]["test"] == 0
    assert main(["evaluate", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == dict.fromkeys(ranking.names())


def test_weights_that_diverge_are_one_line_and_exit_code_1(ring, capsys):
    command = ["train", ring, "--method", "centralised", *LINKS, *SMALL, "--interval", "1steps", "--set", "lr=1e30"]
    assert "not finite" in complaint(capsys, *command, "--quiet", code=1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--features", "given"], "'bare' has no features: set features=degree or features=gaussian:64"),
        (["--features", "degree", "--split", "public"], "unknown split of edges 'public'"),
        (["--features", "degree", "--fanouts", "5"], "1 numbers for 2 layers"),
        (["--features", "degree", "--fanouts", "5,x"], "'5,x' are no fan-outs"),
        (["--features", "degree", "--batch", "0"], "'sample.batch' cannot be '0'"),
        (["--features", "degree", "--set", "metric=accuracy"], "choose from mrr"),
    ],
)
def test_mistakes_are_one_line(arguments, match, tmp_path, capsys):
    save_graph(
        Graph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4, symmetric=True, name="bare"), tmp_path / "bare.npz"
    )
    command = [
        "train",
        str(tmp_path / "bare.npz"),
        "--method",
        "random-tma",
        "--task",
        "link-prediction",
        "--parts",
        "2",
    ]
    assert match in complaint(capsys, *command, *arguments)


def test_batches_learn_digits(tmp_path, capsys):
    command = ["train", "digits", "--method", "random-tma", "--parts", "2", "--fanouts", "5,5", "--batch", "64"]
    command += ["--steps", "60", "--interval", "20steps", "--hidden", "32", "--set", "lr=0.01", "--threads", "1"]
    assert main([*command, "--quiet", "--out", str(tmp_path / "run")]) == 0
    metrics = metrics_of(tmp_path / "run")
    assert metrics["test"]["accuracy"] > 0.8
    assert [set(line["steps"].values()) for line in history_of(tmp_path / "run")] == [{20}] * 3


@pytest.mark.parametrize("task", [[], LINKS], ids=["nodes", "links"])
@pytest.mark.parametrize(
    "sets",
    [
        ["aggregation=examples"],
        ["aggregation=median"],
        ["aggregation=trimmed-mean", "trim=0.3"],
        ["aggregation=nesterov", "outer_lr=0.5", "outer_momentum=0.8"],
        ["moments=average"],
        ["redeal=1"],
        ["soup=true"],
    ],
    ids=lambda sets: sets[0],
)
def test_ways_of_averaging(sets, task, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["train", SBM, "--method", "random-tma", "--parts", "3", *task, *SMALL, "--plain", "--out", str(out)]
    assert main([*command, *(f"--set={text}" for text in sets)]) == 0
    captured = capsys.readouterr()
    metrics, history, metric = metrics_of(out), history_of(out), SavedRun.open(out).config.metric
    per_vector = 4 * metrics["parameters"]
    per_round = 3 * 2 * per_vector * (3 if "moments=average" in sets else 1)
    assert metrics["bytes"]["weights"] == 3 * per_vector + 2 * per_round
    assert (history[-1]["phase"] == "soup") == ("soup=true" in sets)
    assert ("random-tma soup round 3" in captured.err) == ("soup=true" in sets)
    assert metrics["val"][metric] == max(line["val"][metric] for line in history)
    capsys.readouterr()
    assert main(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test"] == metrics["test"]


def test_parts_dealt_anew_are_setup_in_a_phase_of_their_own(tmp_path, capsys):
    command = ["train", SBM, "--method", "random-tma", *LINKS, *SMALL, "--quiet"]
    assert main([*command, "--set", "redeal=1", "--out", str(tmp_path / "dealt")]) == 0
    assert main([*command, "--out", str(tmp_path / "still")]) == 0
    dealt, still = (metrics_of(tmp_path / name)["bytes"] for name in ("dealt", "still"))
    rows = pq.read_table(tmp_path / "dealt" / "ledger.parquet").to_pydict()
    anew = sum(n for n, phase, kind in zip(rows["bytes"], rows["phase"], rows["kind"], strict=True)
               if phase == "redeal" and kind == "setup")  # fmt: skip
    assert dealt["setup"] == still["setup"] + anew and anew > 0
    assert "redeal" in complaint(capsys, *command, "--by", "mincut", "--set", "redeal=1")


@pytest.mark.parametrize("task", [[], LINKS], ids=["nodes", "links"])
def test_llcg_shows_what_its_server_costs(task, tmp_path, capsys):
    sent = {}
    for method in ("llcg", "psgd-pa"):
        out = tmp_path / method
        assert main(["train", SBM, "--method", method, *task, *SMALL, "--quiet", "--out", str(out)]) == 0
        sent[method] = metrics_of(out)["bytes"]
    assert sent["llcg"]["setup"] == 2 * sent["psgd-pa"]["setup"]
    assert sent["llcg"]["weights"] == sent["psgd-pa"]["weights"]
    models = [(tmp_path / method / "model.safetensors").read_bytes() for method in sent]
    assert models[0] != models[1]


def test_lazy_training_averages_weights_on_request(tmp_path, capsys):
    command = ["train", SBM, "--method", "retexo", "--steps", "8", "--hidden", "8", "--threads", "1", "--quiet"]
    averaging = ["--set", "lazy=weights", "--interval", "2steps"]
    assert main([*command, *averaging, "--out", str(tmp_path / "run")]) == 0
    metrics = metrics_of(tmp_path / "run")
    assert "gradients" not in metrics["bytes"] and metrics["bytes"]["weights"] > 0
    assert [line["phase"] for line in history_of(tmp_path / "run")] == ["layer0"] * 2 + ["layer1"] * 2
    assert "'train.interval' does nothing with train.lazy=gradients" in complaint(capsys, *command, *averaging[2:])
