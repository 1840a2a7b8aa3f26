"""From a configuration to the graph and its parts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph import Graph, Split, choose_split, is_symmetric, load, symmetrise
from farflung.graph.features import choose_features
from farflung.graph.graph import MASKS
from farflung.graph.links import LinkSplit, split_links
from farflung.graph.subgraph import between, with_edges, with_nodes
from farflung.methods.presets import preset
from farflung.partition import Partition, Shard, cut_graph
from farflung.partition.assign import deal_clusters, random_parts
from farflung.partition.store import StoredShards
from farflung.run.config import RunConfig, base_options
from farflung.seeding import derive
from farflung.tasks import metrics, ranking


@dataclass(frozen=True, eq=False)
class Source:
    """What a run starts from."""

    config: RunConfig
    """With split, metric and parts as they turned out."""
    graph: Graph
    """With features and split as the run uses them."""
    partition: Partition
    """Its shards are those of `seen`; a single part where the method takes the whole graph."""
    fingerprint: str
    """Of the graph as it was read (see `fingerprint`)."""
    partition_seconds: float
    """Time that cutting the graph took; 0 where it came in parts."""
    links: LinkSplit | None = None
    """The links to be predicted; None where nodes are classified."""
    training: Graph | None = None
    """What of `graph` training sees; None: all of it."""

    @property
    def seen(self) -> Graph:
        """The graph that training sees."""
        return self.graph if self.training is None else self.training

    def deal(self, number: int) -> Sequence[Shard]:
        """The parts drawn anew, for the `number`-th time (from 1): nodes, or the same super-nodes, dealt out again."""
        parts, own = self.partition, self.config.partition.seed
        seed = derive(self.config.seed if own is None else own, "deal", number)
        if parts.clusters is None:
            assignment = random_parts(self.seen.num_nodes, parts.num_parts, seed)
        else:
            assignment = deal_clusters(int(parts.clusters.max()) + 1, parts.num_parts, seed)[parts.clusters]
        return Partition.of(self.seen, assignment, parts.num_parts).shards

    def with_config(self, config: RunConfig) -> Source:
        """A copy with another configuration."""
        return replace(self, config=config)


def prepare(config: RunConfig, given: Graph | Partition | None = None, asked: Collection[str] = ()) -> Source:
    """Read the graph (or take the given one), choose features and split, cut it.

    `asked`: paths of the options that were set by hand (see `as_cut`).

    Raises:
        InputError: anything about the graph, its split, features, parts or labels that does not fit.
    """
    found = ready(config, given, asked)
    config, graph = found.config, found.graph
    known = found.known
    seen = graph if known is None else seen_of(graph, known, config)
    seconds = 0.0
    if preset(config.method).procedure.whole:
        parts = uncut(seen)
    elif found.parts is not None:
        parts = recut(found.parts, found.raw, seen, known)
    elif config.partition.by == "given" and known is not None:  # a file has a line for each node of the whole graph
        parts, seconds = cut(graph, config)
        parts = recut(parts, graph, seen, known)
    else:
        parts, seconds = cut(seen, config)
    training = None if known is None else seen
    return Source(config, graph, parts, fingerprint(found.raw), seconds, found.links, training)


@dataclass(frozen=True, eq=False)
class Ready:
    """A graph that is fit for training, not cut yet."""

    config: RunConfig
    raw: Graph
    """As it was read."""
    parts: Partition | None
    """As it came; None where it came whole."""
    graph: Graph
    """With features and split, without the links that are not for training."""
    links: LinkSplit | None

    @property
    def known(self) -> np.ndarray | None:
        """The nodes that training sees, bool [N]; None: all of them."""
        split = self.graph.split
        return ~(split.val | split.test) if self.config.inductive and split is not None else None


def ready(config: RunConfig, given: Graph | Partition | None = None, asked: Collection[str] = ()) -> Ready:
    """Read the graph and choose its features and split.

    Raises InputError as `prepare`.
    """
    if given is None:
        raw, parts = open_graph(config.graph, symmetric=config.symmetric)
        config = _with_absolute_paths(config, parts is not None)
    else:
        raw, parts = as_given(given, symmetric=config.symmetric)
    if parts is not None and not preset(config.method).procedure.whole:
        config = as_cut(config, parts, asked)
    by = config.partition.by if parts is None else parts.by
    if config.train.redeal and by not in ("random", "supernode"):
        raise InputError(
            f"option 'train.redeal' needs parts that are drawn, and those of '{config.graph}' are '{by}': set it to 0"
        )
    if config.train.redeal and by == "supernode" and parts is not None and parts.clusters is None:
        raise InputError(f"option 'train.redeal': '{config.graph}' does not say which super-nodes it has: cut it anew")
    if config.task == "node-classification" and raw.y is None:
        raise InputError(
            f"graph '{raw.name}' has no labels: node classification needs some (task=link-prediction needs none)"
        )
    config = complete(config, raw)
    graph, links = with_features_and_split(raw, config)
    if links is not None and parts is not None and by in ("mincut", "supernode"):
        seen = (
            "parts were cut along all edges, those of validation and test among them: cut the uncut graph to avoid it"
        )
        graph = graph.with_(notes=(*graph.notes, seen))
    _check_fits(graph, links, config)
    return Ready(config, raw, parts, graph, links)


def uncut(graph: Graph) -> Partition:
    """The graph as one part."""
    return Partition.of(graph, np.zeros(graph.num_nodes, dtype=np.int32), 1)


def seen_of(graph: Graph, known: np.ndarray, config: RunConfig) -> Graph:
    """The nodes `known` (bool [N]) of `graph` and the edges among them; features of degrees count these edges alone."""
    if config.features != "given":
        graph = with_edges(graph, between(graph, known))
        graph = choose_features(graph, config.features, config.normalise, config.seed)
    return with_nodes(graph, known)


def cut(graph: Graph, config: RunConfig) -> tuple[Partition, float]:
    """The graph cut as the configuration says, and the seconds that it took."""
    start = time.perf_counter()
    parts = cut_graph(graph, config.partition, config.seed)
    return parts, time.perf_counter() - start


def recut(parts: Partition, raw: Graph, graph: Graph, known: np.ndarray | None = None) -> Partition:
    """The same parts of `graph`, which is `raw` with other features or another split; themselves if it is `raw`.

    `known`: the nodes of `raw` that `graph` has, bool [N]; None: all of them.
    """
    if graph is raw:
        return parts
    kept = slice(None) if known is None else known
    return Partition.of(
        graph,
        parts.assignment[kept],
        parts.num_parts,
        by=parts.by,
        options=parts.manifest.get("options"),
        seed=parts.manifest.get("seed"),
        clusters=None if parts.clusters is None else parts.clusters[kept],
        part_names=parts.manifest.get("part_names"),
    )


def open_graph(name: str, *, symmetric: bool = False) -> tuple[Graph, Partition | None]:
    """The graph called `name`: a data set, a file or a partition folder (which then comes with it)."""
    folder = Path(name)
    if (folder / "manifest.json").is_file() and not (folder / "config.yaml").is_file():  # not a run of that name
        return as_given(Partition.open(name), symmetric=symmetric)
    return load(name, symmetric=symmetric), None


def _with_absolute_paths(config: RunConfig, in_parts: bool) -> RunConfig:
    """The configuration with files by their absolute paths: it means the same from any folder."""
    changes = {}
    if in_parts or (config.graph.endswith(".npz") and Path(config.graph).is_file()):
        changes["graph"] = str(Path(config.graph).resolve())
    if config.initial is not None:
        changes["initial"] = str(Path(config.initial).resolve())
    file = Path(config.partition.given or "")
    if file.suffix in (".npy", ".npz") and file.is_file():  # anything else is a column, whatever lies about here
        changes["partition__given"] = str(file.resolve())
    return config.replace(**changes) if changes else config


def as_given(given: Graph | Partition, *, symmetric: bool) -> tuple[Graph, Partition | None]:
    """The same of a graph or partition in memory."""
    if isinstance(given, Graph):
        return symmetrise(given) if symmetric else given, None
    if symmetric and not is_symmetric(given.graph()):
        raise InputError(
            "the graph is cut already and not symmetric: cut it anew with `farflung partition --symmetric`"
        )
    return given.graph(), given


def complete(config: RunConfig, graph: Graph) -> RunConfig:
    """The configuration with the defaults that depend on the graph: its split and metric.

    A graph that comes with a chosen split of its nodes keeps it (`split` stays None).
    """
    links = config.task == "link-prediction"
    changes: dict[str, Any] = {}
    if config.split is None and links:
        changes["split"] = "given" if "split" in graph.edge_columns else "random"
    elif config.split is None and graph.split is None:
        changes["split"] = "public" if graph.public_splits else "random"
    if links or graph.y is not None:
        known = ranking.names() if links else metrics.names(graph.num_classes, graph.multilabel)
        if config.metric is None:
            changes["metric"] = known[0]
        elif config.metric not in known:
            raise InputError(f"option 'metric' cannot be '{config.metric}': choose from {', '.join(known)}")
    return config.replace(**changes) if changes else config


def with_features_and_split(graph: Graph, config: RunConfig) -> tuple[Graph, LinkSplit | None]:
    """The graph with the features and the split that the configuration names; itself where it has them already.

    Where links are predicted, it lacks those of validation and test, and features are made of what is left.
    """
    links = None
    if config.task == "link-prediction":
        assert config.split is not None
        if config.links.decoder != "distmult":  # the others cannot tell types apart: one pair, one split
            graph = graph.with_(edge_type=None, edge_type_names=None)
        links = split_links(graph, config.split, config.links.eval_negatives, config.seed)
        graph = links.graph.with_(split=None)
    if config.features != "given" or config.normalise != "none":
        graph = choose_features(graph, config.features, config.normalise, config.seed)
    if links is not None:
        return graph, replace(links, graph=graph)
    return graph if config.split is None else choose_split(graph, config.split, config.seed), None


def _check_fits(graph: Graph, links: LinkSplit | None, config: RunConfig) -> None:
    if len(graph.features) != 1:
        raise InputError(f"graph '{graph.name}' has {len(graph.features)} node types: the methods here take one")
    if links is not None and links.train_count == 0:
        raise InputError(f"graph '{graph.name}' has no edge to train on in its split: choose another split")
    if graph.x is None:
        raise InputError(f"graph '{graph.name}' has no features: set features=degree or features=gaussian:64")
    if links is None:
        assert graph.split is not None
        if not graph.split.train.any():
            raise InputError(f"graph '{graph.name}' has no training node in its split: choose another split")
    validated = links.val.count if links is not None else graph.split.val.any() if graph.split is not None else False
    if config.train.patience is not None and not validated:
        raise InputError(
            f"option 'train.patience' counts validation scores, and graph '{graph.name}' has nothing to validate on in "
            "its split: drop it, or choose another split"
        )


def as_cut(config: RunConfig, parts: Partition, asked: Collection[str] = ()) -> RunConfig:
    """The configuration with the parts that the graph came in.

    Raises InputError where it asks for others: by an option that is not the method's usual one, or by one of those
    `asked` for by hand, whose value counts even where it is the usual one.
    """
    usual = base_options(config.method, config.task)
    found = {
        "partition.by": ("given", parts.by),
        "partition.parts": (parts.num_parts,),
        "partition.seed": (parts.manifest.get("seed"),),
    }
    for leaf, value in config.partition:
        path = f"partition.{leaf}"
        if (path in asked or value != usual[path]) and value not in found.get(path, ()):
            raise InputError(
                f"'{config.graph}' is cut already, into {parts.num_parts} parts: "
                f"drop option '{path}', or name the uncut graph"
            )
    return config.replace(partition__by="given", partition__parts=parts.num_parts)


def fingerprint(graph: Graph) -> str:
    """SHA-256 over all arrays of a graph, hexadecimal: equal graphs have equal fingerprints, whatever their name."""
    state = hashlib.sha256()
    for spec in fields(graph):
        if spec.name not in ("name", "notes"):
            _digest(state, spec.name, getattr(graph, spec.name))
    return state.hexdigest()


def files_digest(parts: Partition) -> str | None:
    """SHA-256 over the checksums of all files of a partition folder, hexadecimal; None where it is in memory."""
    if not isinstance(parts.shards, StoredShards):
        return None
    return hashlib.sha256(json.dumps(parts.shards.manifest["files"], sort_keys=True).encode()).hexdigest()


def _digest(state: Any, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, np.ndarray):
        state.update(f"{name}:{value.dtype.str}:{value.shape}\n".encode())
        state.update(np.ascontiguousarray(value).data if value.dtype.kind not in "USmM" else value.tobytes())
    elif sp.issparse(value):
        for part in ("indptr", "indices", "data"):
            _digest(state, f"{name}.{part}", getattr(value, part))
        state.update(f"{name}:{value.shape}\n".encode())
    elif isinstance(value, Split):
        for part in MASKS:
            _digest(state, f"{name}.{part}", getattr(value, part))
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            _digest(state, f"{name}[{place}]", item)
    elif isinstance(value, str):
        state.update(f"{name}={value}\n".encode())
    else:
        for key in sorted(value):
            _digest(state, f"{name}.{key}", value[key])
