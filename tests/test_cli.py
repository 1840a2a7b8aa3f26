"""The command line: what it prints, its exit codes, and errors in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from command_line import complaint
from farflung import __version__
from farflung.cli import main
from farflung.graph import Graph, Split
from farflung.graph.store import save_graph
from farflung.methods.presets import NODES, PRESETS
from farflung.run.folder import RunFolder

SMALL = ["--steps", "4", "--hidden", "4", "--threads", "1"]


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def blobs(tmp_path) -> str:
    """Path of a small graph: two classes told apart by their features, string ids, the last node isolated."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.standard_normal((40, 4)) + 3 * y[:, None]).astype(np.float32)
    graph = Graph.from_edges(*rng.integers(0, 39, (2, 120)), num_nodes=40, x=x, y=y, name="blobs")
    path = tmp_path / "blobs.npz"
    save_graph(graph.with_(ids=np.array([f"n{i:02d}" for i in range(40)])), path)
    return str(path)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"farflung {__version__}\n"


def test_help_names_commands_and_methods(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("train", "compare", "evaluate", "predict", "partition", "inspect", "presets", "datasets"):
        assert command in text
    assert main(["train", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())  # long names are broken at their hyphens
    assert all(name in text for name in PRESETS)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["tain"], r"no such command 'tain'.*train, compare"),
        (["train", "digits", "--methd", "x"], r"no such option '--methd' \(did you mean '--method'\?\).*--method"),
        (["train", "digits", "--method"], r"--method"),
        (["train", "digits", "cora"], r"cora"),
        (["train"], r"'graph' is missing.*farflung datasets"),
        (["train", "nosuch"], r"nosuch.*digits"),
        (["train", "digits", "--method", "nosuch"], r"unknown method 'nosuch'.*centralised.*retexo"),
        (["train", "digits", "--encoder", "gin"], r"unknown encoder 'gin'.*: choose from gcn, sage, gat, mlp"),
        (["train", "digits", "--encoder", "gat", "--hidden", "100"], "8 attention heads .* hidden width of 100"),
        (["train", "digits", "--set", "attention_heads=4"], "attention_heads' does nothing with model.encoder=sage"),
        (["train", "digits", "--parts", "four"], r"partition.parts.*'four'"),
        (["train", "digits", "--set", "model.width=3"], r"unknown option 'model.width'.*model.hidden"),
        (["train", "digits", "--set", "width"], r"option=value"),
        (
            ["train", "digits", "--method", "centralised", "--parts", "3"],
            r"does not use .*partition.parts.*retexo",
        ),
        (["train", "digits", "--split", "halves"], r"unknown split 'halves'.*public.*random"),
        (["train", "digits", "--features", "tfidf"], r"tfidf.*given, degree"),
        (["train", "digits", "--link", "pigeon"], r"pigeon.*datacentre"),
        (["train", "digits", "--faults", "explode:1@2"], r"explode.*kill"),
        (["train", "digits", "--config", "/no/such.yaml"], r"/no/such.yaml"),
        (["compare", "digits", "--methods", "centralised", "--parts", "3"], r"none of the methods uses"),
        (["compare", "digits", "--methods", "centralised,nosuch"], r"unknown method 'nosuch'"),
        (["compare", "digits", "--show", "--out", "/no/such"], r"/no/such"),
        (["evaluate", "/no/such"], r"no run folder"),
        (["predict", "/no/such"], r"no run folder"),
        (["partition", "digits", "--out", "x", "--by", "magic"], r"partition.by.*'random'.*'mincut'"),
        (["partition", "digits", "--out", "x", "--clusters", "9"], r"partition.by=supernode"),
        (["presets", "nosuch"], r"unknown method 'nosuch'"),
        (["inspect", "nosuch"], r"nosuch"),
    ],
)
def test_mistakes_are_one_line_that_lists_what_exists(arguments, match, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(match, complaint(capsys, *arguments))
    assert list(tmp_path.iterdir()) == []


def test_a_run_from_start_to_end(blobs, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", blobs, "--parts", "2", "--seed", "3", *SMALL, "--set", "lr=0.05", "--out", out]) == 0
    captured = capsys.readouterr()
    assert "accuracy" in captured.out
    assert "retexo layer0 round 1" in captured.err
    metrics = json.loads(Path(out, "metrics.json").read_text())

    assert main(["evaluate", out, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == {"test": metrics["test"], "val": metrics["val"]}
    assert main(["evaluate", out]) == 0
    assert f"{metrics['test']['accuracy']:.4f}" in capsys.readouterr().out

    table = tmp_path / "p.parquet"
    assert main(["predict", out, "--out", str(table), "--all-classes"]) == 0
    rows = pq.read_table(table).to_pydict()
    assert rows["id"] == [f"n{i:02d}" for i in range(40)]
    assert list(rows) == ["id", "label", "probability", "p_0", "p_1"]

    assert re.search("not empty.*--overwrite", complaint(capsys, "train", blobs, *SMALL, "--out", out))
    again = str(tmp_path / "again")
    assert main(["train", "--config", f"{out}/config.yaml", "--quiet", "--out", again]) == 0
    assert capsys.readouterr().err == ""
    assert Path(again, "model.safetensors").read_bytes() == Path(out, "model.safetensors").read_bytes()
    assert main(["train", blobs, *SMALL, "--out", out, "--overwrite", "--quiet"]) == 0


def test_parts_on_disk_can_be_inspected_and_trained(blobs, tmp_path, capsys):
    parts = str(tmp_path / "parts")
    assert main(["partition", blobs, "--by", "random", "--parts", "3", "--seed", "1", "--out", parts]) == 0
    assert "40 nodes" in capsys.readouterr().out
    assert main(["inspect", parts, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["parts"], report["nodes"], report["by"]) == (3, 40, "random")
    assert report["gradient_spread"] > 0
    assert sum(report["masks"]["train"]) == 8
    assert main(["inspect", blobs, "--by", "random", "--parts", "3", "--seed", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes_per_part"] == report["nodes_per_part"]
    assert main(["inspect", parts]) == 0
    text = capsys.readouterr().out
    assert "gradient bias" in text
    assert "33.33 %" in text
    assert main(["train", parts, *SMALL, "--quiet"]) == 0
    assert "cut already" in complaint(capsys, "train", parts, "--parts", "7", "--quiet")
    assert "cut already" in complaint(capsys, "train", parts, "--parts", "4", "--quiet")  # also the preset's own
    assert "cut already" in complaint(capsys, "inspect", parts, "--parts", "4")


def test_a_comparison_ends_in_a_table_and_goes_on_where_it_was(blobs, tmp_path, capsys):
    command = ["compare", blobs, "--methods", "centralised,retexo[parts=3]", "--parts", "2", "--seeds", "2", *SMALL]
    command += ["--out", str(tmp_path / "grid")]
    assert main(command) == 0
    first = capsys.readouterr()
    assert first.err.count("\n") == 4
    assert "retexo[parts=3]" in first.out
    assert main(command) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert second.err.count("from an earlier call") == 4
    assert main([*command, "--show"]) == 0
    assert capsys.readouterr().out == first.out
    assert "other options (model.hidden)" in complaint(capsys, *command, "--set", "hidden=5")


def test_comparisons_of_different_sbm_graphs_have_folders_of_their_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        command = ["compare", f"sbm:nodes=200,homophily=0.8,seed={seed}", "--methods", "centralised", "--quiet"]
        assert main([*command, *SMALL]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    capsys.readouterr()


@pytest.fixture
def lopsided(tmp_path) -> str:
    """Path of a graph with a public split whose training nodes all have side 0 in the column `side`."""
    rng = np.random.default_rng(0)
    y, masks = np.arange(40) % 2, np.zeros((3, 40), dtype=bool)
    masks[0, :10], masks[1, 20:30], masks[2, 30:] = True, True, True
    x = rng.standard_normal((40, 4)).astype(np.float32)
    graph = Graph.from_edges(
        *rng.integers(0, 40, (2, 120)), num_nodes=40, symmetric=True, x=x, y=y, name="lopsided",
        public_splits=(Split(*masks),), columns={"side": np.arange(40) // 20},
    )  # fmt: skip
    save_graph(graph, tmp_path / "lopsided.npz")
    return str(tmp_path / "lopsided.npz")


def test_training_labels_in_one_part_are_said_before_training(lopsided, tmp_path, capsys):
    cut = ["--by", "given", "--set", "given=side", *SMALL]
    assert main(["train", lopsided, *cut, "--plain"]) == 0
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: all training labels are in part 0")
    assert not any("warning" in line for line in rest)
    assert main(["train", lopsided, *cut, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    command = ["compare", lopsided, "--methods", "centralised,retexo,random-tma", "--seeds", "2", *cut]
    assert main([*command, "--out", str(tmp_path / "grid")]) == 0
    assert capsys.readouterr().err.count("warning: ") == 1


def test_what_could_not_be_written_is_a_note_beside_the_error(blobs, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("farflung.run.folder.save_file", full)
    command = ["train", blobs, "--parts", "2", *SMALL, "--quiet", "--out", str(tmp_path / "run")]
    assert main([*command, "--faults", "raise:1@1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: trainer 1")
    assert [line for line in lines if line.startswith("note: ") and "No space left on device" in line]


def test_overwrite_removes_nothing_until_the_new_run_can_begin(blobs, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["train", blobs, *SMALL, "--quiet", "--out", out]) == 0
    before = Path(out, "model.safetensors").read_bytes()
    assert "nosuch" in complaint(capsys, "train", "nosuch", "--out", out, "--overwrite")
    assert Path(out, "model.safetensors").read_bytes() == before


def test_a_failed_cell_is_reported_and_the_exit_code_is_1(blobs, tmp_path, capsys):
    command = ["compare", blobs, "--methods", "centralised,retexo[parts=41]", *SMALL, "--out", str(tmp_path / "grid")]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "failed: retexo[parts=41], seed 0: " in captured.err
    assert "Traceback" not in captured.err
    assert "centralised" in captured.out


def test_a_broken_run_leaves_a_checkpoint_and_exit_code_1(blobs, tmp_path, capsys):
    command = ["train", blobs, "--parts", "2", *SMALL, "--quiet", "--out", str(tmp_path / "run")]
    assert main([*command, "--faults", "raise:1@1"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: trainer 1")
    assert RunFolder.open(tmp_path / "run").read_checkpoint().last


def test_an_absent_trainer_is_named_as_it_happens(blobs, capsys):
    command = ["train", blobs, "--method", "random-tma", "--interval", "1steps", "--parts", "3", *SMALL, "--plain"]
    assert main([*command, "--faults", "kill:1@2"]) == 0
    assert "trainer 1 absent: dead" in capsys.readouterr().err


@pytest.mark.parametrize("method", [name for name, one in PRESETS.items() if NODES in one.tasks])
def test_presets_print_yaml_that_trains(method, blobs, tmp_path, capsys):
    assert main(["presets"]) == 0
    assert method in capsys.readouterr().out
    assert main(["presets", method]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out)
    command = ["train", blobs, "--config", str(file), "--split", "random", *SMALL, "--quiet"]
    assert main(command) == 0


def test_datasets_lists_what_load_knows(capsys):
    assert main(["datasets"]) == 0
    text = capsys.readouterr().out
    for name in ("digits", "sbm:", "planetoid-cora", "ogbn-products"):
        assert name in text


def test_an_unwritable_run_folder_is_said_before_training(blobs, tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    message = complaint(capsys, "train", blobs, *SMALL, "--out", str(tmp_path / "file" / "run"))
    assert "cannot be written" in message


def test_importing_farflung_is_light_and_needs_no_extra():
    heavy = ["torch", "torch_geometric", "numba", "ray", "ogb", "pyarrow", "sklearn", "flwr"]
    script = f"import sys, farflung; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert out == "[]\n"


def test_training_works_without_any_optional_package(blobs):
    script = (
        "import sys\n"
        "for name in ('ray', 'ogb', 'flwr', 'pymetis'): sys.modules[name] = None\n"
        "import farflung\n"
        f"run = farflung.train({blobs!r}, parts=2, steps=2, hidden=4, threads=1)\n"
        "print(run.test['accuracy'] is not None)"
    )
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert out == "True\n"


def test_a_missing_extra_is_named_with_its_command(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    assert "pip install 'farflung[ogb]'" in complaint(capsys, "train", "ogbn-products")


def test_public_names():
    import farflung

    for name in farflung.__all__:
        assert getattr(farflung, name) is not None
    assert set(farflung.__all__) <= set(dir(farflung))
    with pytest.raises(AttributeError, match=r"no attribute 'tarin'.*train"):
        _ = farflung.tarin


def test_a_defect_in_a_trainer_shows_its_traceback_and_the_trainer(capsys, tmp_path):
    command = ["train", "digits", "--steps", "20", "--hidden", "4", "--quiet", "--faults", "raise:1@1"]
    assert main(command) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "trainer 1 raises in round 1" in shown
    assert shown.splitlines()[-1].startswith("error: trainer 1 failed in round 1")


def test_a_run_folder_named_like_a_dataset_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "digits", "--method", "centralised", "--steps", "2", "--hidden", "4", "--quiet"]
    assert main([*command, "--out", "digits"]) == 0
    assert main([*command, "--out", "again"]) == 0


@pytest.mark.parametrize("option", ["seed=5", "graph=cora", "method=centralised"])
def test_brackets_hold_no_option_of_the_grid(capsys, option):
    name = option.partition("=")[0]
    assert f"option '{name}' is the grid's" in complaint(capsys, "compare", "digits", "--methods", f"retexo[{option}]")


def test_steps_do_nothing_with_an_interval_in_time(capsys):
    command = ["train", "digits", "--method", "random-tma", "--interval", "1s", "--time-limit", "2s", "--steps", "5"]
    assert "'train.steps' does nothing" in complaint(capsys, *command)


def test_a_trainer_that_hangs_needs_a_deadline(capsys):
    assert "set a deadline" in complaint(capsys, "train", "digits", "--faults", "delay:1@1=inf")


@pytest.mark.parametrize("content", ["[]", "{}"])
def test_a_damaged_comparison_is_one_line(capsys, tmp_path, content):
    (tmp_path / "compare.json").write_text(content)
    command = ["compare", "digits", "--methods", "retexo", "--out", str(tmp_path), "--show"]
    assert "no result of a comparison" in complaint(capsys, *command)


def test_a_narrow_encoding_does_not_end_in_a_traceback():
    narrow = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "farflung", "datasets"], env=narrow, capture_output=True, check=False)
    assert done.returncode == 0 and b"digits" in done.stdout
