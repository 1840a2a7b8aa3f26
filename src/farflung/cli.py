"""The command line. Errors are one line and exit code 2 (1 where training itself broke), Ctrl-C is 130."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console

from farflung import __version__
from farflung.errors import FarflungError, InputError, MissingExtraError
from farflung.methods.presets import PRESETS, preset

if TYPE_CHECKING:
    from farflung.graph import Graph
    from farflung.partition import Partition

METHODS = ", ".join(PRESETS)

app = typer.Typer(
    name="farflung",
    help="Train graph neural networks on graphs that are spread out, with almost no network traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GraphName = Annotated[str, typer.Argument(help="Data set (see `farflung datasets`), .npz file or partition folder.")]
RunPath = Annotated[Path, typer.Argument(metavar="DIR", help="Run folder, as `farflung train --out` made it.")]


def _option(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, show_default=False)


Text = str | None
Encoder = Annotated[Text, _option("--encoder", "gcn|sage|mlp", "Kind of the convolution.")]
Parts = Annotated[Text, _option("--parts", "N", "Number of parts = trainers.")]
By = Annotated[Text, _option("--by", "random|mincut|supernode|given", "How the graph is cut.")]
Hidden = Annotated[Text, _option("--hidden", "N", "Width of hidden layers.")]
Layers = Annotated[Text, _option("--layers", "N", "Number of layers.")]
StepsOption = Annotated[Text, _option("--steps", "N", "Optimiser steps in all; lazy training shares them among layers.")]
Interval = Annotated[Text, _option("--interval", "50steps|2s", "Between two aggregations.")]
TimeLimit = Annotated[Text, _option("--time-limit", "60s|4h", "End of training on the team's clock.")]
SplitOption = Annotated[
    Text, _option("--split", "NAME", "public, public:I, retexo, random, random:0.6/0.2/0.2 or random:20/30 (per class).")
]
Symmetric = Annotated[bool, typer.Option("--symmetric", help="Add the missing reverse of every edge.")]
Features = Annotated[Text, _option("--features", "NAME", "given, degree or gaussian:D.")]
Seed = Annotated[Text, _option("--seed", "N", "Seed of everything that is drawn.")]
Dtype = Annotated[Text, _option("--dtype", "float32|float64", "Of weights and embeddings.")]
Threads = Annotated[Text, _option("--threads", "N", "CPU threads.")]
Link = Annotated[
    Text, _option("--link", "PROFILE", "none, datacentre, wan, proximity, edge, or up=10Mbit,down=50Mbit,latency=30ms.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML file of options.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="Any option by name, such as optim.lr=0.01; may be repeated."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, no live display.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def _given(sets: Sequence[str] | None, **flags: Any) -> dict[str, Any]:
    """Options set by hand, by dotted path; `--set` wins over a flag."""
    from farflung.run.config import option_path, parse_assignments

    values = {option_path(name): value for name, value in flags.items() if value not in (None, False)}
    return {**values, **parse_assignments(sets or [])}


def _file(path: Path | None) -> dict[str, Any]:
    from farflung.run.config import read_yaml

    return {} if path is None else read_yaml(path)


@app.command(short_help="Train a model on a graph in parts.")
def train(
    graph: Annotated[
        str | None, typer.Argument(help="Data set, .npz file or partition folder; may stand in --config instead.")
    ] = None,
    method: Annotated[Text, _option("--method", "NAME", f"One of {METHODS}; default retexo.")] = None,
    encoder: Encoder = None,
    parts: Parts = None,
    by: By = None,
    hidden: Hidden = None,
    layers: Layers = None,
    steps: StepsOption = None,
    interval: Interval = None,
    time_limit: TimeLimit = None,
    split: SplitOption = None,
    symmetric: Symmetric = False,
    features: Features = None,
    seed: Seed = None,
    dtype: Dtype = None,
    threads: Threads = None,
    link: Link = None,
    config: Config = None,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
    faults: Annotated[
        str, typer.Option("--faults", metavar="PLAN", help="Rehearse failures: 'kill:1@5, delay:0@3=2.5s, nan:2@7'.")
    ] = "",
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Train a model; options come from the method's preset, --config, flags and --set, later ones winning.

    Options without a flag are set with --set; `farflung presets NAME` lists them all with their values.
    """
    from farflung.report.tables import metrics_table
    from farflung.report.units import seconds, size
    from farflung.run.config import resolve
    from farflung.run.progress import screen_journal
    from farflung.run.train import execute

    given = _given(
        sets,
        graph=graph,
        method=method,
        encoder=encoder,
        parts=parts,
        by=by,
        hidden=hidden,
        layers=layers,
        steps=steps,
        interval=interval,
        time_limit=time_limit,
        split=split,
        symmetric=symmetric,
        features=features,
        seed=seed,
        dtype=dtype,
        threads=threads,
        link=link,
    )
    resolved = resolve(given, file=_file(config))
    run = execute(
        resolved,
        out=out,
        overwrite=overwrite,
        faults=faults,
        journal=None if quiet else screen_journal(plain=plain),
    )
    console = Console()
    console.print(metrics_table({"test": run.test, "val": run.val}))
    clock = run.metrics["seconds"]
    console.print(
        f"sent {size(run.metrics['bytes']['total'])}, {size(run.metrics['training_bytes'])} of it for training; "
        f"{run.metrics['rounds']} rounds in {seconds(clock['virtual'])} on the clock, {seconds(clock['wall'])} here",
        highlight=False,
        soft_wrap=True,
    )
    if out is not None:
        console.print(f"written to {out}", highlight=False, soft_wrap=True)


