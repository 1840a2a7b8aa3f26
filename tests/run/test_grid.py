"""Comparisons: specs, the plan, resuming, failures, sums."""

import json
import statistics

import numpy as np
import pytest

import farflung
from farflung.errors import FarflungError, InputError
from farflung.graph import Graph, is_symmetric
from farflung.graph.store import save_graph
from farflung.report.tables import comparison_table
from farflung.run.compare import (
    Trained,
    compare,
    parse_methods,
    plan,
    read_comparison,
    run_grid,
    summarise,
)


def grid(text: str = "centralised,retexo[parts=8]", seeds: int = 2, graph: str = "digits", **given):
    return plan(graph, parse_methods(text), range(seeds), given)


class Counting:
    """A runner that trains nothing: its figures follow from the cell, and it counts its calls."""

    def __init__(self, broken: str = "") -> None:
        self.calls: list[tuple[str, int]] = []
        self.broken = broken

    def __call__(self, cell):
        self.calls.append((cell.label, cell.seed))
        if cell.label == self.broken:
            raise FarflungError("the trainers have gone fishing")
        sent = 0 if cell.config.method == "centralised" else 100 * cell.config.partition.parts
        return {
            "metric": "accuracy",
            "test": {"accuracy": 0.5 + 0.1 * cell.seed},
            "val": {"accuracy": 0.25},
            "bytes": {"total": 2 * sent, **({"weights": sent} if sent else {})},
            "training_bytes": sent,
            "rounds": 3,
            "seconds": {"wall": 1.0 + cell.seed, "virtual": 0.5, "partition": 0.0},
        }


def test_methods_with_options_of_their_own():
    specs = parse_methods(" centralised, super-tma ,retexo[parts=8, model.hidden=64],retexo[lr=0.1]")
    assert [spec.label for spec in specs] == [
        "centralised",
        "super-tma",
        "retexo[parts=8, model.hidden=64]",
        "retexo[lr=0.1]",
    ]
    assert specs[2].method == "retexo"
    assert specs[2].options == {"partition.parts": "8", "model.hidden": "64"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("centralised,foo", "unknown method 'foo'.*retexo"),
        ("centralised[parts=8]", "'centralised' does not use option 'partition.parts'.*retexo"),
        ("retexo[parts=8", "brackets"),
        ("retexo[parts]", "option=value"),
        ("retexo[nonsense=1]", "unknown option 'nonsense'"),
        ("retexo,retexo", "named twice"),
        ("retexo[a[b]]", "is no method|brackets"),
        (" , ", "no method to compare"),
    ],
)
def test_wrong_methods_are_named_in_one_line(text, match):
    with pytest.raises(InputError, match=match) as error:
        parse_methods(text)
    assert "\n" not in str(error.value)


def test_an_option_for_all_goes_to_those_that_use_it_and_brackets_win():
    cells = grid("centralised,super-tma,retexo[parts=8]", 1, parts="4", hidden="16")
    parts = {cell.label: cell.config.partition.parts for cell in cells}
    assert parts["super-tma"] == 4
    assert parts["retexo[parts=8]"] == 8
    assert {cell.config.model.hidden for cell in cells} == {16}


def test_an_option_that_no_method_uses_is_an_error():
    with pytest.raises(InputError, match=r"none of the methods uses option 'partition.parts'.*retexo"):
        grid("centralised,gcn-kipf", parts="4")
    with pytest.raises(InputError, match="'seed' is not for all methods"):
        grid(seed="4")


def test_the_partition_is_drawn_anew_with_each_seed():
    cells = grid("retexo", 3)
    assert [cell.config.seed for cell in cells] == [0, 1, 2]
    assert {cell.config.partition.seed for cell in cells} == {None}


def test_a_grid_writes_a_file_per_cell_and_a_second_call_trains_nothing(tmp_path):
    first, second = Counting(), Counting()
    told = []
    one = run_grid(grid(), tmp_path, first, lambda cell, record, reused: told.append(reused))
    assert len(first.calls) == 4
    assert len(list((tmp_path / "cells").iterdir())) == 4
    two = run_grid(grid(), tmp_path, second, lambda cell, record, reused: told.append(reused))
    assert second.calls == []
    assert told == [False] * 4 + [True] * 4
    assert one == two == read_comparison(tmp_path)


