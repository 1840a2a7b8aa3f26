"""Training from start to end: graph, parts, team, method, result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from farflung import __version__
from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.store import save_graph
from farflung.methods.base import Journal, Keeper, Round, Setting
from farflung.methods.presets import preset
from farflung.nn import Encoder
from farflung.partition import Partition
from farflung.run.config import RunConfig, resolve
from farflung.run.evaluator import Evaluator
from farflung.run.folder import GRAPH, LEDGER, PARTITION, RunFolder
from farflung.run.predict import Predictions, predictions
from farflung.run.progress import FolderJournal, Journals, MemoryJournal
from farflung.run.source import Source, prepare
from farflung.team import Clock, FaultPlan, Ledger, parse_profile
from farflung.team.local import LocalTeam
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
    model: Encoder
    """With the chosen weights."""
    ledger: Ledger
    history: list[Round]
    graph: Graph
    """With the features and the split of the run."""
    partition: Partition
    folder: Path | None

    @property
    def test(self) -> dict[str, float | None]:
        """Metrics on the test nodes."""
        return dict(self.metrics["test"])

    @property
    def val(self) -> dict[str, float | None]:
        """Metrics on the validation nodes."""
        return dict(self.metrics["val"])

    def predict(self) -> Predictions:
        """Predictions for every node, by original id."""
        with cpu_threads(self.config.threads):
            logits = Evaluator(self.graph, trainer_spec(self.config, self.graph)).logits(self.model.state_dict())
        return predictions(self.graph, logits)


def train(
    graph: str | Path | Graph | Partition,
    *,
    out: str | Path | None = None,
    journal: Journal | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Run:
    """Train a model.

    Args:
        graph: a data set's name, an .npz file or a partition folder; or a graph or partition in memory.
        out: run folder to write; None: nothing is written.
        journal: told of every round as it ends.
        overwrite: replace an earlier run in `out`.
        options: as on the command line, by short or dotted name: `method="super-tma"`, `parts=4`,
            `encoder="gcn"`, `interval="10steps"`, `**{"partition.seed": 7}`.

    Raises:
        InputError: whatever does not fit, before training.
        TrainerError, AllTrainersLostError: the run broke; with `out`, its checkpoint is there.
    """
    given = graph if isinstance(graph, Graph | Partition) else None
    name = str(graph) if given is None else _name_of(given)
    config = resolve({**options, "graph": name})
    return execute(
        config,
        given=given,
        out=out,
        overwrite=overwrite,
        journal=None if journal is None else lambda _config, _ledger: nullcontext(journal),
    )


def _name_of(given: Graph | Partition) -> str:
    return given.graph().name if isinstance(given, Partition) else given.name


def execute(
    config: RunConfig,
    *,
    given: Graph | Partition | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    journal: JournalMaker | None = None,
    faults: str = "",
    clock: Clock | None = None,
) -> Run:
    """Train as `config` says.

    Args:
        given: graph or partition in memory, in place of `config.graph`.
        faults: a `FaultPlan` as text, for rehearsals.
        clock: what trainers are timed by; None: the machine's own clock.

    Otherwise as `train`.
    """
    plan = FaultPlan.parse(faults)
    folder = None if out is None else RunFolder.create(out, overwrite=overwrite)
    with cpu_threads(config.threads) as threads:
        start = time.perf_counter()
        source = prepare(config.replace(threads=threads), given)
        plan.check(source.partition.num_parts)
        if folder is not None:
            source = _keep_given(folder, source, given)
        procedure = preset(config.method).procedure
        spec = trainer_spec(source.config, source.graph)
        evaluator = Evaluator(source.graph, spec)
        assert source.config.metric is not None
        model = spec.build_model()
        keeper = Keeper(source.config.metric, last={name: w.clone() for name, w in model.state_dict().items()})
        team = LocalTeam(
            source.partition.shards,
            spec,
            score=evaluator.validate,
            link=parse_profile(config.link),
            faults=plan,
            clock=clock,
            colocated=procedure.whole,
        )
        if folder is not None:
            folder.write_config(source.config)
            folder.write_manifest(manifest(source, spec, model, faults))
        memory = MemoryJournal()
        with ExitStack() as stack:
            stack.callback(team.close)
            journals: list[Journal] = [memory]
            if folder is not None:
                journals.append(stack.enter_context(FolderJournal(folder, keeper)))
            if journal is not None:
                journals.append(stack.enter_context(journal(source.config, team.ledger)))
            setting = Setting(
                team, model, Journals(journals), keeper, source.config.optim, source.config.train, source.config.seed
            )

            def result(scores: Mapping[str, Any], complete: bool) -> dict[str, Any]:
                seconds = {
                    "wall": time.perf_counter() - start,
                    "virtual": team.now(),
                    "partition": source.partition_seconds,
                }
                return _metrics(scores, team.ledger, keeper, model, seconds, complete)

            try:
                procedure.load()(setting)
                model.load_state_dict(keeper.chosen(source.config.train.keep))
                scores = {
                    **evaluator.metrics(model.state_dict(), "val", "test"),
                    "last": evaluator.metrics(keeper.last, "val", "test"),
                }
            except BaseException:
                if folder is not None:
                    _cut_short(folder, keeper, team.ledger, result(_last_scores(memory.history, keeper), False))
                raise
            metrics = result(scores, True)
            if folder is not None:
                folder.write_model(model.state_dict())
                team.ledger.save(folder.path / LEDGER)
                folder.write_checkpoint(keeper)
                folder.write_metrics(metrics)
    return Run(
        config=source.config,
        metrics=metrics,
        model=model,
        ledger=team.ledger,
        history=memory.history,
        graph=source.graph,
        partition=source.partition,
        folder=None if folder is None else folder.path,
    )


def trainer_spec(config: RunConfig, graph: Graph) -> TrainerSpec:
    """What every trainer must know, and what builds the model again."""
    procedure = preset(config.method).procedure
    return TrainerSpec(
        target=procedure.trainer,
        model=config.model,
        optim=config.optim,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        multilabel=graph.multilabel,
        heads=procedure.heads,
        seed=config.seed,
        dtype=config.dtype,
    )


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[int]:
    """Compute with so many threads inside the block (None: as PyTorch is set); gives their number."""
    before, compiled_before = torch.get_num_threads(), numba.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(compiled_before)


def _keep_given(folder: RunFolder, source: Source, given: Graph | Partition | None) -> Source:
    """Put a graph or partition that came from memory into the run folder, so that the run can be repeated."""
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


def manifest(source: Source, spec: TrainerSpec, model: Encoder, faults: str) -> dict[str, Any]:
    """What has to be known of a run beside its configuration."""
    return {
        "tools": {"farflung": __version__, "torch": torch.__version__, "numpy": np.__version__},
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
        },
        "model": spec.model_dump(mode="json", exclude={"target", "optim"}),
        "parameters": sum(p.numel() for p in model.parameters()),
        "class_names": None if source.graph.class_names is None else list(source.graph.class_names),
        "faults": faults,
    }


def _metrics(
    scores: Mapping[str, Any],
    ledger: Ledger,
    keeper: Keeper,
    model: Encoder,
    seconds: Mapping[str, float],
    complete: bool,
) -> dict[str, Any]:
    return {
        "test": scores["test"],
        "val": scores["val"],
        "last": scores["last"],
        "bytes": {"total": ledger.total(), **ledger.by_kind()},
        "training_bytes": ledger.training(),
        "rounds": keeper.rounds,
        "seconds": dict(seconds),
        "best_round": keeper.best_round,
        "parameters": sum(p.numel() for p in model.parameters()),
        "complete": complete,
    }


def _last_scores(history: list[Round], keeper: Keeper) -> dict[str, Any]:
    """All that is known of a run that was cut short: the validation metrics of its best round."""
    val = next((record.val for record in history if record.round == keeper.best_round), None)
    return {"test": None, "val": None if val is None else dict(val), "last": None}


def _cut_short(folder: RunFolder, keeper: Keeper, ledger: Ledger, partial: Mapping[str, Any]) -> None:
    folder.write_checkpoint(keeper)
    ledger.save(folder.path / LEDGER)
    folder.write_metrics(partial)