@app.command(short_help="Train several methods on one graph and tabulate them.")
def compare(
    graph: GraphName,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            metavar="LIST",
            help=f"Of {METHODS}, each with options of its own in brackets: 'centralised,retexo[parts=8]'.",
        ),
    ] = "centralised,super-tma,retexo",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds: 0, 1, ...")] = 1,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for one file per cell and compare.json.")
    ] = Path("runs/compare"),
    show: Annotated[bool, typer.Option("--show", help="Print what is there; train nothing.")] = False,
    encoder: Encoder = None,
    parts: Parts = None,
    by: By = None,
    hidden: Hidden = None,
    layers: Layers = None,
    steps: StepsOption = None,
    interval: Interval = None,
    time_limit: TimeLimit = None,
    split: SplitOption = None,
    symmetric: Symmetric = False,
    features: Features = None,
    dtype: Dtype = None,
    threads: Threads = None,
    link: Link = None,
    config: Config = None,
    sets: Sets = None,
    plain: Plain = False,
    quiet: Quiet = False,
) -> None:
    """Train each method with each seed, one file per cell; call it again to go on where it was broken off.

    An option goes to all methods that use it; one that none uses is an error.
    """
    from farflung.report.tables import comparison_table
    from farflung.run.compare import RESULT, parse_methods, plan, read_comparison, run_grid, trained
    from farflung.run.progress import cell_lines, screen_journal

    if show:
        comparison = read_comparison(out)
    else:
        given = _given(
            sets,
            encoder=encoder,
            parts=parts,
            by=by,
            hidden=hidden,
            layers=layers,
            steps=steps,
            interval=interval,
            time_limit=time_limit,
            split=split,
            symmetric=symmetric,
            features=features,
            dtype=dtype,
            threads=threads,
            link=link,
        )
        cells = plan(graph, parse_methods(methods), range(seeds), given, _file(config))
        journal = None if quiet or plain or not sys.stderr.isatty() else screen_journal(transient=True)
        comparison = run_grid(
            cells,
            out,
            lambda cell: trained(cell, journal=journal),
            on_cell=cell_lines(len(cells), quiet=quiet),
        )
    console = Console()
    console.print(comparison_table(comparison.graph, comparison.metric, comparison.rows))
    console.print(f"written to {out / RESULT}", highlight=False, soft_wrap=True)
    for failure in comparison.failed:
        print(f"failed: {failure['label']}, seed {failure['seed']}: {failure['error']}", file=sys.stderr)
    if comparison.failed:
        raise typer.Exit(1)


