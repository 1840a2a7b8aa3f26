"""The sections of a report that say how it came about: who talked to whom, the parts, every run, every setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farflung.report import figures
from farflung.report.digest import Method, Spread, Study, flat_options
from farflung.report.record import RunRecord
from farflung.report.units import seconds, size
from farflung.report.view import Chart, Marks, Row, Section, Table, known, percent
from farflung.team.message import EVALUATOR, SERVER

GROUPS = 16
"""Most rows of trainers in a heat map; more trainers share them."""
_WARNINGS = 8
_PARTITIONS = 12
"""Most partitions drawn part by part."""


def senders(study: Study, marks: Marks) -> Section | None:
    """Who sent how much to whom; None where nobody sent anything."""
    charts, tables = [], []
    for method in study.methods:
        names, sent = matrix([run.pairs for run in method.runs])
        if not sent.any():
            continue
        charts.append(Chart(figures.heat(marks.name("f"), "", names, sent), method.name, f"{size(sent.sum())} in all"))
        rows = [
            [name, *(size(value) if value else "-" for value in row), size(row.sum())]
            for name, row in zip(names, sent, strict=True)
        ]
        received = ["received", *(size(value) for value in sent.sum(axis=0)), size(sent.sum())]
        tables.append(Table(f"Sent by rows to columns: {method.name}", ["sender", *names, "sent"], [*rows, received]))
    if not charts:
        return None
    text = (
        "Rows send, columns receive, all kinds of bytes; stronger is more, on a logarithmic scale for each method. "
        f"Numbers are trainers; more than {GROUPS} are taken together in groups."
    )
    return Section("senders", "Who sent how much to whom", text, charts, tables)


def matrix(runs: Sequence[Sequence[Sequence[int]]]) -> tuple[list[str], np.ndarray]:
    """Endpoints and mean bytes [n, n] from sender to receiver, over runs of [[sender, receiver, bytes], ...].

    Server, evaluator, then trainers, in at most `GROUPS` groups of neighbours.
    """
    trainers = 1 + max((max(pair[0], pair[1]) for pairs in runs for pair in pairs), default=-1)
    each = max(1, -(-trainers // GROUPS))
    groups = -(-trainers // each)
    names = ["server", "evaluator"]
    for first in range(0, trainers, each):
        last = min(first + each, trainers) - 1
        names.append(str(first) if first == last else f"{first}-{last}")
    sent = np.zeros((groups + 2, groups + 2))
    place = {SERVER: 0, EVALUATOR: 1}
    for pairs in runs:
        for sender, receiver, count in pairs:
            row, column = (place.get(end, 2 + end // each) for end in (sender, receiver))
            sent[row, column] += count / len(runs)
    return names, sent


_FIGURES: tuple[tuple[str, str, str], ...] = (
    ("kept_share", "pairs kept inside parts", "{:.1%}"),
    ("halo_ratio", "halo nodes per node", "{:.2f}"),
    ("node_balance", "balance of nodes", "{:.3f}"),
    ("edge_balance", "balance of edges", "{:.3f}"),
    ("label_divergence", "label divergence", "{:.3f}"),
    ("feature_divergence", "feature divergence", "{:.3f}"),
    ("degree_divergence", "degree divergence", "{:.3f}"),
    ("gradient_bias_relative", "gradient bias", "{:.3f}"),
    ("gradient_spread_relative", "gradient spread", "{:.3f}"),
)


def partition(study: Study, marks: Marks) -> Section | None:
    """What the parts were like; None where no method had more than one."""
    cut = [(method, [run.diagnosis for run in method.runs if run.diagnosis]) for method in study.methods]
    cut = [(method, found) for method, found in cut if found]
    if not cut:
        return None
    shown = [spec for spec in _FIGURES if any(one.get(spec[0]) is not None for _, found in cut for one in found)]
    rows: list[Row] = [
        [
            marks.method(method),
            str(found[0].get("by", "-")),
            str(found[0].get("parts", "-")),
            *(known(Spread(tuple(one.get(key) for one in found)).mean, form.format) for key, _, form in shown),
        ]
        for method, found in cut
    ]
    tables = [Table("Partitions, means over seeds", ["method", "cut", "parts", *(s[1] for s in shown)], rows, 2, True)]
    charts = []
    distinct = _distinct(cut)
    for names, one in distinct[:_PARTITIONS]:
        nodes, halo = one.get("nodes_per_part") or [], one.get("halo_per_part") or []
        title = f"{one.get('by', '')}, {len(nodes)} parts"
        charts.append(Chart(figures.parts(marks.name("f"), nodes, halo), title, ", ".join(names)))
        tables.append(_by_part(f"Part by part: {', '.join(names)}", one))
    text = (
        "Pairs of neighbours with both ends in one part are kept; a halo node is a copy of a neighbour that another "
        "part owns. Balance is the largest part over the mean, divergence how far the parts' own distributions are "
        "from the whole's (0: alike), bias and spread how far gradients on the parts are from the whole's, over its "
        "norm. Charts: the first seed's parts."
    )
    left = len(distinct) - _PARTITIONS
    more = [f"{left} further partitions are in the table only."] if left > 0 else []
    return Section("partition", "The parts", text, charts, tables, points=[*more, *_warnings(cut)])


def _warnings(cut: Sequence[tuple[Method, list[dict[str, Any]]]]) -> list[str]:
    """What the diagnoses warn of, each once with its methods; the first `_WARNINGS`, and how many more."""
    by_text: dict[str, dict[str, None]] = {}
    for method, found in cut:
        for one in found:
            for warning in one.get("warnings") or ():
                by_text.setdefault(warning, {})[method.name] = None
    said = [f"{', '.join(names)}: {warning}" for warning, names in by_text.items()]
    left = len(said) - _WARNINGS
    return [*said[:_WARNINGS], f"… and {left} more warnings of this kind."] if left > 0 else said


def _distinct(cut: Sequence[tuple[Method, list[dict[str, Any]]]]) -> list[tuple[list[str], dict[str, Any]]]:
    """The first seed's partitions that differ, with the methods that used each."""
    groups: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for method, found in cut:
        key = repr([found[0].get(name) for name in ("by", "nodes_per_part", "edges_per_part", "halo_per_part")])
        if found[0].get("nodes_per_part"):
            groups.setdefault(key, ([], found[0]))[0].append(method.name)
    return list(groups.values())


