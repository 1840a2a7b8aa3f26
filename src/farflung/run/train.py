"""Training from start to end: graph, parts, team, method, result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from farflung import __version__
from farflung.errors import InputError, NotFiniteError
from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.graph.store import save_graph
from farflung.methods import inference
from farflung.methods.base import Journal, Keeper, Round, Setting, Weights
from farflung.methods.presets import preset
from farflung.nn.decoders import LinkModel
from farflung.nn.flat import pack_state
from farflung.nn.model import Model
from farflung.partition import Partition
from farflung.partition.diagnosis import partition_warnings
from farflung.partition.store import StoredShards
from farflung.run.config import RunConfig, flatten, resolve
from farflung.run.evaluator import Evaluator, Metrics, evaluator_for
from farflung.run.folder import GRAPH, INITIAL, LEDGER, PARTITION, TIMELINE, RunFolder, read_weights, write_weights
from farflung.run.predict import Embeddings, Predictions
from farflung.run.progress import FolderJournal, Journals, MemoryJournal
from farflung.run.saved import SavedRun
from farflung.run.source import Source, files_digest, prepare, uncut
from farflung.run.spec import trainer_spec
from farflung.run.threads import cpu_threads
from farflung.team import Clock, FaultPlan, Ledger, parse_profile
from farflung.team.local import LocalTeam
from farflung.team.timeline import Timeline
from farflung.trainer import TrainerSpec

JournalMaker = Callable[[RunConfig, Ledger], AbstractContextManager[Journal]]
"""Makes a journal for a run that is about to begin; it is left when the run ends."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    config: RunConfig
    """Resolved: trains the same again."""
    metrics: dict[str, Any]
    """What metrics.json holds."""
    model: Model
    """With the chosen weights."""
    ledger: Ledger
    history: list[Round]
    graph: Graph
    """With the features and the split of the run."""
    partition: Partition
    folder: Path | None
    timeline: Timeline
    links: LinkSplit | None = None
    """The links that were predicted; None where nodes were classified."""
    manifest: dict[str, Any] = field(default_factory=dict)
    """What manifest.json holds."""

    @property
    def test(self) -> dict[str, float | None]:
        """Metrics on the test nodes or links."""
        return dict(self.metrics["test"])

    @property
    def val(self) -> dict[str, float | None]:
        """Metrics on the validation nodes or links."""
        return dict(self.metrics["val"])

    def predict(self) -> Predictions:
        """Predictions for every node, by original id. Raises InputError where links are predicted."""
        return self._trained.predict()

    def embed(self) -> Embeddings:
        """Embeddings of every node, by original id: what classes or links are scored from."""
        return self._trained.embed()

    def module(self) -> nn.Module:
        """The trained model as a module of PyG, of the class that the encoder names.

        Raises InputError where the encoder is none of PyG's models.
        """
        return self._trained.module()

    @property
    def _trained(self) -> SavedRun:
        return SavedRun(self.config, self.model.state_dict(), self.graph, self.links)