def test_a_broken_off_grid_goes_on_where_it_was(tmp_path):
    class Interrupted(Counting):
        def __call__(self, cell):
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().__call__(cell)

    with pytest.raises(KeyboardInterrupt):
        run_grid(grid(), tmp_path, Interrupted())
    rest = Counting()
    run_grid(grid(), tmp_path, rest)
    assert rest.calls == [("retexo[parts=8]", 0), ("retexo[parts=8]", 1)]


def test_more_seeds_add_cells_only(tmp_path):
    run_grid(grid(seeds=1), tmp_path, Counting())
    more = Counting()
    comparison = run_grid(grid(seeds=3), tmp_path, more)
    assert sorted(seed for _, seed in more.calls) == [1, 1, 2, 2]
    assert comparison.rows[0]["seeds"] == [0, 1, 2]


def test_a_cell_of_other_options_is_an_error_before_anything_is_trained(tmp_path):
    run_grid(grid(), tmp_path, Counting())
    runner = Counting()
    with pytest.raises(InputError, match=r"other options \(model.hidden\)"):
        run_grid(grid(hidden="32"), tmp_path, runner)
    assert runner.calls == []


def test_a_failed_cell_is_recorded_the_others_go_on_and_it_is_tried_again(tmp_path):
    comparison = run_grid(grid(), tmp_path, Counting(broken="centralised"))
    assert [(f["label"], f["seed"]) for f in comparison.failed] == [("centralised", 0), ("centralised", 1)]
    assert "gone fishing" in comparison.failed[0]["error"]
    assert comparison.rows[0]["test"]["mean"] is None
    assert comparison.rows[1]["test"]["mean"] == 0.55
    again = Counting()
    healed = run_grid(grid(), tmp_path, again)
    assert again.calls == [("centralised", 0), ("centralised", 1)]
    assert healed.failed == ()


def test_an_unexpected_exception_is_recorded_with_its_traceback(tmp_path):
    def broken(cell):
        raise ZeroDivisionError("division by zero")

    comparison = run_grid(grid("retexo", 1), tmp_path, broken)
    assert comparison.failed[0]["error"] == "ZeroDivisionError: division by zero"
    record = json.loads(next((tmp_path / "cells").iterdir()).read_text())
    assert "in broken" in record["traceback"]


def test_sums_are_means_and_sample_deviations(tmp_path):
    comparison = run_grid(grid("centralised,super-tma,retexo[parts=8]", 3), tmp_path, Counting())
    central, tma, lazy = comparison.rows
    assert lazy["test"]["mean"] == pytest.approx(0.6)
    assert lazy["test"]["sd"] == pytest.approx(statistics.stdev([0.5, 0.6, 0.7]))
    assert lazy["val"] == {"mean": 0.25, "sd": 0.0, "values": [0.25] * 3}
    assert lazy["bytes"] == {"total": 1600, "weights": 800}
    assert (lazy["training_bytes"], tma["training_bytes"], central["training_bytes"]) == (800, 300, 0)
    assert (lazy["times_fewer"], central["times_fewer"]) == (1.0, None)
    assert tma["times_fewer"] == pytest.approx(800 / 300)
    assert lazy["seconds"]["wall"] == 2.0
    content = json.loads((tmp_path / "compare.json").read_text())
    assert content["metric"] == "accuracy"
    assert [row["label"] for row in content["methods"]] == ["centralised", "super-tma", "retexo[parts=8]"]


def test_one_seed_has_no_deviation():
    assert summarise([]).rows == ()
    record = {"label": "retexo", "seed": 0, "config": {"graph": "g", "method": "retexo"}}
    (row,) = summarise([{**record, "result": Counting()(grid("retexo", 1)[0])}]).rows
    assert row["test"]["sd"] is None


def test_the_table_has_a_row_per_method_and_survives_a_method_without_results(tmp_path):
    from rich.console import Console

    comparison = run_grid(grid(), tmp_path, Counting(broken="centralised"))
    screen = Console(width=140)
    with screen.capture() as capture:
        screen.print(comparison_table(comparison.graph, comparison.metric, comparison.rows))
    text = capture.get()
    assert "accuracy" in text
    assert "55.00 ± 7.07" in text
    assert "retexo[parts=8]" in text
    assert "centralised" in text


