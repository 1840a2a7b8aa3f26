"""The one table of named methods: what `--method` and `farflung compare` know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from farflung.errors import InputError


@dataclass(frozen=True)
class Procedure:
    """How a method trains: its server's side and its trainers' side, imported only when it runs."""

    train: str
    """`module:function` of `train(setting) -> None`."""
    trainer: str
    """`module:Class` of the trainer that it talks to."""
    heads: bool = False
    """Whether hidden layers get heads of their own."""
    whole: bool = False
    """Whether it takes the uncut graph: one trainer, beside the server."""

    def load(self) -> Callable[..., None]:
        """The procedure's `train(setting) -> None`."""
        module, _, name = self.train.partition(":")
        function: Callable[..., None] = getattr(import_module(module), name)
        return function


CENTRALISED = Procedure("farflung.methods.centralised:train", "farflung.methods.tma:TMATrainer", whole=True)
TMA = Procedure("farflung.methods.tma:train", "farflung.methods.tma:TMATrainer")
LAZY = Procedure("farflung.methods.lazy:train", "farflung.methods.lazy_trainer:LazyTrainer", heads=True)

_ALWAYS = (
    "graph",
    "symmetric",
    "split",
    "features",
    "normalise",
    "method",
    "metric",
    "seed",
    "dtype",
    "threads",
    "model.*",
    "optim.*",
    "train.steps",
    "train.time_limit",
    "train.keep",
)
_ALONE = (*_ALWAYS, "train.interval")
_AVERAGING = (*_ALWAYS, "train.interval", "train.deadline", "partition.*", "link")
_LAZY = (*_ALWAYS, "train.deadline", "partition.*", "link")

# One model and one optimiser for all methods that are compared: RETEXO's (arXiv 2302.13053, authors' code).
_MODEL = {"layers": 2, "hidden": 256, "norm": "layer", "activation": "relu", "dropout": 0.3}
_OPTIM = {"lr": 0.003, "weight_decay": 5e-4}


@dataclass(frozen=True)
class Preset:
    """A named method: a procedure and the options it starts from."""

    name: str
    procedure: Procedure
    about: str
    """One line for lists."""
    source: str
    """The paper that the method and its constants are from."""
    uses: tuple[str, ...]
    """Paths of the options that act on this method; `model.*` stands for a whole section."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that differ from those of `RunConfig`, nested as there."""

    def uses_option(self, path: str) -> bool:
        """Whether the option at dotted `path` acts on this method."""
        return path in self.uses or f"{path.partition('.')[0]}.*" in self.uses


def _table(presets: Iterable[Preset]) -> dict[str, Preset]:
    return {preset.name: preset for preset in presets}


PRESETS: dict[str, Preset] = _table(
    [
        Preset(
            name="centralised",
            procedure=CENTRALISED,
            about="one trainer that holds the whole graph, full-batch: the accuracy to reach",
            source="the usual way; model and optimiser as for retexo",
            uses=_ALONE,
            defaults={"model": _MODEL, "optim": _OPTIM, "train": {"steps": 400, "interval": "10steps"}},
        ),
        Preset(
            name="random-tma",
            procedure=TMA,
            about="nodes dealt out at random, cross-part edges dropped, weights averaged now and then",
            source="arXiv 2305.09887 (RandomTMA)",
            uses=_AVERAGING,
            defaults={
                "model": _MODEL,
                "optim": _OPTIM,
                "train": {"steps": 400, "interval": "10steps"},
                "partition": {"by": "random", "parts": 3},
            },
        ),
        Preset(
            name="super-tma",
            procedure=TMA,
            about="many small METIS clusters dealt out at random, weights averaged now and then",
            source="arXiv 2305.09887 (SuperTMA)",
            uses=_AVERAGING,
            defaults={
                "model": _MODEL,
                "optim": _OPTIM,
                "train": {"steps": 400, "interval": "10steps"},
                "partition": {"by": "supernode", "parts": 3},
            },
        ),
        Preset(
            name="psgd-pa",
            procedure=TMA,
            about="one METIS part per trainer, weights averaged now and then",
            source="arXiv 2305.09887 (baseline PSGD-PA)",
            uses=_AVERAGING,
            defaults={
                "model": _MODEL,
                "optim": _OPTIM,
                "train": {"steps": 400, "interval": "10steps"},
                "partition": {"by": "mincut", "parts": 3, "balance": "edges"},
            },
        ),
        Preset(
            name="retexo",
            procedure=LAZY,
            about="layer after layer; embeddings cross the network once per layer, all edges are used",
            source="arXiv 2302.13053 (RETEXO)",
            uses=_LAZY,
            defaults={
                "model": _MODEL,
                "optim": _OPTIM,
                "train": {"steps": 400},
                "partition": {"by": "random", "parts": 4},
            },
        ),
        Preset(
            name="gcn-kipf",
            procedure=CENTRALISED,
            about="the classic two-layer GCN on the public Planetoid splits: checks data, splits and layers",
            source="Kipf and Welling 2017 (arXiv 1609.02907)",
            uses=_ALONE,
            defaults={
                "split": "public",
                "normalise": "row",
                "model": {"encoder": "gcn", "layers": 2, "hidden": 16, "norm": "none", "dropout": 0.5},
                "optim": {"lr": 0.01, "weight_decay": 5e-4, "decay": "first"},
                "train": {"steps": 200, "interval": "1steps"},
            },
        ),
    ]
)


def preset(name: str) -> Preset:
    """The preset called `name`. Raises InputError that lists what exists."""
    if name not in PRESETS:
        raise InputError(f"unknown method '{name}': choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def users_of(path: str) -> list[str]:
    """Names of the methods on which the option at dotted `path` acts."""
    return [name for name, one in PRESETS.items() if one.uses_option(path)]
