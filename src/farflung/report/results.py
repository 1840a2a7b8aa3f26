"""The sections of a report that say what came out: scores, bytes, time, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farflung.report import figures
from farflung.report.digest import Absence, Method, Study, absences
from farflung.report.units import seconds, size
from farflung.report.view import (
    Chart,
    Marks,
    Row,
    Section,
    Table,
    known,
    legend,
    means,
    number,
    percent,
    times,
)
from farflung.team.message import KINDS

ROWS = 16
"""Most rows of a table for one method's curve."""


def summary(study: Study, marks: Marks) -> Section:
    """The table to read first."""
    most = study.most_bytes()
    links = study.profiles()
    rows: list[Row] = [
        [
            marks.method(method),
            percent(method.test()),
            str(len(method.runs)),
            percent(method.val()),
            size(method.training_bytes()),
            times(most, method.training_bytes()),
            *(known(method.seconds_to(0.99, link), seconds) for link in links),
        ]
        for method in study.methods
    ]
    columns = [
        "method",
        f"test {study.metric}, %",
        "seeds",
        f"val {study.metric}, %",
        "training bytes",
        "times fewer",
        *(f"to 99\u00a0%: {link}" for link in links),
    ]
    charts = []
    if len(study.records) > 1:
        charts = [
            Chart(
                figures.tradeoff(marks.name("f"), study.methods),
                "Accuracy and what it cost",
                "Up is better, left is cheaper. A dashed level is a method that sends nothing in training.",
            ),
            Chart(figures.by_seed(marks.name("f"), study.methods), "Every seed", "Small: one seed. Big: their mean."),
        ]
    text = (
        "Means over seeds, ± one standard deviation (n - 1). Training bytes are what training itself sends: weights, "
        "gradients, embeddings, features, negatives; “times fewer” compares with the method here that sent most. "
        "“To 99\u00a0%” is the time until the validation score first reached 99 % of the run's own best, on each link "
        "profile: the same rounds with the same measured work, over another network."
    )
    table = Table("Summary", columns, rows, open=True)
    return Section("summary", "Summary", text, charts, [table], points=[*_headline(study), *study.notes])


def _headline(study: Study) -> list[str]:
    """The sentences that most readers come for."""
    scored = [(method.test().mean, method) for method in study.methods if method.test().mean is not None]
    if len(scored) < 2:
        return []
    best = max(scored, key=lambda pair: pair[0] or 0)[1]
    said = [f"Most accurate: {best.name}, {percent(best.test())}\u00a0% test {study.metric}."]
    sending = [method for _, method in scored if method.training_bytes() > 0]
    if len(sending) > 1:
        least = min(sending, key=Method.training_bytes)
        most = max(sending, key=Method.training_bytes)
        said.append(
            f"Least traffic among those that send: {least.name}, {size(least.training_bytes())} with "
            f"{percent(least.test())}\u00a0% — {times(most.training_bytes(), least.training_bytes())} fewer than "
            f"{most.name}, {size(most.training_bytes())} with {percent(most.test())}\u00a0%."
        )
    return said


def trouble(study: Study) -> Section | None:
    """What failed, was cut short, or was absent; None where nothing was."""
    tables = []
    if study.failed:
        rows = [[one.label, str(one.seed), one.error] for one in study.failed]
        tables.append(Table("Failed", ["method", "seed", "error"], rows, texts=3, open=True))
    short = [
        [method.name, str(run.seed), str(run.metrics.get("rounds", "-"))]
        for method in study.methods
        for run in method.runs
        if not run.metrics.get("complete", True)
    ]
    if short:
        tables.append(Table("Cut short", ["method", "seed", "rounds made"], short, texts=2, open=True))
    absent = [
        [method.name, str(one.seed), one.trainer, one.why, _from_to(one), f"{one.last - one.first + 1:,}"]
        for method in study.methods
        for one in absences(method)
    ]
    if absent:
        columns = ["method", "seed", "trainer", "why", "when", "rounds"]
        tables.append(Table("Absent trainers", columns, absent, texts=5, open=len(absent) <= 12))
    if not tables:
        return None
    text = (
        "Cells that ended in an error have no part in the means. A run that was cut short counts with what it had. "
        "A trainer that is absent in a round does not count in it; the others go on."
    )
    return Section("trouble", "What went wrong", text, tables=tables)


