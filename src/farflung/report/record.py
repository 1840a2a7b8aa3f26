"""What a report needs to know of one run, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from farflung.errors import InputError
from farflung.run.folder import HISTORY, LEDGER, TIMELINE, RunFolder
from farflung.run.replay import read_history
from farflung.team import PROFILES, Ledger, parse_profile
from farflung.team.message import TRAINING_KINDS
from farflung.team.timeline import Timeline

if TYPE_CHECKING:
    from farflung.run.train import Run

FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunRecord:
    """One run: JSON values alone."""

    label: str
    seed: int
    config: dict[str, Any]
    """Nested, as config.yaml."""
    metrics: dict[str, Any]
    """As metrics.json."""
    history: list[dict[str, Any]]
    """As history.jsonl."""
    training_bytes: list[int]
    """At the end of each record of the history, from the start of the run."""
    seconds: dict[str, list[float]]
    """By link profile: the clock at the end of each record of the history."""
    by_kind: dict[str, int]
    by_phase: dict[str, dict[str, int]]
    """Bytes by phase, then kind."""
    pairs: list[list[int]]
    """[sender, receiver, bytes of all kinds]; -1 is the server, -2 the evaluator."""
    diagnosis: dict[str, Any] | None
    """Of the partition, as `farflung inspect --json`; None where there is one part or it is not known."""
    manifest: dict[str, Any]

    @classmethod
    def of(cls, run: Run, label: str | None = None) -> RunRecord:
        """The record of a run that has just ended."""
        from farflung.partition.diagnosis import diagnose
        from farflung.run.progress import as_json

        diagnosis = diagnose(run.partition).as_dict() if run.partition.num_parts > 1 else None
        history = [as_json(record) for record in run.history]
        time = run.ledger, run.timeline
        return cls._made(label, run.config.dump(), run.metrics, history, *time, diagnosis, run.manifest)

    @classmethod
    def open(cls, path: str | Path) -> RunRecord:
        """The record of a run folder. Raises InputError where there is none, or the run has not ended."""
        folder = RunFolder.open(path)
        metrics, history = folder.metrics(), read_history(folder.path / HISTORY)
        time = Ledger.load(folder.path / LEDGER), Timeline.load(folder.path / TIMELINE)
        return cls._made(None, folder.config().dump(), metrics, history, *time, None, folder.manifest())

    @classmethod
    def _made(
        cls,
        label: str | None,
        config: dict[str, Any],
        metrics: dict[str, Any],
        history: list[dict[str, Any]],
        ledger: Ledger,
        timeline: Timeline,
        diagnosis: dict[str, Any] | None,
        manifest: dict[str, Any],
    ) -> RunRecord:
        by_phase = {
            phase: {kind: sent for kind in ledger.by_kind() if (sent := ledger.total(kind, phase))}
            for phase in ledger.by_phase()
        }
        return cls(
            label=label or str(config["method"]),
            seed=int(config["seed"]),
            config=config,
            metrics=metrics,
            history=history,
            training_bytes=training_bytes(ledger, history),
            seconds=_seconds(str(config["link"]), history, ledger, timeline),
            by_kind=ledger.by_kind(),
            by_phase=by_phase,
            pairs=[[sender, receiver, sent] for (sender, receiver), sent in ledger.matrix().items()],
            diagnosis=diagnosis,
            manifest=manifest,
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON values, with the format version."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunRecord:
        """What `as_dict` gave. Raises InputError."""
        version, names = content.get("format_version"), {spec.name for spec in fields(cls)}
        if not isinstance(version, int) or version > FORMAT_VERSION or not names <= content.keys():
            raise InputError(f"a run's record has format version {version}, not {FORMAT_VERSION}: upgrade farflung")
        return cls(**{name: content[name] for name in names})


def _seconds(
    own: str, history: Sequence[Mapping[str, Any]], ledger: Ledger, timeline: Timeline
) -> dict[str, list[float]]:
    """The clock at the end of each record of the history, on every named link and on the run's own."""
    rounds = [int(record["round"]) for record in history]
    links = {**PROFILES, own: parse_profile(own)}
    return {
        name: timeline.at_ends(timeline.replay(ledger, link), rounds) for name, link in links.items() if name != "none"
    }


def training_bytes(ledger: Ledger, history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Training bytes from the start of the run to the end of each record of its history."""
    table = ledger.table()
    if not len(ledger):
        return [0] * len(history)
    trains = np.isin(table["kind"], TRAINING_KINDS)
    sums = np.cumsum(np.where(trains, table["bytes"], 0))
    last = {(str(p), int(r)): place for place, (p, r) in enumerate(zip(table["phase"], table["round"], strict=True))}
    known = [int(sums[last[key]]) if (key := (r["phase"], r["round"])) in last else 0 for r in history]
    return [int(value) for value in np.maximum.accumulate(np.array(known, dtype=np.int64))] if known else []