def _by_part(title: str, one: Mapping[str, Any]) -> Table:
    columns: dict[str, Sequence[Any]] = {
        "nodes": one.get("nodes_per_part") or [],
        "in-edges": one.get("edges_per_part") or [],
        "halo": one.get("halo_per_part") or [],
        "boundary rows": one.get("boundary_per_part") or [],
        **(one.get("masks") or {}),
    }
    columns = {name: values for name, values in columns.items() if len(values)}
    names = one.get("part_names") or [str(part) for part in range(len(columns["nodes"]))]
    rows = [[str(names[part]), *(f"{v[part]:,}" for v in columns.values())] for part in range(len(columns["nodes"]))]
    most = 256
    if len(rows) > most:
        rows = [*rows[:most], [f"… {len(rows) - most} more", *("" for _ in columns)]]
    return Table(title, ["part", *columns], rows)


def every_run(study: Study, marks: Marks) -> Section:
    """A row per run, good or bad."""
    rows: list[Row] = []
    for method in study.methods:
        for run in method.runs:
            metrics = run.metrics
            clock = metrics.get("seconds") or {}
            best = metrics.get("best_round")
            rows.append(
                [
                    method.name,
                    str(run.seed),
                    _score(metrics.get("test"), study.metric),
                    _score(metrics.get("val"), study.metric),
                    size(metrics["training_bytes"]),
                    size((metrics.get("bytes") or {}).get("total", 0)),
                    f"{metrics.get('rounds', '-')}",
                    "-" if best is None else str(best + 1),
                    known(clock.get("virtual"), seconds),
                    known(clock.get("wall"), seconds),
                    _partition(run),
                ]
            )
    columns = [
        "method",
        "seed",
        "test, %",
        "val, %",
        "training bytes",
        "all bytes",
        "rounds",
        "best round",
        "clock",
        "wall",
        "partition",
    ]
    text = (
        "One row per run, also where it went badly. Clock: on the run's own link, all trainers at once; wall: on the "
        "machine that it ran on; partition: the start of the digest."
    )
    return Section("runs", "Every run", text, tables=[Table("Runs", columns, rows, open=len(rows) <= 15)])


def _score(scores: Mapping[str, float | None] | None, metric: str) -> str:
    return percent(Spread(((scores or {}).get(metric),)))


def _partition(run: RunRecord) -> str:
    digest = ((run.manifest or {}).get("partition") or {}).get("digest")
    return str(digest)[:10] if digest else "-"


def settings(study: Study, marks: Marks) -> Section:
    """All options, those in which methods differ first; seeds; tools."""
    options = {method.name: _settings(method) for method in study.methods}
    paths = dict.fromkeys(path for flat in options.values() for path in flat)
    differing, common = [], []
    for path in paths:
        values = [flat.get(path, "-") for flat in options.values()]
        if len(set(values)) > 1:
            differing.append([path, *values])
        else:
            common.append([path, values[0]])
    tables = []
    if differing:
        tables.append(Table("Options that differ", ["option", *options], differing, 1 + len(options), True))
    tables.append(Table("All other options", ["option", "value"], common, 2))
    seeds = [[method.name, ", ".join(str(run.seed) for run in method.runs)] for method in study.methods]
    tables.append(Table("Seeds", ["method", "seeds"], seeds, 2))
    tables.append(Table("Tools, data and machine", ["", "", "runs"], _tools(study), 2))
    text = "With these options and seeds each run can be trained again."
    return Section("settings", "Settings", text, tables=tables)


def _settings(method: Method) -> dict[str, str]:
    """Options of a method's runs; where they differ from run to run, all values."""
    flats = [flat_options(run.config) for run in method.runs]
    merged = {path: " | ".join(dict.fromkeys(flat.get(path, "-") for flat in flats)) for path in flats[0]}
    merged.pop("seed", None)
    return merged


def _tools(study: Study) -> list[list[str]]:
    counts: dict[tuple[str, str], int] = {}
    for run in study.records:
        manifest = run.manifest or {}
        graph = manifest.get("graph") or {}
        facts = {f"version of {tool}": version for tool, version in (manifest.get("tools") or {}).items()}
        facts |= {"CPU threads": manifest.get("threads"), "parameters": manifest.get("parameters")}
        facts |= {f"graph: {name}": value for name, value in graph.items() if name != "notes"}
        facts |= {f"graph: note {place + 1}": note for place, note in enumerate(graph.get("notes") or [])}
        facts["rehearsed faults"] = manifest.get("faults") or None
        for name, value in facts.items():
            if value is not None:
                key = (name, f"{value:,}" if isinstance(value, int) else str(value))
                counts[key] = counts.get(key, 0) + 1
    return [[name, value, str(count)] for (name, value), count in sorted(counts.items())]