def _from_to(one: Absence) -> str:
    return f"{one.phase} {one.first}" + (f"-{one.last}" if one.last > one.first else "")


def traffic(study: Study, marks: Marks) -> Section:
    """Validation score against bytes."""
    scale = figures.Scale("training_bytes", "training bytes so far", size, figures.decades)
    charts = [
        Chart(
            figures.against(marks.name("f"), study.methods, scale),
            "Validation score against bytes sent",
            _lines_note(study) + " A dashed level: the best of a method that sends nothing.",
        ),
        Chart(figures.against(marks.name("f"), study.methods, scale, close=True), "The upper end of it, closer"),
    ]
    text = "How far each method has come by the time it has sent so many bytes for training (logarithmic)."
    columns = ["method", *(f"to {round(100 * share)}\u00a0%" for share in _SHARES), "in all"]
    rows: list[Row] = [
        [
            marks.method(method),
            *(known(method.bytes_to(share), size) for share in _SHARES),
            size(method.training_bytes()),
        ]
        for method in study.methods
    ]
    table = Table("Training bytes until a share of the own best", columns, rows)
    return Section("bytes", "Accuracy against bytes", text, charts, [table], legend(study, marks))


_SHARES = (0.9, 0.95, 0.99, 1.0)


def clock(study: Study, marks: Marks) -> Section | None:
    """Validation score against time, a chart per link profile; None where no time is known."""
    links = study.profiles()
    if not links:
        return None
    charts = [
        Chart(
            figures.against(
                marks.name("f"),
                study.methods,
                figures.Scale(f"seconds/{link}", "time", axis_seconds, figures.clock_ticks),
            ),
            link,
            _ABOUT.get(link, "as the run was configured"),
        )
        for link in links
    ]
    columns = ["method", "link", *(f"to {round(100 * share)}\u00a0%" for share in _SHARES), "in all"]
    rows: list[Row] = [
        [
            marks.method(method),
            link,
            *(known(method.seconds_to(share, link), seconds) for share in _SHARES),
            known(method.total_seconds(link), seconds),
        ]
        for method in study.methods
        for link in links
    ]
    text = (
        "The same runs on different networks: each round lasts as long as its slowest trainer's measured work and what "
        "its messages need on the link (latency, then the busiest endpoint). Evaluation costs no time. "
        + _lines_note(study)
    )
    table = Table("Time until a share of the own best", columns, rows, texts=2)
    return Section("time", "Accuracy against time", text, charts, [table], legend(study, marks))


_ABOUT = {
    "none": "the trainers' work alone: bytes take no time",
    "datacentre": "10 Gbit/s, 0.1 ms",
    "wan": "100 Mbit/s, 40 ms",
    "proximity": "1 Mbit/s, 20 ms",
    "edge": "10 Mbit/s up, 50 down, 30 ms, through a hub",
}