def train(
    graph: str | Path | Graph | Partition,
    *,
    out: str | Path | None = None,
    journal: Journal | None = None,
    overwrite: bool = False,
    model: nn.Module | str | Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train a model.

    Args:
        graph: a data set's name, an .npz file or a partition folder; or a graph or partition in memory.
        out: run folder to write; None: nothing is written.
        journal: told of every round as it ends.
        overwrite: replace an earlier run in `out`.
        model: one of PyG's models (`GraphSAGE`, `GCN`, `GAT`, `GIN`, `PNA`, `EdgeCNN`): training begins with its
            weights, and in the end it holds the trained ones. Or `module:function`, a function of the numbers of
            features and outputs that builds such a model. Or a mapping of options, as `model.*`.
        options: as on the command line, by short or dotted name: `method="super-tma"`, `parts=4`,
            `encoder="gcn"`, `interval="10steps"`, `**{"partition.seed": 7}`.

    Raises:
        InputError: whatever does not fit, before training.
        TrainerError, AllTrainersLostError: the run broke; with `out`, its checkpoint is there.
    """
    given = graph if isinstance(graph, Graph | Partition) else None
    name = str(graph) if given is None else _name_of(given)
    initial = None
    if isinstance(model, nn.Module):
        from farflung.nn.pyg_model import describe, give_back, weights_of  # PyG takes seconds to import

        options = {**_seen_in(describe(model), options), **options}
        initial = weights_of(model)
    elif isinstance(model, str):
        options = {**options, "model.module": model}
    elif model is not None:
        options = {**options, "model": model}
    by_hand = flatten({**options, "graph": name})
    run = execute(
        resolve(by_hand),
        given=given,
        asked=by_hand,
        out=out,
        overwrite=overwrite,
        journal=None if journal is None else lambda _config, _ledger: nullcontext(journal),
        initial=initial,
    )
    if isinstance(model, nn.Module):
        give_back(run.model.state_dict(), model)
    return run


def _seen_in(described: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What a model that was handed in was made with, as options. Raises InputError where `options` set it too."""
    seen = {f"model.{name}": value for name, value in described.items()}
    for path, value in flatten(options).items():
        if path in seen:
            raise InputError(
                f"option '{path}' cannot be '{value}' beside the model that is handed in: build the model with it"
            )
    return seen


def _name_of(given: Graph | Partition) -> str:
    return given.graph().name if isinstance(given, Partition) else given.name


def execute(
    config: RunConfig,
    *,
    given: Graph | Partition | None = None,
    asked: Collection[str] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    journal: JournalMaker | None = None,
    warn: Callable[[str], None] | None = None,
    faults: str = "",
    clock: Clock | None = None,
    initial: Weights | None = None,
) -> Run:
    """Train as `config` says.

    Args:
        given: graph or partition in memory, in place of `config.graph`.
        asked: paths of the options that were set by hand: none of them may contradict a graph that is cut already.
        warn: told, before training, of what is odd about the parts.
        faults: a `FaultPlan` as text, for rehearsals.
        clock: what trainers are timed by; None: the machine's own clock.
        initial: weights to start from, in place of those of `config.initial` or drawn ones.

    Otherwise as `train`. An exception that ends the run carries a note (PEP 678) for each file that could not be
    written after it.
    """
    plan = FaultPlan.parse(faults)
    folder = None if out is None else _usable_folder(out, overwrite, config, given)
    with cpu_threads(config.threads) as threads:
        start = time.perf_counter()
        source = prepare(config.replace(threads=threads), given, asked)
        plan.check(source.partition.num_parts)
        if config.train.deadline is None and any(fault.seconds == math.inf for fault in plan.faults):
            raise InputError(f"fault plan '{plan}' has a trainer that hangs: set a deadline, train.deadline=10s")
        if warn is not None:
            for warning in partition_warnings(source.seen, source.partition.assignment, source.partition.num_parts):
                warn(warning)
        if initial is None and source.config.initial is not None:
            initial = read_weights(Path(source.config.initial))
        work = _Work.set_up(source, plan, clock, start, initial)
        memory = MemoryJournal()
        with ExitStack() as stack:
            stack.callback(work.team.close)
            journals: list[Journal] = [memory]
            if folder is not None:
                folder.claim(overwrite=overwrite)
                stack.callback(folder.release)
                work = replace(work, source=_keep_given(folder, source, given, initial))
                folder.write_config(work.source.config)
                folder.write_manifest(manifest(work.source, work.spec, work.model, faults))
                journals.append(stack.enter_context(FolderJournal(folder, work.keeper)))
            if journal is not None:
                journals.append(stack.enter_context(journal(work.source.config, work.team.ledger)))
            try:
                scores = work.train(Journals(journals))
            except BaseException as error:
                if folder is not None:
                    work.save_cut_short(folder, memory.history, error)
                raise
            metrics = work.metrics(scores, complete=True)
            if folder is not None:
                work.save(folder, metrics)
    return Run(
        config=work.source.config,
        metrics=metrics,
        model=work.model,
        ledger=work.team.ledger,
        history=memory.history,
        graph=source.graph,
        partition=source.partition,
        folder=None if folder is None else folder.path,
        timeline=work.team.timeline,
        links=source.links,
        manifest=manifest(work.source, work.spec, work.model, faults),
    )


@dataclass(frozen=True, eq=False)
class _Work:
    """All that takes part in a run."""

    source: Source
    spec: TrainerSpec
    evaluator: Evaluator
    model: Model
    keeper: Keeper
    team: LocalTeam
    start: float
    """On `time.perf_counter`."""

    @classmethod
    def set_up(
        cls, source: Source, faults: FaultPlan, clock: Clock | None, start: float, initial: Weights | None
    ) -> _Work:
        """Model, evaluator and team for `source`; close the team in the end. `initial`: weights to start from."""
        config = source.config
        assert config.metric is not None
        spec = trainer_spec(config, source.graph, source.links)
        evaluator = evaluator_for(source.graph, spec, source.links)
        model = spec.build_model()
        if initial is not None:
            start_from(model, initial)
        procedure = preset(config.method).procedure
        keeper = Keeper(config.metric, last={name: w.clone() for name, w in model.state_dict().items()})
        team = LocalTeam(
            source.partition.shards,
            spec,
            score=evaluator.validate,
            link=parse_profile(config.link),
            faults=faults,
            clock=clock,
            colocated=procedure.whole,
            whole=(lambda: uncut(source.seen).shards[0]) if procedure.server_trains else None,
        )
        return cls(source, spec, evaluator, model, keeper, team, start)

    def train(self, journal: Journal) -> dict[str, Any]:
        """Run the method and put the chosen weights into the model; its scores."""
        config = self.source.config
        setting = Setting(
            self.team,
            self.model,
            journal,
            self.keeper,
            config.optim,
            config.train,
            deal=lru_cache(1)(self.source.deal),
            unseen=config.inductive,
        )
        preset(config.method).procedure.load()(setting)
        self.model.load_state_dict(self.keeper.chosen(config.train.keep))
        return {**self._scored(self.model.state_dict()), "last": self._last_metrics()}

    def _scored(self, weights: Weights) -> Mapping[str, Metrics]:
        """Metrics on validation and test nodes or links, by whoever evaluates."""
        if self.source.config.train.evaluation == "central":
            return self.evaluator.metrics(weights, "val", "test")
        self.team.begin(self.keeper.rounds, "evaluation")
        return inference.evaluate(self.team, self.model, pack_state(weights), ("val", "test"))

    def _last_metrics(self) -> dict[str, Any]:
        """Of the last weights; None where they have diverged, which takes nothing from the best ones."""
        try:
            return dict(self._scored(self.keeper.last))
        except NotFiniteError:
            return {"val": None, "test": None}

    def metrics(self, scores: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
        """What metrics.json holds."""
        ledger = self.team.ledger
        return {
            "test": scores["test"],
            "val": scores["val"],
            "last": scores["last"],
            "bytes": {"total": ledger.total(), **ledger.by_kind()},
            "training_bytes": ledger.training(),
            "rounds": self.keeper.rounds,
            "seconds": {
                "wall": time.perf_counter() - self.start,
                "virtual": self.team.now(),
                "partition": self.source.partition_seconds,
            },
            "best_round": self.keeper.best_round,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "links": None if self.source.links is None else link_counts(self.source.links),
            "complete": complete,
        }

    def save(self, folder: RunFolder, metrics: Mapping[str, Any]) -> None:
        """Put down a finished run."""
        folder.write_model(self.model.state_dict())
        self.team.ledger.save(folder.path / LEDGER)
        self.team.timeline.save(folder.path / TIMELINE)
        folder.write_checkpoint(self.keeper)
        folder.write_metrics(metrics)

    def save_cut_short(self, folder: RunFolder, history: Sequence[Round], error: BaseException) -> None:
        """Put down what there is of a run that `error` ended. What cannot be written becomes a note of `error`."""
        scores = _last_scores(history, self.keeper)
        steps: tuple[Callable[[], None], ...] = (
            lambda: folder.write_checkpoint(self.keeper),
            lambda: self.team.ledger.save(folder.path / LEDGER),
            lambda: self.team.timeline.save(folder.path / TIMELINE),
            lambda: folder.write_metrics(self.metrics(scores, complete=False)),
        )
        for step in steps:
            try:
                step()
            except Exception as failure:
                error.add_note(f"{failure}")


def link_counts(links: LinkSplit) -> dict[str, Any]:
    """How many links there are of each set, against how many negatives each."""
    return {
        "train": links.train_count,
        "val": links.val.count,
        "test": links.test.count,
        "negatives": links.test.negatives.shape[1],
        "directed": links.directed,
    }


def _usable_folder(out: str | Path, overwrite: bool, config: RunConfig, given: Graph | Partition | None) -> RunFolder:
    """The run folder at `out`, with nothing removed yet. Raises InputError where it cannot be used."""
    folder = RunFolder.check(out, overwrite=overwrite)
    for source in (config.graph if given is None else _folder_of(given), config.partition.given):
        if source is not None and Path(source).exists() and folder.path.resolve() in Path(source).resolve().parents:
            raise InputError(f"{source} lies in run folder {out}, which would be replaced: choose another --out")
    return folder


def _folder_of(given: Graph | Partition) -> Path | None:
    """Where a partition's shards are read from as they are used."""
    shards = given.shards if isinstance(given, Partition) else None
    return shards.folder if isinstance(shards, StoredShards) else None


def start_from(model: Model, weights: Weights) -> None:
    """Set a model's weights; heads that lazy training adds keep theirs. Raises InputError where they do not fit."""
    if isinstance(model, LinkModel) and not any(name.startswith("encoder.") for name in weights):
        start_from(model.encoder, weights)  # a model that was handed in has no decoder
        return
    own = {name: value for name, value in model.state_dict().items() if name in weights or ".head." not in name}
    for name in [*own, *weights]:
        shapes = [None if name not in one else tuple(one[name].shape) for one in (weights, own)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"initial weights do not fit the model: '{name}' has shape {shapes[0]}, expected {shapes[1]}: give the "
                "model the widths of the graph's features and classes"
            )
    model.load_state_dict({**model.state_dict(), **weights})


def _keep_given(
    folder: RunFolder, source: Source, given: Graph | Partition | None, initial: Weights | None = None
) -> Source:
    """Put what came from memory into the run folder, graph, partition or weights, so that the run can be repeated."""
    if initial is not None and source.config.initial is None:
        weights = (folder.path / INITIAL).resolve()
        write_weights(weights, initial)
        source = source.with_config(source.config.replace(initial=str(weights)))
    if given is None:
        return source
    name = PARTITION if isinstance(given, Partition) else GRAPH
    path = (folder.path / name).resolve()
    try:
        if isinstance(given, Partition):
            given.save(path)
        else:
            save_graph(given, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): choose another --out") from None
    return source.with_config(source.config.replace(graph=str(path)))


def manifest(source: Source, spec: TrainerSpec, model: Model, faults: str) -> dict[str, Any]:
    """What has to be known of a run beside its configuration."""
    return {
        "tools": {"farflung": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "config": source.config.digest(),
        "threads": source.config.threads,
        "seeds": {"run": source.config.seed, "partition": source.partition.manifest.get("seed")},
        "graph": {
            "name": source.graph.name,
            "fingerprint": source.fingerprint,
            "nodes": source.graph.num_nodes,
            "edges": source.graph.num_edges,
            "notes": list(source.graph.notes),
        },
        "partition": {
            "digest": source.partition.digest,
            "parts": source.partition.num_parts,
            "by": source.partition.by,
            "files": files_digest(source.partition),
        },
        "model": spec.model_dump(mode="json", exclude={"target", "optim"}),
        "parameters": sum(p.numel() for p in model.parameters()),
        "class_names": None if source.graph.class_names is None else list(source.graph.class_names),
        "faults": faults,
    }


def _last_scores(history: Sequence[Round], keeper: Keeper) -> dict[str, Any]:
    """All that is known of a run that was cut short: the validation metrics of its best round."""
    val = next((record.val for record in history if record.round == keeper.best_round), None)
    if val is None and keeper.best_score is not None:  # cut off before its line of history
        val = {keeper.metric: keeper.best_score}
    return {"test": None, "val": None if val is None else dict(val), "last": None}