def test_options_that_do_not_fit_the_graph_are_seen_before_the_first_cell():
    with pytest.raises(InputError, match="no public split"):
        Trained(grid("centralised,retexo", 1, split="public"))
    with pytest.raises(InputError, match="unknown dataset"):
        Trained(grid("retexo", 1, graph="nosuch"))


def test_compare_from_python_trains_for_real(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(50) % 2
    x = (rng.standard_normal((50, 4)) + 3 * y[:, None]).astype(np.float32)
    graph = Graph.from_edges(*rng.integers(0, 50, (2, 150)), num_nodes=50, x=x, y=y, name="blobs")
    options = {"steps": 4, "hidden": 4, "threads": 1, "parts": 2}
    result = farflung.compare(graph, "centralised,retexo", seeds=2, out=tmp_path, **options)
    assert [row["label"] for row in result.rows] == ["centralised", "retexo"]
    assert result.rows[0]["bytes"]["total"] == 0
    assert result.rows[1]["bytes"]["weights"] == 2 * 4 * statistics.fmean([self_sized(graph)] * 2)
    assert result == compare(graph, ["centralised", "retexo"], seeds=2, out=tmp_path, **options)
    with_other_seeds = compare(graph, "retexo", seeds=[5], **options)
    assert with_other_seeds.rows[0]["seeds"] == [5]


OPTIONS = {"steps": 2, "hidden": 4, "threads": 1, "parts": 2}


def blobs(seed: int, *, symmetric: bool = True) -> Graph:
    """A small graph whose edges and features follow from `seed`."""
    rng = np.random.default_rng(seed)
    y = np.arange(50) % 2
    x = (rng.standard_normal((50, 4)) + 3 * y[:, None]).astype(np.float32)
    edges = rng.integers(0, 50, (2, 150))
    return Graph.from_edges(*edges, num_nodes=50, symmetric=symmetric, x=x, y=y, name="blobs")


def test_cells_of_another_graph_with_the_same_name_are_not_taken(tmp_path):
    compare(blobs(0), "retexo", out=tmp_path / "a", **OPTIONS)
    with pytest.raises(InputError, match=r"made with other data \(graph 'blobs'"):
        compare(blobs(1), "retexo", out=tmp_path / "a", **OPTIONS)
    save_graph(blobs(0), tmp_path / "g.npz")
    path = str(tmp_path / "g.npz")
    first = compare(path, "retexo", out=tmp_path / "b", **OPTIONS)
    assert compare(path, "retexo", out=tmp_path / "b", **OPTIONS) == first
    save_graph(blobs(1), tmp_path / "g.npz")
    with pytest.raises(InputError, match="made with other data"):
        compare(path, "retexo", out=tmp_path / "b", **OPTIONS)


def test_the_graph_is_made_symmetric_once_where_the_cells_ask_for_it(tmp_path):
    save_graph(blobs(0, symmetric=False), tmp_path / "g.npz")
    cells = grid("retexo,retexo[symmetric=true]", 1, str(tmp_path / "g.npz"), steps="2", hidden="4", parts="2")
    runner = Trained(cells)
    plain, symmetric = (runner._given[cell.config.symmetric] for cell in cells)
    assert not is_symmetric(plain)
    assert is_symmetric(symmetric)
    assert not any("--symmetric" in note for note in symmetric.notes)
    assert runner.data(cells[0]) != runner.data(cells[1])


def test_parts_that_contradict_a_folder_are_seen_before_the_first_cell(tmp_path):
    farflung.cut(blobs(0), parts=4).save(tmp_path / "parts")
    for text, options in (("random-tma[parts=3]", {}), ("retexo,random-tma", {"parts": "3"})):
        with pytest.raises(InputError, match="cut already, into 4 parts"):
            Trained(grid(text, 1, str(tmp_path / "parts"), **options))
    Trained(grid("random-tma[parts=4],retexo", 1, str(tmp_path / "parts")))


def self_sized(graph: Graph) -> float:
    """Bytes of weights that one lazy trainer gets in 4 steps over 2 layers of width 4, SAGE with heads, 2 classes."""
    first = 2 * graph.num_features * 4 + 4 + 2 * 4 + (4 * 2 + 2)
    last = 2 * 4 * 2 + 2
    return 4 * (2 * first + 2 * last) / 4
