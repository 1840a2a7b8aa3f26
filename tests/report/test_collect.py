"""`farflung report` and what leaves a page: real runs, real comparisons, and folders that are neither."""

import json
import shutil

import numpy as np
import pytest
from html_reading import Page

from command_line import complaint
from farflung.cli.main import main
from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.store import save_graph
from farflung.report.collect import collect
from farflung.report.digest import studies
from farflung.report.record import RunRecord

OPTIONS = ("--steps", "6", "--hidden", "8", "--threads", "1", "--split", "random")


def blobs_file(folder) -> str:
    """A small graph of two classes that its features tell apart."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.standard_normal((40, 4)) + 3 * y[:, None]).astype(np.float32)
    save_graph(
        Graph.from_edges(*rng.integers(0, 40, (2, 120)), num_nodes=40, x=x, y=y, name="blobs"), folder / "blobs.npz"
    )
    return str(folder / "blobs.npz")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run folder and a comparison, both of one small graph."""
    root = tmp_path_factory.mktemp("report")
    graph = blobs_file(root)
    assert main(["train", graph, "--method", "retexo", "--parts", "3", *OPTIONS, "--out", str(root / "run"), "-q"]) == 0
    methods = ["--methods", "centralised,random-tma", "--seeds", "2", "--parts", "3"]
    assert main(["compare", graph, *methods, *OPTIONS, "--out", str(root / "grid"), "-q"]) == 0
    return root


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def test_a_run_leaves_a_page_with_its_metrics(folders):
    metrics = json.loads((folders / "run" / "metrics.json").read_text())
    (row,) = Page((folders / "run" / "report.html").read_text(encoding="utf-8")).columns("Summary")
    assert row["method"] == "retexo"
    assert row["test accuracy, %"] == percent(metrics["test"]["accuracy"])
    kinds = Page((folders / "run" / "report.html").read_text(encoding="utf-8")).columns("Bytes by kind")
    assert kinds[0].keys() - {"method", "in all"} == metrics["bytes"].keys() - {"total"}


def test_a_comparison_leaves_a_page_with_the_numbers_of_its_summary(folders):
    summary = json.loads((folders / "grid" / "compare.json").read_text())["methods"]
    rows = Page((folders / "grid" / "report.html").read_text(encoding="utf-8")).columns("Summary")
    assert [row["method"] for row in rows] == ["centralised", "random-tma"]
    for row, method in zip(rows, summary, strict=True):
        test = method["test"]
        assert row["test accuracy, %"] == f"{percent(test['mean'])} ± {percent(test['sd'])}"
    assert rows[0]["times fewer"] == "sends none"