@app.command(short_help="Score the model of a run folder again.")
def evaluate(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Score the saved model on its graph: the same figures as in metrics.json."""
    from farflung.report.tables import metrics_table
    from farflung.run.evaluate import SavedRun

    scores = SavedRun.open(run).evaluate("test", "val")
    if as_json:
        print(json.dumps(scores, indent=2))
    else:
        Console().print(metrics_table(scores))


@app.command(short_help="Predict every node with the model of a run folder.")
def predict(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file to write.")] = Path("predictions.parquet"),
    all_classes: Annotated[bool, typer.Option("--all-classes", help="Also a column p_CLASS for each class.")] = False,
) -> None:
    """Write id, label and probability of every node, by original id (multi-label: a column per class)."""
    from farflung.run.evaluate import SavedRun

    predictions = SavedRun.open(run).predict()
    predictions.save(out, all_classes=all_classes)
    print(f"{len(predictions.ids)} nodes written to {out}")


@app.command(short_help="Cut a graph into parts.")
def partition(
    graph: GraphName,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    by: By = None,
    parts: Parts = None,
    clusters: Annotated[Text, _option("--clusters", "N", "Super-nodes, for --by supernode.")] = None,
    balance: Annotated[Text, _option("--balance", "nodes|edges", "What --by mincut balances.")] = None,
    given: Annotated[Text, _option("--given", "COLUMN|FILE", "Where the parts are, for --by given.")] = None,
    seed: Seed = None,
    symmetric: Symmetric = False,
) -> None:
    """Write the parts as shards that `train` accepts in place of a graph."""
    whole, cut = _cut(graph, symmetric=symmetric, by=by, parts=parts, clusters=clusters, balance=balance, given=given, seed=seed)
    cut.save(out)
    print(f"{whole.num_nodes} nodes and {whole.num_edges} edges in {cut.num_parts} parts written to {out}")


@app.command(short_help="Say what a partition is like before anyone trains on it.")
def inspect(
    graph: GraphName,
    by: By = None,
    parts: Parts = None,
    clusters: Annotated[Text, _option("--clusters", "N", "Super-nodes, for --by supernode.")] = None,
    balance: Annotated[Text, _option("--balance", "nodes|edges", "What --by mincut balances.")] = None,
    given: Annotated[Text, _option("--given", "COLUMN|FILE", "Where the parts are, for --by given.")] = None,
    encoder: Encoder = None,
    split: SplitOption = None,
    features: Features = None,
    seed: Seed = None,
    symmetric: Symmetric = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Nodes, edges, balance, kept edges, halo, label divergence, masks, and the bias and spread of gradients."""
    from farflung.report.diagnosis import print_diagnosis
    from farflung.run.inspect import inspect_partition

    whole, cut = _cut(graph, symmetric=symmetric, by=by, parts=parts, clusters=clusters, balance=balance, given=given, seed=seed)
    report = inspect_partition(whole, cut, _given(None, encoder=encoder, split=split, features=features, seed=seed))
    if as_json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        print_diagnosis(report, Console())


def _cut(graph: str, *, symmetric: bool, **options: str | None) -> tuple[Graph, Partition]:
    """A graph and its parts: those of a partition folder, or cut as the options say."""
    from farflung.run.config import resolve
    from farflung.run.source import as_cut, cut, open_graph

    config = resolve({**_given(None, **options), "graph": graph}, default_method="retexo")
    whole, parts = open_graph(graph, symmetric=symmetric)
    if parts is not None:
        as_cut(config, parts)
        return whole, parts
    return whole, cut(whole, config)[0]


@app.command(short_help="List the named methods, or print one's options.")
def presets(name: Annotated[str | None, typer.Argument(help="A method.")] = None) -> None:
    """Without a name: all methods. With one: its options, resolved, as YAML for --config."""
    if name is None:
        from farflung.report.tables import listing

        Console().print(
            listing("", ["method", "what it does", "source"], ((p.name, p.about, p.source) for p in PRESETS.values()))
        )
        return
    from farflung.run.config import preset_yaml

    print(preset_yaml(preset(name).name), end="")


@app.command(short_help="List the graphs that can be named.")
def datasets() -> None:
    """Graphs by name, and what each needs."""
    from farflung.graph import available
    from farflung.report.tables import listing

    Console().print(
        listing("", ["name", "what it is", "where from", "needs"], ((d.name, d.about, d.where, d.needs) for d in available()))
    )


def _version(wanted: bool) -> None:
    if wanted:
        print(f"farflung {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train graph neural networks on graphs that are spread out, with almost no network traffic."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except click.ClickException as error:
        _complain(error.format_message())
        return 2
    except (InputError, MissingExtraError) as error:
        _complain(str(error))
        return 2
    except FarflungError as error:
        _complain(str(error))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _complain(message: str) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)


