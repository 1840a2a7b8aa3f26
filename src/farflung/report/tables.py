"""Tables for the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from farflung.report.units import seconds, size


def console() -> Console:
    """Standard output; a file or pipe, which has no width of its own, gets room enough for any table here."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140, highlight=False)


def comparison_table(graph: str, metric: str, rows: Sequence[Mapping[str, Any]], *, width: int = 140) -> Table:
    """One row per method: test and validation metric in per cent, bytes, time.

    Below 100 columns of `width` the validation metric and the time on this machine are left out.
    """
    seeds = max((len(row["seeds"]) for row in rows), default=0)
    title = f"{graph}: mean ± sd over {seeds} seed{'' if seeds == 1 else 's'}"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("method", no_wrap=True)
    metric = f"{metric} %"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        f"test\n{metric}": lambda row: _percent(row["test"]),
        f"val\n{metric}": lambda row: _percent(row["val"]),
        "bytes": lambda row: _known(row["bytes"].get("total"), size),
        "of them\ntraining": lambda row: _known(row["training_bytes"], size),
        "times\nfewer": lambda row: _known(row["times_fewer"], lambda times: f"{times:.1f}x"),
        "clock": lambda row: _known(row["seconds"].get("virtual"), seconds),
        "here": lambda row: _known(row["seconds"].get("wall"), seconds),
    }
    if width < 100:
        del columns[f"val\n{metric}"], columns["here"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(str(row["label"]).replace("[", r"\["), *(cell(row) for cell in columns.values()))
    table.caption = "clock: time on the modelled network, all trainers at once; here: time on this machine"
    table.caption_justify = "left"
    return table


def listing(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain list of texts."""
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, no_wrap=place == 0)
    for row in rows:
        table.add_row(*(str(cell).replace("[", r"\[") for cell in row))
    return table


def metrics_table(metrics: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Rows: metrics; columns: the sets of nodes or links they were taken on (`val`, `test`)."""
    names = dict.fromkeys(name for values in metrics.values() for name in values)
    return listing("", ["metric", *metrics], ([n, *(_score(v.get(n)) for v in metrics.values())] for n in names))


def replay_table(run: str, metric: str, score: float | None, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Times of a run on several links, `rows` as `Recorded.told`; `score`: what was to be reached, None: nothing."""
    goal = f"to {metric} {'-' if score is None else f'{score:.4f}'}"
    return listing(
        f"{run}: time on a link",
        ["link", "whole run", goal, "in round"],
        (
            [
                row["link"],
                seconds(row["seconds"]),
                _known(row["seconds_to_score"], seconds),
                _known(row["round"], lambda number: f"{number + 1:.0f}"),
            ]
            for row in rows
        ),
    )


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(spread: Mapping[str, Any]) -> str:
    if spread["mean"] is None:
        return "-"
    sd = "" if spread["sd"] is None else f" ± {100 * spread['sd']:.2f}"
    return f"{100 * spread['mean']:.2f}{sd}"


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)
