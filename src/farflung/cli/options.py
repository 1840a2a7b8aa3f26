"""Flags that several commands share, and how they become options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

GraphName = Annotated[str, typer.Argument(help="Data set (see `farflung datasets`), .npz file or partition folder.")]
RunPath = Annotated[Path, typer.Argument(metavar="DIR", help="Run folder, as `farflung train --out` made it.")]


def flag(flag: str, metavar: str, text: str) -> Any:
    """A flag with a value; None where it is not given, so that presets and files can set the option."""
    return typer.Option(flag, metavar=metavar, help=text, show_default=False)


Text = str | None
Encoder = Annotated[Text, flag("--encoder", "gcn|sage|gat|mlp", "Kind of the convolution.")]
TaskOption = Annotated[Text, flag("--task", "node-classification|link-prediction", "What the model learns.")]
Fanouts = Annotated[Text, flag("--fanouts", "10,25|full", "Neighbours drawn per node, one number per layer.")]
Batch = Annotated[Text, flag("--batch", "N", "Training nodes, or positive links, per step.")]
Parts = Annotated[Text, flag("--parts", "N", "Number of parts = trainers.")]
By = Annotated[Text, flag("--by", "random|mincut|supernode|given", "How the graph is cut.")]
Hidden = Annotated[Text, flag("--hidden", "N", "Width of hidden layers.")]
Layers = Annotated[Text, flag("--layers", "N", "Number of layers.")]
StepsOption = Annotated[Text, flag("--steps", "N", "Optimiser steps in all; lazy training shares them among layers.")]
Interval = Annotated[Text, flag("--interval", "50steps|2s", "Between two aggregations.")]
TimeLimit = Annotated[Text, flag("--time-limit", "60s|4h", "End of training on the team's clock.")]
SplitOption = Annotated[
    Text,
    flag(
        "--split",
        "NAME",
        "public, public:I, retexo, random, random:0.6/0.2/0.2, random:20/30 (per class); of links random, given, "
        "directed:0.9/0.05/0.05.",
    ),
]
Symmetric = Annotated[bool, typer.Option("--symmetric", help="Add the missing reverse of every edge.")]
Features = Annotated[Text, flag("--features", "NAME", "given, degree or gaussian:D.")]
Seed = Annotated[Text, flag("--seed", "N", "Seed of everything that is drawn.")]
Dtype = Annotated[Text, flag("--dtype", "float32|float64", "Of weights and embeddings.")]
Threads = Annotated[Text, flag("--threads", "N", "CPU threads.")]
Link = Annotated[
    Text, flag("--link", "PROFILE", "none, datacentre, wan, proximity, edge, or up=10Mbit,down=50Mbit,latency=30ms.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="YAML file of options.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="Any option by name, such as optim.lr=0.01; may be repeated."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, no live display.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def given_options(sets: Sequence[str] | None, **flags: Any) -> dict[str, Any]:
    """Options set by hand, by dotted path; `--set` wins over a flag."""
    from farflung.run.config import option_path, parse_assignments

    values = {option_path(name): value for name, value in flags.items() if value not in (None, False)}
    return {**values, **parse_assignments(sets or [])}


def file_options(path: Path | None) -> dict[str, Any]:
    """Options of the `--config` file, by dotted path; none without one."""
    from farflung.run.config import read_yaml

    return {} if path is None else read_yaml(path)
