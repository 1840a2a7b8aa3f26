"""Comparing methods: a grid of methods and seeds, one file per cell, so that a broken-off grid goes on where it was."""

from __future__ import annotations

import re
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farflung.errors import FarflungError, InputError
from farflung.graph import Graph
from farflung.methods.presets import preset, users_of
from farflung.partition import Partition
from farflung.report.record import RunRecord
from farflung.run.config import RunConfig, flatten, parse_assignments, resolve
from farflung.run.folder import REPORT, read_json, write_json
from farflung.run.replay import first_reaching, whole_scores
from farflung.run.source import as_given, fingerprint, open_graph, ready
from farflung.run.train import JournalMaker, execute

RESULT = "compare.json"
CELLS = "cells"
FORMAT_VERSION = 1
_OF_THE_GRID = ("method", "seed", "graph")
"""Options that say which cells there are."""


@dataclass(frozen=True)
class MethodSpec:
    """A method with options of its own, as written: `retexo[parts=8,model.hidden=64]`."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """By dotted path."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    label: str
    config: RunConfig
    asked: frozenset[str] = frozenset()
    """Paths of the options that were set by hand, for all methods or for this one."""

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def file(self) -> str:
        """Its file's name; distinct labels that only differ in signs must not share one (see `plan`)."""
        return f"{file_name(self.label)}.seed{self.seed}.json"


@dataclass(frozen=True)
class Comparison:
    """The outcome of a grid."""

    graph: str
    metric: str
    rows: tuple[dict[str, Any], ...]
    """One per method; see `summarise`."""
    failed: tuple[dict[str, Any], ...]
    """Cells that ended in an error: label, seed, error."""

    def as_dict(self) -> dict[str, Any]:
        """What compare.json holds: JSON values, with the format version."""
        return {
            "format_version": FORMAT_VERSION,
            "graph": self.graph,
            "metric": self.metric,
            "methods": list(self.rows),
            "failed": list(self.failed),
        }


