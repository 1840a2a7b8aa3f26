"""The page: what it says, that it stands alone, and that nothing a user named can break it."""

import re
import subprocess
import sys
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from html_reading import Page
from report_records import made, many

from farflung.errors import InputError
from farflung.report import figures
from farflung.report.conditions import matrix
from farflung.report.digest import Failure
from farflung.report.page import render, write_report
from farflung.report.results import axis_seconds


@pytest.fixture(scope="module")
def three() -> str:
    runs = [
        made(label, seed, scale=scale, best=best)
        for label, scale, best in (("centralised", 0, 0.86), ("super-tma", 10, 0.8), ("retexo", 1, 0.85))
        for seed in range(3)
    ]
    return render(runs)


def test_the_summary_holds_the_numbers_of_the_runs(three):
    rows = {row["method"]: row for row in Page(three).columns("Summary")}
    assert list(rows) == ["centralised", "super-tma", "retexo"]
    tests = [made("retexo", seed, best=0.85).metrics["test"]["accuracy"] for seed in range(3)]
    assert rows["retexo"]["test accuracy, %"] == f"{100 * np.mean(tests):.2f} ± {100 * np.std(tests, ddof=1):.2f}"
    assert rows["retexo"]["training bytes"] == "40 kB"
    assert rows["super-tma"]["training bytes"] == "400 kB"
    assert [row["times fewer"] for row in rows.values()] == ["sends none", "1.0x", "10.0x"]
    assert {row["seeds"] for row in rows.values()} == {"3"}
    assert {"to 99 %: none", "to 99 %: wan", "to 99 %: edge"} < rows["retexo"].keys()


def test_every_chart_has_its_numbers_as_a_table(three):
    page = Page(three)
    assert page.tags.count("svg") > 15
    curves = page.columns("Numbers of all curves, at most 16 rows per method")
    assert {row["method"] for row in curves} == {"centralised", "super-tma", "retexo"}
    assert max(sum(row["method"] == name for row in curves) for name in ("retexo", "centralised")) == 16
    last = [row for row in curves if row["method"] == "super-tma"][-1]
    assert (last["round"], last["steps"], last["training bytes"]) == ("train 40", "400", "400 kB")
    kinds = {row["method"]: row for row in page.columns("Bytes by kind")}
    assert kinds["super-tma"]["weights"] == "400 kB"
    assert kinds["super-tma"]["setup"] == "5 kB"
    assert kinds["centralised"]["weights"] == "-"
    sent = {row["sender"]: row for row in page.columns("Sent by rows to columns: super-tma")}
    assert sent["server"]["0"] == "66.7 kB"
    assert sent["0"]["server"] == "66.7 kB"
    assert sent["0"]["1"] == "-"
    parts = {row["method"]: row for row in page.columns("Partitions, means over seeds")}
    assert parts["retexo"]["halo nodes per node"] == "0.72"
    assert "centralised" not in parts
    assert len(page.columns("Runs")) == 9


def test_settings_show_differences_first_and_everything_once(three):
    page = Page(three)
    differing = {row["option"]: row for row in page.columns("Options that differ")}
    assert differing["method"]["retexo"] == "retexo"
    common = {row["option"]: row["value"] for row in page.columns("All other options")}
    assert common["model.hidden"] == "256"
    assert not differing.keys() & common.keys()
    config = made().config
    paths = {f"{s}.{o}" for s, v in config.items() if isinstance(v, dict) for o in v}
    paths |= {name for name, value in config.items() if not isinstance(value, dict)}
    assert paths - {"seed"} == differing.keys() | common.keys()
    assert [row["seeds"] for row in page.columns("Seeds")] == ["0, 1, 2"] * 3
    tools = [row for row in page.tables["Tools, data and machine"] if row[0] == "version of torch"]
    assert tools == [["version of torch", "2.13.0", "9"]]


def test_it_stands_alone_and_its_ids_are_unique(three):
    page = Page(three)
    assert "script" not in page.tags
    assert "http" not in three
    targets = [value for _, name, value in page.attributes if name in ("href", "src")]
    assert targets
    assert all(value.startswith(("#", "data:")) for value in targets)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {value[1:] for value in targets if value.startswith("#")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", three)) <= set(ids)


def test_charts_take_their_colours_from_the_page(three):
    charts = "".join(re.findall(r"<svg.*?</svg>", three))
    used = set(re.findall(r"var\(--(\w+)\)", charts))
    assert {"ink", "muted", "grid", "c0", "c1", "c2"} <= used
    style = three[: three.index("</style>")]
    light, dark = style.split("prefers-color-scheme: dark")
    for name in used:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r'id="[^"]*"|#s\d[\w-]*|url\([^)]*\)', "", charts))