def axis_seconds(value: float) -> str:
    """A round time on an axis: `10 ms`, `5 s`, `20 min`, `2 d`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if value >= length * (1 - 1e-9):
            return f"{value / length:,.3g} {unit}"
    return f"{1e6 * value:.3g} µs"


def learning(study: Study, marks: Marks) -> Section:
    """Curves over optimiser steps, and the numbers of all curves."""
    charts = [
        Chart(figures.learning(marks.name("f"), study.methods, "val"), f"Validation {study.metric}"),
        Chart(figures.learning(marks.name("f"), study.methods, "loss"), "Training loss", "Of each round's last step."),
    ]
    links = study.profiles()
    rows: list[Row] = []
    for method in study.methods:
        curve = method.curve("val", ROWS)
        for place in range(len(curve)):
            at = {name: values[place] for name, values in curve.columns.items()}
            rows.append(
                [
                    method.name,
                    f"{curve.phases[place]} {curve.rounds[place]}",
                    number(at["steps"], "{:,.0f}"),
                    number(at["loss"], "{:.4g}"),
                    number(100 * at["val"], "{:.2f}"),
                    number(100 * at["val_sd"], "{:.2f}") if len(method.runs) > 1 else "-",
                    known(at["training_bytes"], size),
                    *(known(at[f"seconds/{link}"], seconds) if f"seconds/{link}" in at else "-" for link in links),
                ]
            )
    columns = ["method", "round", "steps", "loss", "val, %", "± sd", "training bytes", *links]
    text = (
        "Progress by optimiser steps of a trainer, whatever they cost. Lazy training works layer by layer, so its "
        "curve starts again with each layer. " + _lines_note(study)
    )
    title = f"Numbers of all curves, at most {ROWS} rows per method"
    tables = [Table(title, columns, rows, texts=2)]
    return Section("learning", "Learning curves", text, charts, tables, legend(study, marks))


def kinds(study: Study, marks: Marks) -> Section:
    """Bytes by kind."""
    rows = {method.name: means([run.by_kind for run in method.runs]) for method in study.methods}
    colours = {kind: place for place, kind in enumerate(k for k in KINDS if any(k in row for row in rows.values()))}
    charts = [
        Chart(figures.stacked(marks.name("f"), rows, colours, share=False), "Bytes by kind"),
        Chart(figures.stacked(marks.name("f"), rows, colours, share=True), "In per cent of each method's own"),
    ]
    tables = [_parts_table("Bytes by kind", rows, list(colours)), _phase_kinds(study)]
    text = (
        "Every byte that left a trainer or the server, evaluation and set-up included, counted once, at the sender; "
        "means over seeds."
    )
    entries = [marks.part(kind, place) for kind, place in colours.items()]
    return Section("kinds", "What the bytes were for", text, charts, tables, entries)


def phases(study: Study, marks: Marks) -> Section | None:
    """Bytes by phase; None where all trained in one and the same."""
    rows = {
        method.name: means([{p: sum(k.values()) for p, k in run.by_phase.items()} for run in method.runs])
        for method in study.methods
    }
    colours = {phase: place for place, phase in enumerate(dict.fromkeys(p for row in rows.values() for p in row))}
    if len(colours) < 2:
        return None
    chart = Chart(figures.stacked(marks.name("f"), rows, colours, share=True), "In per cent of each method's own")
    text = "The same bytes by the phase of training in which they were sent, in the order of the phases."
    entries = [marks.part(phase, place) for phase, place in colours.items()]
    table = _parts_table("Bytes by phase", rows, list(colours))
    return Section("phases", "When they were sent", text, [chart], [table], entries)


def _parts_table(title: str, rows: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> Table:
    body = [
        [name, *(size(row[part]) if part in row else "-" for part in parts), size(sum(row.values()))]
        for name, row in rows.items()
    ]
    return Table(title, ["method", *parts, "in all"], body)


def _phase_kinds(study: Study) -> Table:
    rows: list[Row] = []
    for method in study.methods:
        phases = dict.fromkeys(phase for run in method.runs for phase in run.by_phase)
        for phase in phases:
            sums = means([run.by_phase.get(phase, {}) for run in method.runs])
            rows.extend([method.name, phase, kind, size(value)] for kind, value in sums.items() if value)
    return Table("Bytes by phase and kind", ["method", "phase", "kind", "bytes"], rows, texts=3)


def _lines_note(study: Study) -> str:
    if len(study.records) == len(study.methods):
        return "One seed per line."
    shaded = ", shaded: ± one standard deviation" if len(study.methods) <= 6 else ""
    return f"Lines: means over seeds at equal progress{shaded}."