def test_a_report_takes_runs_and_comparisons_together(folders, tmp_path, capsys):
    out = tmp_path / "all.html"
    assert main(["report", str(folders / "run"), str(folders / "grid"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"5 runs in {out}, ")
    rows = Page(out.read_text(encoding="utf-8")).columns("Summary")
    assert {row["method"]: row["seeds"] for row in rows} == {"retexo": "1", "centralised": "2", "random-tma": "2"}


def test_a_record_survives_json_and_agrees_with_the_ledger(folders):
    record = RunRecord.open(folders / "run")
    assert RunRecord.from_dict(json.loads(json.dumps(record.as_dict()))) == record
    assert len(record.training_bytes) == len(record.history)
    assert record.training_bytes == sorted(record.training_bytes)
    assert record.training_bytes[-1] == record.metrics["training_bytes"]
    assert sum(record.by_kind.values()) == record.metrics["bytes"]["total"]
    assert sum(sum(kinds.values()) for kinds in record.by_phase.values()) == record.metrics["bytes"]["total"]
    assert sum(sent for *_, sent in record.pairs) == record.metrics["bytes"]["total"]


def copied(folders, tmp_path):
    """The comparison's cells somewhere else: file -> content, and the folder to write them to."""
    cells = tmp_path / "cells"
    cells.mkdir(parents=True)
    return cells, {p.name: json.loads(p.read_text()) for p in sorted((folders / "grid" / "cells").iterdir())}


def test_failed_old_and_left_over_cells_are_said(folders, tmp_path):
    cells, contents = copied(folders, tmp_path)
    first, second, third, _ = contents
    contents[first] = {k: v for k, v in contents[first].items() if k not in ("record", "result")} | {"error": "gone"}
    del contents[second]["record"]
    for name, content in contents.items():
        (cells / name).write_text(json.dumps(content))
    found = collect([tmp_path])
    assert [(failure.label, failure.error) for failure in found.failed] == [("centralised", "gone")]
    assert len(found.records) == 2
    assert "not come to its end" in found.notes[0]
    assert "1 cells" in found.notes[1]
    assert "earlier version" in found.notes[1]
    keep = contents[third]
    rows = [{"label": keep["label"], "seeds": [keep["seed"]]}]
    (tmp_path / "compare.json").write_text(json.dumps({"graph": "g", "metric": "m", "methods": rows, "failed": []}))
    found = collect([tmp_path])
    assert [(record.label, record.seed) for record in found.records] == [(keep["label"], keep["seed"])]
    assert "3 cells of other methods or seeds" in found.notes[0]


def test_folders_that_cannot_be_reported_on_are_one_line(folders, tmp_path, capsys):
    out = ("--out", str(tmp_path / "report.html"))
    assert "there is nothing at" in complaint(capsys, "report", str(tmp_path / "nosuch"), *out)
    assert "no run and no comparison in" in complaint(capsys, "report", str(tmp_path), *out)
    cells, contents = copied(folders, tmp_path / "failed")
    content = next(iter(contents.values()))
    (cells / "one.json").write_text(json.dumps({"label": "retexo", "seed": 0, "error": "lost", "config": {}}))
    assert "first failure: lost" in complaint(capsys, "report", str(cells.parent), *out)
    (cells / "two.json").write_text("[1]")
    assert "no cell of a comparison" in complaint(capsys, "report", str(cells.parent), *out)
    run = str(folders / "run")
    assert "no folder" in complaint(capsys, "report", run, "--out", str(tmp_path / "no" / "report.html"))
    assert "it is a folder" in complaint(capsys, "report", run, "--out", str(tmp_path))
    assert "Missing argument" in complaint(capsys, "report")
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(InputError, match="upgrade farflung"):
        RunRecord.from_dict({**content["record"], "format_version": 99})


def test_a_run_that_was_overwritten_has_the_new_page(folders, tmp_path):
    graph, out = str(folders / "blobs.npz"), str(tmp_path / "run")
    common = ["train", graph, "--method", "random-tma", "--parts", "2", *OPTIONS, "--out", out, "-q"]
    assert main(common) == 0
    first = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert main([*common, "--overwrite", "--seed", "5"]) == 0
    second = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert Page(first).columns("Runs")[0]["seed"] == "0"
    assert second.columns("Runs")[0]["seed"] == "5"


def test_a_run_that_was_cut_short_is_shown_as_far_as_it_came(folders, tmp_path):
    run = tmp_path / "short"
    shutil.copytree(folders / "run", run)
    metrics = json.loads((run / "metrics.json").read_text()) | {"complete": False, "test": None}
    (run / "metrics.json").write_text(json.dumps(metrics))
    assert main(["report", str(run), "--out", str(tmp_path / "short.html")]) == 0
    page = Page((tmp_path / "short.html").read_text(encoding="utf-8"))
    assert page.columns("Summary")[0]["test accuracy, %"] == "-"
    assert page.columns("Summary")[0]["val accuracy, %"] == percent(metrics["val"]["accuracy"])
    assert page.columns("Cut short")[0]["method"] == "retexo"
    (run / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"metrics.json cannot be read"):
        collect([run])


def test_equal_cells_of_two_comparisons_count_once(folders):
    found = collect([folders / "grid", folders / "grid"])
    assert len(found.records) == 8
    (study,) = studies(found.records)
    assert len(study.records) == 4
    assert len(study.notes) == 4
