"""The one table of named methods: what `--method` and `farflung compare` know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from farflung.errors import InputError, did_you_mean


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
    server_trains: bool = False
    """Whether the server needs the whole graph too."""
    lockstep: bool = False
    """Whether all make each step together: a deadline is then for a part of a step, not for an interval."""

    def load(self) -> Callable[..., None]:
        """The procedure's `train(setting) -> None`."""
        module, _, name = self.train.partition(":")
        function: Callable[..., None] = getattr(import_module(module), name)
        return function


CENTRALISED = Procedure("farflung.methods.centralised:train", "farflung.methods.tma_trainer:TMATrainer", whole=True)
TMA = Procedure("farflung.methods.tma:train", "farflung.methods.tma_trainer:TMATrainer")
LLCG = Procedure("farflung.methods.llcg:train", "farflung.methods.tma_trainer:TMATrainer", server_trains=True)
LAZY = Procedure("farflung.methods.lazy:train", "farflung.methods.lazy_trainer:LazyTrainer", heads=True)
GGS = Procedure("farflung.methods.ggs:train", "farflung.methods.ggs_trainer:GGSTrainer", lockstep=True)

NODES, LINKS = "node-classification", "link-prediction"

_ALWAYS = (
    "graph",
    "symmetric",
    "task",
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
_BATCHES = ("sample.*", "links.*")
_ALONE = (*_ALWAYS, *_BATCHES, "train.interval")
_APART = ("train.deadline", "partition.*", "link")
_COMBINING = (
    "train.interval",
    "train.aggregation",
    "train.trim",
    "train.outer_lr",
    "train.outer_momentum",
)
_AVERAGING = (*_ALWAYS, *_BATCHES, *_APART, *_COMBINING, "train.soup", "train.moments", "train.redeal")
_CORRECTING = (*_AVERAGING, "train.correction_steps")
_GLOBAL_LINKS = tuple(
    f"links.{name}" for name in ("decoder", "eval_negatives", "val_pairs", "per_positive", "mask_targets", "chunk")
)
_GLOBAL = (*_ALWAYS, *_APART, "sample.*", *_GLOBAL_LINKS, "train.interval", "train.patience")
_LAZY = (*_ALWAYS, *_APART, *_COMBINING, "train.lazy", "sample.batch")

# One model and one optimiser for all methods that are compared: RETEXO's (arXiv 2302.13053, authors' code) for nodes,
# TMA's (arXiv 2305.09887) for links.
_NODES = {
    "model": {"layers": 2, "hidden": 256, "norm": "layer", "activation": "relu", "dropout": 0.3},
    "optim": {"lr": 0.003, "weight_decay": 5e-4},
    "train": {"steps": 400, "interval": "10steps"},
}
_LINKS: dict[str, dict[str, Any]] = {
    "model": {"encoder": "sage", "layers": 2, "hidden": 256, "norm": "layer", "activation": "prelu", "dropout": 0.0},
    "optim": {"lr": 0.001, "weight_decay": 0.0, "clip": 1.0, "clip_from": 2},
    "sample": {"fanouts": "10,25", "batch": 4096},
    "train": {"steps": 400, "interval": "10steps"},
}


def _paper(batch: int, hidden: int, parts: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A setting of the TMA paper's scripts: an aggregation every two minutes for four hours."""
    return {
        **_LINKS,
        "model": {**_LINKS["model"], "hidden": hidden},
        "sample": {"fanouts": "10,25", "batch": batch},
        "train": {"interval": "2min", "time_limit": "4h"},
        "links": {"mask_targets": False},
        "partition": parts,
        **more,
    }


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
    for_links: Mapping[str, Any] = field(default_factory=dict)
    """Further values where links are predicted."""
    tasks: tuple[str, ...] = (NODES,)
    """What it can learn, the usual one first."""

    def uses_option(self, path: str) -> bool:
        """Whether the option at dotted `path` acts on this method."""
        return path in self.uses or f"{path.partition('.')[0]}.*" in self.uses


def _table(presets: Iterable[Preset]) -> dict[str, Preset]:
    return {preset.name: preset for preset in presets}


_BOTH = (NODES, LINKS)
_SUPER = {"by": "supernode", "parts": 3}
_PAPER_PARTS = {"by": "supernode", "parts": 3, "clusters": 15_000}
_PAPER = "arXiv 2305.09887, authors' scripts"

PRESETS: dict[str, Preset] = _table(
    [
        Preset(
            name="centralised",
            procedure=CENTRALISED,
            about="one trainer that holds the whole graph: the accuracy to reach",
            source="the usual way; model and optimiser as for the other methods",
            uses=_ALONE,
            defaults=_NODES,
            for_links=_LINKS,
            tasks=_BOTH,
        ),
        Preset(
            name="random-tma",
            procedure=TMA,
            about="nodes dealt out at random, cross-part edges dropped, weights averaged now and then",
            source="arXiv 2305.09887 (RandomTMA)",
            uses=_AVERAGING,
            defaults={**_NODES, "partition": {"by": "random", "parts": 3}},
            for_links=_LINKS,
            tasks=_BOTH,
        ),
        Preset(
            name="super-tma",
            procedure=TMA,
            about="many small METIS clusters dealt out at random, weights averaged now and then",
            source="arXiv 2305.09887 (SuperTMA)",
            uses=_AVERAGING,
            defaults={**_NODES, "partition": _SUPER},
            for_links=_LINKS,
            tasks=_BOTH,
        ),
        Preset(
            name="psgd-pa",
            procedure=TMA,
            about="one METIS part per trainer, weights averaged now and then",
            source="arXiv 2305.09887 (baseline PSGD-PA)",
            uses=_AVERAGING,
            defaults={**_NODES, "partition": {"by": "mincut", "parts": 3, "balance": "edges"}},
            for_links=_LINKS,
            tasks=_BOTH,
        ),
        Preset(
            name="llcg",
            procedure=LLCG,
            about="psgd-pa, and after each average some steps of a server that holds the whole graph",
            source="arXiv 2111.08202 (LLCG), as the baseline of arXiv 2305.09887",
            uses=_CORRECTING,
            defaults={**_NODES, "partition": {"by": "mincut", "parts": 3, "balance": "edges"}},
            for_links=_LINKS,
            tasks=_BOTH,
        ),
        Preset(
            name="ggs",
            procedure=GGS,
            about="each step samples the whole graph: remote neighbours and features are fetched, gradients averaged",
            source="arXiv 2010.05337 (DistDGL), as the baseline GGS of arXiv 2305.09887",
            uses=_GLOBAL,
            defaults={
                **_NODES,
                "sample": {"fanouts": "10,25", "batch": 512},
                "partition": {"by": "random", "parts": 4},
            },
            for_links={**_LINKS, "links": {"negatives": "global"}, "partition": {"by": "random", "parts": 3}},
            tasks=_BOTH,
        ),
        Preset(
            name="retexo",
            procedure=LAZY,
            about="layer after layer; embeddings cross the network once per layer, all edges are used",
            source="arXiv 2302.13053 (RETEXO)",
            uses=_LAZY,
            defaults={
                **_NODES,
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
        Preset(
            name="super-tma-citation2",
            procedure=TMA,
            about="the paper's setting for ogbl-citation2; partition.by=random and mincut are its other rows",
            source=_PAPER,
            uses=_AVERAGING,
            for_links=_paper(65_536, 256, _PAPER_PARTS, split="given"),
            tasks=(LINKS,),
        ),
        Preset(
            name="super-tma-reddit",
            procedure=TMA,
            about="the paper's setting for Reddit, reverses of test edges left in training as there",
            source=_PAPER,
            uses=_AVERAGING,
            for_links=_paper(131_072, 256, _PAPER_PARTS, split="directed:0.998/0.001/0.001"),
            tasks=(LINKS,),
        ),
        Preset(
            name="super-tma-mag240m",
            procedure=TMA,
            about="the paper's setting for the citation graph of MAG240M",
            source=_PAPER,
            uses=_AVERAGING,
            for_links=_paper(4096, 64, _PAPER_PARTS),
            tasks=(LINKS,),
        ),
    ]
)


def preset(name: str) -> Preset:
    """The preset called `name`. Raises InputError that lists what exists."""
    if name not in PRESETS:
        raise InputError(f"unknown method '{name}'{did_you_mean(name, PRESETS)}: choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def users_of(path: str) -> list[str]:
    """Names of the methods on which the option at dotted `path` acts."""
    return [name for name, one in PRESETS.items() if one.uses_option(path)]
