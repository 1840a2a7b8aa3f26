"""`farflung partition`, `inspect`, `presets` and `datasets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.cli import options as o
from farflung.methods.presets import PRESETS, preset

if TYPE_CHECKING:
    from farflung.graph import Graph
    from farflung.partition import Partition
    from farflung.run.config import RunConfig


Clusters = Annotated[o.Text, o.flag("--clusters", "N", "Super-nodes, for --by supernode.")]
Balance = Annotated[o.Text, o.flag("--balance", "nodes|edges", "What --by mincut balances.")]
Given = Annotated[o.Text, o.flag("--given", "COLUMN|FILE", "Where the parts are, for --by given.")]


def partition(
    graph: o.GraphName,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    by: o.By = None,
    parts: o.Parts = None,
    clusters: Clusters = None,
    balance: Balance = None,
    given: Given = None,
    seed: o.Seed = None,
    symmetric: o.Symmetric = False,
) -> None:
    """Write the parts as shards that `train` accepts in place of a graph."""
    _, whole, parts_of_it = _cut(
        graph=graph,
        by=by,
        parts=parts,
        clusters=clusters,
        balance=balance,
        given=given,
        seed=seed,
        symmetric=symmetric,
    )
    parts_of_it.save(out)
    print(f"{whole.num_nodes} nodes and {whole.num_edges} edges in {parts_of_it.num_parts} parts written to {out}")


def inspect(
    graph: o.GraphName,
    by: o.By = None,
    parts: o.Parts = None,
    clusters: Clusters = None,
    balance: Balance = None,
    given: Given = None,
    encoder: o.Encoder = None,
    split: o.SplitOption = None,
    features: o.Features = None,
    seed: o.Seed = None,
    symmetric: o.Symmetric = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Nodes, edges, balance, kept edges, halo, label divergence, masks, and the bias and spread of gradients."""
    from farflung.report.diagnosis import diagnosis_view
    from farflung.report.tables import console
    from farflung.run.inspect import inspect_partition

    config, whole, cut = _cut(
        graph=graph,
        by=by,
        parts=parts,
        clusters=clusters,
        balance=balance,
        given=given,
        encoder=encoder,
        split=split,
        features=features,
        seed=seed,
        symmetric=symmetric,
    )
    report = inspect_partition(whole, cut, config)
    if as_json:
        print(json.dumps(report, indent=2, allow_nan=False))
    else:
        console().print(diagnosis_view(report))


def _cut(**flags: str | bool | None) -> tuple[RunConfig, Graph, Partition]:
    """The configuration, the graph and its parts: those of a partition folder, or cut as the flags say."""
    from farflung.run.config import resolve
    from farflung.run.source import as_cut, cut, open_graph

    given = o.given_options(None, **flags)
    config = resolve(given)
    graph, parts = open_graph(config.graph, symmetric=config.symmetric)
    if parts is not None:
        return as_cut(config, parts, given), graph, parts
    return config, graph, cut(graph, config)[0]


def presets(
    name: Annotated[str | None, typer.Argument(help="A method.")] = None,
    task: o.TaskOption = None,
) -> None:
    """Without a name: all methods. With one: its options, resolved, as YAML for --config."""
    if name is None:
        from farflung.report.tables import console, listing

        console().print(
            listing("", ["method", "what it does", "source"], ((p.name, p.about, p.source) for p in PRESETS.values()))
        )
        return
    from farflung.run.config import preset_yaml

    print(preset_yaml(preset(name).name, task), end="")


def datasets() -> None:
    """Graphs by name, and what each needs."""
    from farflung.graph import available
    from farflung.report.tables import console, listing

    console().print(
        listing(
            "",
            ["name", "what it is", "where from", "needs"],
            ((d.name, d.about, d.where, d.needs) for d in available()),
        )
    )
