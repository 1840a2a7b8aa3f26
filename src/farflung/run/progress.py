"""Journals: what becomes of the rounds that a method reports (their two methods: see `methods.base.Journal`)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from farflung.errors import FarflungError
from farflung.files import disk_errors
from farflung.methods.base import Journal, Keeper, Round
from farflung.report.units import seconds as in_seconds
from farflung.report.units import size
from farflung.run.config import RunConfig
from farflung.run.folder import HISTORY, RunFolder
from farflung.team import Ledger

CHECKPOINT_EVERY = 60.0
"""Seconds between two checkpoints of a run with a folder."""


class Journals:
    """Passes everything on to several journals, in their order."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = tuple(journals)

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        for journal in self._journals:
            journal.expect(phase, round, rounds, seconds)

    def round(self, record: Round) -> None:
        for journal in self._journals:
            journal.round(record)


class MemoryJournal:
    """Keeps all rounds in a list."""

    def __init__(self) -> None:
        self.history: list[Round] = []

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        """Nothing."""

    def round(self, record: Round) -> None:
        self.history.append(record)


class FolderJournal:
    """Writes history.jsonl, a line per round as it ends, and every minute a checkpoint."""

    def __init__(self, folder: RunFolder, keeper: Keeper, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._keeper = keeper
        self._now = now
        self._saved = now()
        self._stream: IO[str] = (folder.path / HISTORY).open("w", encoding="utf-8")

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        """Nothing."""

    def round(self, record: Round) -> None:
        try:
            self._stream.write(json.dumps(as_json(record), allow_nan=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise FarflungError(
                f"{self._folder.path / HISTORY} cannot be written ({error.strerror}): make room; "
                "the last checkpoint is whole"
            ) from error
        if self._now() - self._saved >= CHECKPOINT_EVERY:
            self._folder.write_checkpoint(self._keeper)
            self._saved = self._now()

    def __enter__(self) -> FolderJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Closing writes what is left: on a full disk that must not hide what ended the run.
        with disk_errors(self._folder.path / HISTORY) if kind is None else suppress(OSError):
            self._stream.close()


def as_json(record: Round) -> dict[str, Any]:
    """A round as history.jsonl holds it; trainers are keys, so text. Non-finite numbers become null."""
    content = asdict(record)
    content["loss"] = _finite(record.loss)
    content["val"] = None if record.val is None else {name: _finite(value) for name, value in record.val.items()}
    if not record.stopped:
        del content["stopped"]
    for name in ("steps", "absent"):
        content[name] = {str(trainer): value for trainer, value in content[name].items()}
    return content


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


@dataclass
class _Now:
    """What the screen shows."""

    phase: str = ""
    round: int = 0
    rounds: int | None = None
    record: Round | None = None
    best: float | None = None
    began: float = 0.0
    takes: float | None = None
    """Seconds that the round going on will take: as the last one took, or as told before the first."""


class ScreenJournal:
    """Shows the run on a terminal, live; elsewhere as plain lines, twenty or so in all.

    `bytes_so_far` and `metric` say what to show beside the round. Use as a context manager.
    """

    def __init__(
        self,
        method: str,
        metric: str,
        bytes_so_far: Callable[[], int],
        console: Console | None = None,
        *,
        plain: bool = False,
        transient: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._method = method
        self._metric = metric
        self._bytes = bytes_so_far
        self._console = console or Console(file=sys.stderr)
        self._clock = now
        self._now = _Now(began=now())
        self._printed = float("-inf")
        self._absent: Mapping[int, str] = {}
        lively = self._console.is_terminal and not self._console.is_dumb_terminal and not plain
        self._live = Live(self, console=self._console, refresh_per_second=4, transient=transient) if lively else None

    def __enter__(self) -> ScreenJournal:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        now = self._now
        changed = phase != now.phase
        now.phase, now.round, now.rounds = phase, round, rounds
        if changed:
            now.takes = None
            self._printed = float("-inf")
        now.takes = seconds if now.takes is None else now.takes
        now.began = self._clock()

    def round(self, record: Round) -> None:
        now = self._now
        now.record = record
        now.takes = self._clock() - now.began
        now.began = self._clock()
        value = (record.val or {}).get(self._metric)
        if record.best:
            now.best = value
        if self._live is None and self._due(record):
            self._console.print(self.line(record), highlight=False, soft_wrap=True)

    def _due(self, record: Round) -> bool:
        """Whether a plain line is due: a new phase, someone gone or back, a twentieth done, the end, a long wait."""
        rounds = self._now.rounds
        news = dict(record.absent) != dict(self._absent)
        self._absent = dict(record.absent)
        waited = self._clock() - self._printed
        if rounds is None:
            due = waited >= 2.0
        else:
            due = (record.round + 1) % max(1, rounds // 20) == 0 or record.round + 1 == rounds or waited >= 10.0
        if due or news or self._printed == float("-inf"):
            self._printed = self._clock()
            return True
        return False

    def line(self, record: Round) -> str:
        """A round as one line of text."""
        parts = [f"{self._method} {record.phase} {self._of(record.round)}"]
        if record.loss is not None:
            parts.append(f"loss {record.loss:.4f}")
        value = (record.val or {}).get(self._metric)
        if value is not None:
            parts.append(f"val {self._metric} {value:.4f}{'*' if record.best else ''}")
        if record.stopped:
            parts.append("patience is over")
        parts.append(f"sent {size(self._bytes())}")
        parts.append(f"clock {in_seconds(record.seconds)}")
        parts.extend(f"trainer {trainer} absent: {why}" for trainer, why in record.absent.items())
        return "  ".join(parts)

    def _of(self, round: int) -> str:
        return f"round {round + 1}" + (f"/{self._now.rounds}" if self._now.rounds else "")

    def __rich__(self) -> Text:
        """The live display; drawn anew four times a second, so that the time to the next aggregation runs."""
        now, record = self._now, self._now.record
        above = [self._method, f"{now.phase or 'setting up'} {self._of(now.round)}"]
        below = []
        if record is not None:
            if record.loss is not None:
                above.append(f"loss {record.loss:.4f}")
            value = (record.val or {}).get(self._metric)
            if value is not None:
                best = "" if now.best is None else f" (best {now.best:.4f})"
                above.append(f"val {self._metric} {value:.4f}{best}")
            below.append(f"clock {in_seconds(record.seconds)}")
        below.append(f"sent {size(self._bytes())}")
        if now.takes is not None:
            left = max(0.0, now.takes - (self._clock() - now.began))
            below.append(f"next in {in_seconds(left)}")
        if record is not None and record.absent:
            below.append("absent: " + ", ".join(f"{trainer} ({why})" for trainer, why in record.absent.items()))
        return Text("  ".join(above) + "\n  " + "  ".join(below), no_wrap=True, overflow="ellipsis")


def screen_journal(*, plain: bool = False, transient: bool = False) -> Callable[[RunConfig, Ledger], ScreenJournal]:
    """A maker of screen journals, for `execute`. `transient`: the live display goes away when the run ends."""

    def make(config: RunConfig, ledger: Ledger) -> ScreenJournal:
        return ScreenJournal(config.method, config.metric or "", ledger.total, plain=plain, transient=transient)

    return make
