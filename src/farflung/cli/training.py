"""`farflung train` and `farflung compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from farflung.cli import options as o
from farflung.methods.presets import NODES, PRESETS

if TYPE_CHECKING:
    from farflung.graph import Graph
    from farflung.run.compare import Cell

METHODS = ", ".join(PRESETS)
COMPARED = "centralised, super-tma, retexo"
"""What `farflung compare` trains unless told."""


def train(
    graph: Annotated[
        str | None, typer.Argument(help="Data set, .npz file or partition folder; may stand in --config instead.")
    ] = None,
    method: Annotated[o.Text, o.flag("--method", "NAME", f"One of {METHODS}; default retexo.")] = None,
    task: o.TaskOption = None,
    encoder: o.Encoder = None,
    parts: o.Parts = None,
    by: o.By = None,
    hidden: o.Hidden = None,
    layers: o.Layers = None,
    steps: o.StepsOption = None,
    interval: o.Interval = None,
    time_limit: o.TimeLimit = None,
    fanouts: o.Fanouts = None,
    batch: o.Batch = None,
    split: o.SplitOption = None,
    symmetric: o.Symmetric = False,
    features: o.Features = None,
    seed: o.Seed = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    link: o.Link = None,
    config: o.Config = None,
    sets: o.Sets = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
    faults: Annotated[
        str, typer.Option("--faults", metavar="PLAN", help="Rehearse failures: 'kill:1@5, delay:0@3=2.5s, nan:2@7'.")
    ] = "",
    plain: o.Plain = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a model; options come from the method's preset, --config, flags and --set, later ones winning.

    Options without a flag are set with --set; `farflung presets NAME` lists them all with their values.
    """
    from farflung.report.page import write_report
    from farflung.report.record import RunRecord
    from farflung.report.tables import console, metrics_table
    from farflung.report.units import seconds, size
    from farflung.run.config import resolve
    from farflung.run.folder import REPORT
    from farflung.run.progress import screen_journal
    from farflung.run.train import execute

    given = o.given_options(
        sets,
        graph=graph,
        method=method,
        task=task,
        encoder=encoder,
        parts=parts,
        by=by,
        hidden=hidden,
        layers=layers,
        steps=steps,
        interval=interval,
        time_limit=time_limit,
        fanouts=fanouts,
        batch=batch,
        split=split,
        symmetric=symmetric,
        features=features,
        seed=seed,
        dtype=dtype,
        threads=threads,
        link=link,
    )
    resolved = resolve(given, file=o.file_options(config))
    try:
        run = execute(
            resolved,
            asked=given,
            out=out,
            overwrite=overwrite,
            faults=faults,
            journal=None if quiet else screen_journal(plain=plain),
            warn=None if quiet else _warn,
        )
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            print(f"note: {' '.join(note.split())}", file=sys.stderr)
        raise
    screen = console()
    held_out = [] if run.links is None else [f"{run.links.val.count:,} + {run.links.test.count:,} links held out"]
    screen.print("; ".join([_sizes(run.graph), *held_out, *run.graph.notes]), soft_wrap=True)
    screen.print(metrics_table({"test": run.test, "val": run.val}))
    clock = run.metrics["seconds"]
    screen.print(
        f"sent {size(run.metrics['bytes']['total'])}, {size(run.metrics['training_bytes'])} of it for training; "
        f"{run.metrics['rounds']} rounds in {seconds(clock['virtual'])} on the clock, {seconds(clock['wall'])} here",
        soft_wrap=True,
    )
    if out is not None:
        write_report([RunRecord.of(run)], out / REPORT)
        screen.print(f"written to {out}, the page to look at is {out / REPORT}", soft_wrap=True)


