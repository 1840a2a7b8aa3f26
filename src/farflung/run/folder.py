"""The run folder: one run's configuration, history, ledger, metrics and weights, each written whole or not at all.

config.yaml        every option, resolved: `farflung train --config DIR/config.yaml --out NEW` repeats the run
manifest.json      format version, tool versions, threads, seeds, digests, the model's shape
history.jsonl      one line per round, as it ends
ledger.parquet     every byte that left a trainer or the server
timeline.parquet   the clock in work and departures, to be told again for another link
metrics.json       the result
checkpoint/        last and best weights, also of a run that was cut short
model.safetensors  the chosen weights
report.html        of `farflung train`: all of it to look at, one page
graph.npz          the graph, only where it was given as an object
partition/         the partition, likewise
initial.safetensors  the weights that training began with, only where a model was handed in
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from farflung.errors import InputError
from farflung.files import disk_errors, write_atomic
from farflung.methods.base import Keeper, Weights
from farflung.run.config import RunConfig, read_yaml, resolve

FORMAT_VERSION = 1
"""Of the folder as a whole; a reader refuses a higher one."""

CONFIG, MANIFEST, HISTORY = "config.yaml", "manifest.json", "history.jsonl"
LEDGER, METRICS, MODEL, CHECKPOINT = "ledger.parquet", "metrics.json", "model.safetensors", "checkpoint"
TIMELINE = "timeline.parquet"
GRAPH, PARTITION, INITIAL = "graph.npz", "partition", "initial.safetensors"
REPORT = "report.html"
RUNNING = ".running"
"""There while a run writes to the folder."""
_CONTENTS = (
    RUNNING,
    CONFIG,
    MANIFEST,
    HISTORY,
    LEDGER,
    TIMELINE,
    METRICS,
    MODEL,
    CHECKPOINT,
    GRAPH,
    PARTITION,
    INITIAL,
    REPORT,
)

_KEPT = ("last", "best")
"""What a checkpoint holds of a `Keeper`."""


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON, atomically. Non-finite numbers are refused (ValueError)."""
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises InputError naming it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except ValueError:
        raise InputError(f"{path} is no JSON: it was damaged or is another program's") from None


def write_weights(path: Path, weights: Weights) -> None:
    """Write named tensors as safetensors, atomically."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    write_atomic(path, lambda temporary: save_file(tensors, temporary))


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Named tensors from a safetensors file. Raises InputError naming it."""
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        raise InputError(
            f"{path} cannot be read as safetensors: the run has not come that far, or it is damaged"
        ) from None


class RunFolder:
    """A run folder on disk. Make one with `create`, or for a run with `check` and `claim`; look in with `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """An empty run folder at `path` that no run writes to: `check`, `claim`, `release`."""
        folder = cls.check(path, overwrite=overwrite)
        folder.claim(overwrite=overwrite)
        folder.release()
        return folder

    @classmethod
    def check(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """A run folder at `path`, made if it is not there and tried out for writing; removes nothing.

        Raises InputError where `path` is not empty (with `overwrite`: and no run folder), or cannot be written.
        """
        root = Path(path)
        with _unwritable(root):
            if root.is_dir() and any(root.iterdir()):
                if not overwrite:
                    raise InputError(f"run folder {root} is not empty: choose another --out, or say --overwrite")
                if not (root / CONFIG).is_file():
                    raise InputError(f"{root} holds something, but no run to overwrite: choose another --out")
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root):
                pass
        return cls(root)

    def claim(self, *, overwrite: bool = False) -> None:
        """Take the folder for a run that begins now, with `overwrite` after removing an earlier run, nothing else.

        Raises InputError where another run has taken it, or where it cannot be written.
        """
        with _unwritable(self.path):
            if overwrite:
                for name in _CONTENTS:
                    _remove(self.path / name)
            try:
                (self.path / RUNNING).touch(exist_ok=False)
            except FileExistsError:
                raise InputError(f"another run is writing to {self.path}: choose another --out") from None

    def release(self) -> None:
        """The run has ended."""
        (self.path / RUNNING).unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """The run folder at `path`. Raises InputError if there is none, or one of a later format."""
        folder = cls(Path(path))
        if not (folder.path / CONFIG).is_file():
            raise InputError(
                f"{folder.path} is no run folder (no {CONFIG} in it): name one that `farflung train --out` made"
            )
        version = folder.manifest().get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise InputError(
                f"{folder.path} has format version {version}, this Farflung reads up to {FORMAT_VERSION}: "
                "upgrade farflung"
            )
        return folder

    def config(self) -> RunConfig:
        """The resolved configuration."""
        return resolve({}, file=read_yaml(self.path / CONFIG))

    def manifest(self) -> dict[str, Any]:
        """The manifest."""
        return dict(read_json(self.path / MANIFEST))

    def metrics(self) -> dict[str, Any]:
        """The result as `train` stored it."""
        return dict(read_json(self.path / METRICS))

    def weights(self) -> dict[str, torch.Tensor]:
        """The chosen weights."""
        return read_weights(self.path / MODEL)

    def write_config(self, config: RunConfig) -> None:
        """Put down the resolved configuration. This and all writers below raise FarflungError on a full disk."""
        text = config.to_yaml()
        write_atomic(self.path / CONFIG, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Put down the manifest, with the format version."""
        write_json(self.path / MANIFEST, {"format_version": FORMAT_VERSION, **manifest})

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Put down the result. Non-finite numbers are refused (ValueError)."""
        write_json(self.path / METRICS, metrics)

    def write_model(self, weights: Weights) -> None:
        """Put down the chosen weights."""
        write_weights(self.path / MODEL, weights)

    def write_checkpoint(self, keeper: Keeper) -> None:
        """Put down the keeper's weights. `state.json` names the file that counts and changes last, at a stroke:
        an earlier checkpoint stays whole until then."""
        root = self.path / CHECKPOINT
        with disk_errors(root):
            root.mkdir(exist_ok=True)
            earlier = list(root.glob("round-*.safetensors"))
        weights = root / f"round-{keeper.rounds}.safetensors"
        write_weights(
            weights,
            {f"{group}/{name}": value for group in _KEPT for name, value in getattr(keeper, group).items()},
        )
        write_json(
            root / "state.json",
            {
                "format_version": FORMAT_VERSION,
                "weights": weights.name,
                "rounds": keeper.rounds,
                "metric": keeper.metric,
                "best_score": keeper.best_score,
                "best_round": keeper.best_round,
            },
        )
        for path in earlier:
            if path != weights:
                _remove(path)

    def read_checkpoint(self) -> Keeper:
        """The keeper as it was put down. Raises InputError if there is none."""
        root = self.path / CHECKPOINT
        state = read_json(root / "state.json")
        keeper = Keeper(
            metric=state["metric"],
            best_score=state["best_score"],
            best_round=state["best_round"],
            rounds=state["rounds"],
        )
        for path, value in read_weights(root / state["weights"]).items():
            group, _, name = path.partition("/")
            if group in _KEPT:
                getattr(keeper, group)[name] = value
        return keeper


@contextmanager
def _unwritable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"run folder {root} cannot be written ({error.strerror}): choose another --out") from None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