def file_name(text: str) -> str:
    """`text` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "_", text).strip("_")


def parse_methods(text: str) -> list[MethodSpec]:
    """`centralised,retexo[parts=8,model.hidden=64]` -> specs.

    Raises InputError for a method or an option that does not exist, an option that its method does not use,
    brackets that do not match, the same label twice.
    """
    specs: list[MethodSpec] = []
    for label in _split_outside_brackets(text):
        found = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]*)\])?", label)
        if not found:
            raise InputError(f"'{label}' is no method: write name or name[option=value,option=value]")
        method = preset(found[1].strip()).name
        options = parse_assignments([part for part in (found[2] or "").split(",") if part.strip()])
        for path in options:
            if path in _OF_THE_GRID:
                raise InputError(f"'{label}': option '{path}' is the grid's: set it for the whole comparison")
            if not preset(method).uses_option(path):
                raise InputError(
                    f"'{label}': method '{method}' does not use option '{path}': "
                    f"drop it, or choose from {', '.join(users_of(path))}"
                )
        if any(spec.label == label for spec in specs):
            raise InputError(f"method '{label}' is named twice: name it once")
        specs.append(MethodSpec(label, method, options))
    if not specs:
        raise InputError("no method to compare: write --methods 'centralised,retexo'")
    return specs


def _split_outside_brackets(text: str) -> list[str]:
    if text.count("[") != text.count("]"):
        raise InputError(f"brackets in '{text}' do not match: write name[option=value]")
    parts = re.split(r",(?![^\[]*\])", text)
    return [part.strip() for part in parts if part.strip()]


def plan(
    graph: str,
    specs: Sequence[MethodSpec],
    seeds: Sequence[int],
    given: Mapping[str, Any],
    file: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """The cells of a grid, method by method.

    `given` and `file` hold options for all: each goes to the methods that use it, those in brackets win.

    Raises:
        InputError: an option that none of the methods uses, or a wrong value.
    """
    by_hand = flatten(given)
    common = {**(file or {}), **by_hand}
    for path in _OF_THE_GRID:
        if path in common:
            raise InputError(f"option '{path}' is not for all methods of a comparison: name graph, methods and seeds")
    for path in common:
        if not any(preset(spec.method).uses_option(path) for spec in specs):
            raise InputError(
                f"none of the methods uses option '{path}': drop it, or add one of {', '.join(users_of(path))}"
            )
    cells = []
    for spec in specs:
        shared = {path: value for path, value in common.items() if preset(spec.method).uses_option(path)}
        for seed in seeds:
            options = {**shared, **spec.options, "graph": graph, "method": spec.method, "seed": seed}
            asked = frozenset(path for path in options if path in by_hand or path in spec.options)
            cells.append(Cell(spec.label, resolve(options), asked))
    files = [cell.file for cell in cells]
    if len(set(files)) < len(files):
        raise InputError("two of the methods' names would share a file: write their options differently")
    return cells


Runner = Callable[[Cell], Mapping[str, Any]]
"""Trains a cell and returns what metrics.json would hold, `metric` beside it and maybe a `record` for reports."""

DataOf = Callable[[Cell], Mapping[str, Any]]
"""Fingerprints of the data that a cell is trained on."""


def _no_data(cell: Cell) -> Mapping[str, Any]:
    return {}


def run_grid(
    cells: Sequence[Cell],
    out: Path,
    runner: Runner,
    on_cell: Callable[[Cell, Mapping[str, Any], bool], None] = lambda cell, result, reused: None,
    *,
    data: DataOf = _no_data,
) -> Comparison:
    """Run what is not there yet, and sum up. A cell that fails is recorded and tried again by the next call.

    `on_cell(cell, record, reused)` is told of every cell as it ends. `data` is kept with each cell. In the end there
    are compare.json and, of cells with records, report.html.

    Raises:
        InputError: a cell there was run with other options or on other data, or `out` cannot be written.
    """
    folder = out / CELLS
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): choose another --out") from None
    for cell in cells:
        _earlier(folder / cell.file, cell, data(cell))
    records = []
    for cell in cells:
        record = _earlier(folder / cell.file, cell, data(cell))
        reused = record is not None
        if record is None:
            record = _run(cell, runner, data(cell))
            write_json(folder / cell.file, record)
        on_cell(cell, record, reused)
        records.append(record)
    comparison = summarise(records)
    write_json(out / RESULT, comparison.as_dict())
    if any(record.get("record") for record in records):
        from farflung.report.collect import report_on  # reads what has just been written

        report_on([out], out / REPORT)
    return comparison


def _earlier(path: Path, cell: Cell, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of a cell that was run before; None where it has to be run."""
    if not path.exists():
        return None
    record: dict[str, Any] = read_json(path)
    if not isinstance(record, dict):
        raise InputError(f"{path} is no cell of a comparison: remove it, and it is made again")
    if "error" in record:
        return None
    if record.get("config") != cell.config.dump():
        theirs, ours = flatten(record.get("config", {})), flatten(cell.config.dump())
        differing = [option for option in ours if theirs.get(option) != ours[option]]
        raise InputError(
            f"{path} was made with other options ({', '.join(differing)}): choose another --out, or remove the file"
        )
    if record.get("data", data) != data:
        raise InputError(
            f"{path} was made with other data (graph '{cell.config.graph}' is not the one that it was trained on): "
            "choose another --out, or remove the file"
        )
    return record