def compare(
    graph: o.GraphName,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="LIST",
            help=f"Of {METHODS}, each with options of its own in brackets: 'centralised,retexo[parts=8]'. "
            f"Default: {COMPARED}, of these the ones that can do the task.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds: 0, 1, ...")] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for cells, compare.json, report.html; runs/compare-GRAPH."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what is there; train nothing.")] = False,
    task: o.TaskOption = None,
    encoder: o.Encoder = None,
    parts: o.Parts = None,
    by: o.By = None,
    hidden: o.Hidden = None,
    layers: o.Layers = None,
    steps: o.StepsOption = None,
    interval: o.Interval = None,
    time_limit: o.TimeLimit = None,
    fanouts: o.Fanouts = None,
    batch: o.Batch = None,
    split: o.SplitOption = None,
    symmetric: o.Symmetric = False,
    features: o.Features = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    link: o.Link = None,
    config: o.Config = None,
    sets: o.Sets = None,
    plain: o.Plain = False,
    quiet: o.Quiet = False,
) -> None:
    """Train each method with each seed, one file per cell; call it again to go on where it was broken off.

    An option goes to all methods that use it; one that none uses is an error.
    """
    from farflung.report.tables import comparison_table, console
    from farflung.run.compare import RESULT, Trained, file_name, parse_methods, plan, read_comparison, run_grid
    from farflung.run.folder import REPORT
    from farflung.run.progress import screen_journal

    out = out or Path("runs") / f"compare-{file_name(graph)}"
    if show:
        comparison = read_comparison(out)
    else:
        given = o.given_options(
            sets,
            task=task,
            encoder=encoder,
            parts=parts,
            by=by,
            hidden=hidden,
            layers=layers,
            steps=steps,
            interval=interval,
            time_limit=time_limit,
            fanouts=fanouts,
            batch=batch,
            split=split,
            symmetric=symmetric,
            features=features,
            dtype=dtype,
            threads=threads,
            link=link,
        )
        file = o.file_options(config)
        asked_task = str(given.get("task") or file.get("task") or NODES)
        able = [name for name in COMPARED.split(", ") if asked_task in PRESETS[name].tasks]
        cells = plan(graph, parse_methods(methods or ",".join(able) or COMPARED), range(seeds), given, file)
        journal = None if quiet or plain or not sys.stderr.isatty() else screen_journal(transient=True)
        runner = Trained(cells, journal=journal, warn=None if quiet else _warn_once())
        comparison = run_grid(
            cells,
            out,
            runner,
            on_cell=_cell_lines(len(cells), quiet=quiet),
            data=runner.data,
        )
    screen = console()
    screen.print(comparison_table(comparison.graph, comparison.metric, comparison.rows, width=screen.width))
    screen.print(f"written to {out / RESULT}", soft_wrap=True)
    if (out / REPORT).is_file():
        screen.print(f"the page to look at is {out / REPORT}", soft_wrap=True)
    for failure in comparison.failed:
        print(f"failed: {failure['label']}, seed {failure['seed']}: {failure['error']}", file=sys.stderr)
    if comparison.failed:
        raise typer.Exit(1)


def _sizes(graph: Graph) -> str:
    return f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _warn_once() -> Callable[[str], None]:
    """As `_warn`, but each text only once."""
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            _warn(text)
        said.add(text)

    return warn


def _cell_lines(total: int, *, quiet: bool) -> Callable[[Cell, Mapping[str, Any], bool], None]:
    """A listener that says a line about each cell as it ends."""
    from farflung.report.units import seconds

    done = 0

    def say(cell: Cell, record: Mapping[str, Any], reused: bool) -> None:
        nonlocal done
        done += 1
        if quiet:
            return
        line = f"[{done}/{total}] {cell.label}, seed {cell.seed}: "
        if "error" in record:
            line += "failed"
        else:
            result = record["result"]
            score = result["test"][result["metric"]]
            line += f"test {result['metric']} " + ("-" if score is None else f"{score:.4f}")
            line += " (from an earlier call)" if reused else f" in {seconds(result['seconds']['wall'])}"
        print(line, file=sys.stderr, flush=True)

    return say