def test_whatever_users_name_is_text():
    evil = "<script>alert(1)</script>&\"'$x$\\frac"
    record = replace(made(absent={1: {"0": evil}}), label=evil)
    record.manifest["graph"]["name"] = evil
    text = render([record, made("retexo")], failed=[Failure(evil, 0, f"broken\n{evil}")])
    page = Page(text)
    assert "script" not in page.tags
    plain = " ".join(evil.split())
    assert page.text.count(plain) >= 6
    assert page.columns("Failed") == [{"method": evil, "seed": "0", "error": f"broken\n{evil}"}]
    drawn = "".join(re.findall(r"<text[^>]*>[^<]*", text))
    assert "&lt;script&gt;" in drawn


def test_the_same_runs_give_the_same_bytes_whatever_matplotlib_is_set_to(three):
    runs = [made("retexo"), made("super-tma", scale=4)]
    first = render(runs)
    with matplotlib.rc_context({"font.size": 31.0, "svg.fonttype": "path", "axes.facecolor": "red"}):
        assert render(runs) == first
        assert matplotlib.rcParams["font.size"] == 31.0


def test_a_big_comparison_stays_small():
    text = render(many(methods=12, seeds=5, rounds=300))
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert len(page.columns("Summary")) == 12
    assert len(page.columns("Runs")) == 60
    styles = [tuple(sorted((k, str(v)) for k, v in figures.style(place).items())) for place in range(28)]
    assert len(set(styles)) == 28


def test_failures_cut_short_runs_and_absent_trainers_are_named():
    runs = [made(absent={3: {"1": "late"}}), made("retexo", complete=False)]
    page = Page(render(runs, failed=[Failure("llcg", 4, "the trainers have gone fishing")], notes=["Two are missing."]))
    assert page.columns("Failed") == [{"method": "llcg", "seed": "4", "error": "the trainers have gone fishing"}]
    assert page.columns("Cut short") == [{"method": "retexo", "seed": "0", "rounds made": "40"}]
    assert page.columns("Absent trainers")[0] == {
        "method": "super-tma",
        "seed": "0",
        "trainer": "1",
        "why": "late",
        "when": "train 4",
        "rounds": "1",
    }
    assert "Two are missing." in page.text
    assert "What went wrong" not in Page(render([made()])).text


def test_runs_of_which_little_is_known_have_a_page_too():
    bare = replace(
        made(),
        history=[],
        training_bytes=[],
        seconds={},
        by_kind={},
        by_phase={},
        pairs=[],
        diagnosis=None,
        manifest={},
        metrics={"test": None, "val": None, "training_bytes": 0},
    )
    (row,) = Page(render([bare])).columns("Summary")
    assert (row["test accuracy, %"], row["training bytes"], row["times fewer"]) == ("-", "0 B", "-")
    never_scored = made("retexo")
    for record in never_scored.history:
        record["val"] = record["loss"] = None
    others = [made("llcg", rounds=1), made("psgd-pa", best=0.0), made("psgd-pa", 1, best=0.0, rounds=2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Page(render([never_scored, *others])).columns("Summary")) == 3
        assert len(Page(render(others[1:])).columns("Runs")) == 2


def test_many_trainers_share_the_rows_of_the_heat_map():
    pairs = [[t, -1, 10] for t in range(1000)] + [[-1, t, 1] for t in range(1000)] + [[-1, -2, 7]]
    names, sent = matrix([pairs])
    assert len(names) == 18
    assert names[:3] == ["server", "evaluator", "0-62"]
    assert sent.sum() == sum(count for *_, count in pairs)
    assert sent[2, 0] == 630
    assert sent[0, 1] == 7
    assert matrix([[[0, 1, 4]], [[1, 0, 2]]])[1][2:, 2:].tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.5, 200.0, ["1 s", "10 s", "1 min"]),
        (2.0, 90000.0, ["10 s", "1 min", "10 min", "1 h", "10 h", "1 d"]),
        (0.002, 0.03, ["10 ms", "20 ms"]),
        (70.0, 500.0, ["2 min", "5 min"]),
    ],
)
def test_time_axes_have_few_and_round_labels(low, high, labels):
    ticks = figures.clock_ticks(low, high)
    assert 2 <= len(ticks) <= 5
    assert all(low <= tick <= high for tick in ticks)
    assert {axis_seconds(tick) for tick in ticks} & set(labels)


def test_a_path_that_cannot_be_written_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no folder"):
        write_report([made()], tmp_path / "nosuch" / "report.html")
    with pytest.raises(InputError, match="it is a folder"):
        write_report([made()], tmp_path)
    with pytest.raises(InputError, match="no finished run"):
        write_report([], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
    write_report([made()], tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_importing_farflung_draws_nothing_and_loads_no_drawing_library():
    code = "import sys, farflung, farflung.cli, farflung.report.page; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