def _run(cell: Cell, runner: Runner, data: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {
        "label": cell.label,
        "seed": cell.seed,
        "config": cell.config.dump(),
        "data": dict(data),
    }
    try:
        result = dict(runner(cell))
        own = {"record": result.pop("record")} if "record" in result else {}
        return {**record, "result": result, **own}
    except FarflungError as error:
        return {**record, "error": f"{error}"}
    except Exception as error:
        return {**record, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def summarise(records: Sequence[Mapping[str, Any]]) -> Comparison:
    """Per method: mean and sd (n - 1) over seeds of the metric on test and validation nodes; means of bytes, seconds.

    `to_99`: by link profile, seconds until a run's validation score was 99 % of its own best. `times_fewer`: how many
    times fewer training bytes than the method that sent most; None where nothing was sent.
    """
    labels = dict.fromkeys(str(record["label"]) for record in records)
    good = {label: [r for r in records if r["label"] == label and "error" not in r] for label in labels}
    metric = next((str(r["result"]["metric"]) for rs in good.values() for r in rs), "")
    rows: list[dict[str, Any]] = []
    for label, mine in good.items():
        results = [record["result"] for record in mine]
        rows.append(
            {
                "label": label,
                "method": next((r["config"]["method"] for r in records if r["label"] == label), ""),
                "seeds": [record["seed"] for record in mine],
                "test": _spread([r["test"].get(metric) for r in results]),
                "val": _spread([r["val"].get(metric) for r in results]),
                "bytes": _mean_by_key([r["bytes"] for r in results]),
                "training_bytes": _mean([r["training_bytes"] for r in results]),
                "rounds": _mean([r["rounds"] for r in results]),
                "seconds": _mean_by_key([r["seconds"] for r in results]),
                "to_99": _mean_by_key([_to_99(r["record"], metric) for r in mine if r.get("record")]),
            }
        )
    most = max((row["training_bytes"] or 0 for row in rows), default=0)
    for row in rows:
        row["times_fewer"] = most / row["training_bytes"] if row["training_bytes"] else None
    failed = tuple({"label": r["label"], "seed": r["seed"], "error": r["error"]} for r in records if "error" in r)
    graph = str(records[0]["config"]["graph"]) if records else ""
    return Comparison(graph, metric, tuple(rows), failed)


def _to_99(record: Mapping[str, Any], metric: str) -> dict[str, float]:
    """By link profile; empty where nothing was scored."""
    scores = whole_scores(record["history"], metric)
    known = [value for value in scores if value is not None]
    place = first_reaching(scores, 0.99 * max(known)) if known else None
    return {} if place is None else {link: ends[place] for link, ends in record["seconds"].items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    return {
        "mean": _mean(known),
        "sd": statistics.stdev(known) if len(known) > 1 else None,
        "values": list(values),
    }


def _mean_by_key(dicts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for one in dicts for key in one)
    return {key: statistics.fmean(one.get(key, 0) for one in dicts) for key in keys}


def read_comparison(out: Path) -> Comparison:
    """What `run_grid` left in `out`. Raises InputError."""
    content = read_json(out / RESULT)
    if not isinstance(content, dict) or not {"graph", "metric", "methods", "failed"} <= content.keys():
        raise InputError(f"{out / RESULT} is no result of a comparison: run `farflung compare` again")
    return Comparison(content["graph"], content["metric"], tuple(content["methods"]), tuple(content["failed"]))


class Trained:
    """A runner that trains: it reads the graph once, and sees at once whether the cells' options fit it."""

    def __init__(
        self,
        cells: Sequence[Cell],
        given: Graph | Partition | None = None,
        journal: JournalMaker | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """`cells`: all of one graph, or of the `given` one. `warn` is told of odd parts, in each method's first cell.

        Raises InputError for a graph, features, split or parts that cannot be.
        """
        self._given: dict[bool, Graph | Partition] = {}
        self._data: dict[bool, dict[str, Any]] = {}
        self._journal = journal
        self._warn = warn
        self._first = {(cell.label, cells[0].seed) for cell in cells}
        for symmetric in {cell.config.symmetric for cell in cells}:
            if given is None:
                graph, parts = open_graph(cells[0].config.graph, symmetric=symmetric)
            else:
                graph, parts = as_given(given, symmetric=symmetric)
            self._given[symmetric] = graph if parts is None else parts
            self._data[symmetric] = {
                "fingerprint": fingerprint(graph),
                "partition": None if parts is None else parts.digest,
            }
        for cell in cells:
            if cell.seed == cells[0].seed:
                ready(cell.config, self._given[cell.config.symmetric], cell.asked)

    def data(self, cell: Cell) -> Mapping[str, Any]:
        """Fingerprint of the graph, and digest of the parts that it came in."""
        return self._data[cell.config.symmetric]

    def __call__(self, cell: Cell) -> dict[str, Any]:
        run = execute(
            cell.config,
            given=self._given[cell.config.symmetric],
            asked=cell.asked,
            journal=self._journal,
            warn=self._warn if (cell.label, cell.seed) in self._first else None,
        )
        record = RunRecord.of(run, cell.label).as_dict()
        return {**run.metrics, "metric": run.config.metric, "threads": run.config.threads, "record": record}


def compare(
    graph: str | Graph | Partition,
    methods: str | Sequence[str],
    *,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    **options: Any,
) -> Comparison:
    """Train several methods on one graph and sum up their accuracy, bytes and time.

    Args:
        graph: a name or path as on the command line, or the graph itself.
        methods: `'centralised,retexo[parts=8]'`, or a list of such names.
        seeds: how many seeds (0, 1, ...), or which.
        out: folder for one file per cell, compare.json and report.html; None: nothing is kept on disk.
        options: for all methods that use them, by dotted or short name.

    Raises:
        InputError: as on the command line. A cell that fails is in `failed` of the answer.
    """
    specs = parse_methods(methods if isinstance(methods, str) else ",".join(methods))
    which = range(seeds) if isinstance(seeds, int) else seeds
    name = graph if isinstance(graph, str) else getattr(graph, "name", "given partition")
    given = None if isinstance(graph, str) else graph
    cells = plan(name, specs, list(which), options)
    runner = Trained(cells, given)
    if out is None:
        return summarise([_run(cell, runner, runner.data(cell)) for cell in cells])
    return run_grid(cells, Path(out), runner, data=runner.data)
