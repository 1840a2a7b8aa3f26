"""A run's time on another link, from what it sent and how long it worked: nothing is trained again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.errors import InputError
from farflung.run.folder import HISTORY, LEDGER, TIMELINE, RunFolder
from farflung.team import Ledger, LinkProfile
from farflung.team.timeline import Timeline


@dataclass(frozen=True)
class Replay:
    """A run's time on one link."""

    link: str
    seconds: list[float]
    """At the end of each record of the history."""
    total: float
    """Of the whole run."""


@dataclass(frozen=True)
class Reached:
    """The first round with some validation score."""

    round: int
    seconds: float
    """On the link, at its end."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a run left of its time: its history with ledger and timeline."""

    history: Sequence[Mapping[str, Any]]
    """As history.jsonl."""
    metric: str
    ledger: Ledger
    timeline: Timeline

    @classmethod
    def open(cls, path: str | Path) -> Recorded:
        """Of a run folder. Raises InputError where there is none, or one of an earlier version."""
        folder = RunFolder.open(path)
        metric = folder.config().metric
        assert metric is not None
        return cls(
            read_history(folder.path / HISTORY),
            metric,
            Ledger.load(folder.path / LEDGER),
            Timeline.load(folder.path / TIMELINE),
        )

    def replay(self, link: LinkProfile) -> Replay:
        """The same rounds on `link`.

        Where rounds were budgets in seconds, they are the rounds that were made, not those that another link would have
        left time for.
        """
        clock = self.timeline.replay(self.ledger, link)
        ends = self.timeline.at_ends(clock, [record["round"] for record in self.history])
        return Replay(link.name, ends, float(clock[-1]) if len(clock) else 0.0)

    @property
    def best(self) -> float | None:
        """The best validation score of the run; of lazy training that of its last layer. None: nothing was scored."""
        return max((score for score in whole_scores(self.history, self.metric) if score is not None), default=None)

    def reached(self, replay: Replay, score: float) -> Reached | None:
        """When the run first got a validation score of at least `score`; None: never."""
        place = first_reaching(whole_scores(self.history, self.metric), score)
        return None if place is None else Reached(self.history[place]["round"], replay.seconds[place])

    def told(self, link: LinkProfile, score: float | None) -> dict[str, Any]:
        """Seconds of the whole run on `link`, and the round and seconds in which `score` was reached. JSON values."""
        replay = self.replay(link)
        reached = None if score is None else self.reached(replay, score)
        return {
            "link": replay.link,
            "seconds": replay.total,
            "round": None if reached is None else reached.round,
            "seconds_to_score": None if reached is None else reached.seconds,
        }


def whole_scores(history: Sequence[Mapping[str, Any]], metric: str) -> list[float | None]:
    """The validation score of each record; None where it had none, or lazy training had not come to the last layer."""
    layers = [record["phase"].removeprefix("layer") for record in history if record["phase"].startswith("layer")]
    last = max(map(int, layers), default=None)
    whole = [last is None or record["phase"] == f"layer{last}" for record in history]
    return [(r["val"] or {}).get(metric) if w else None for r, w in zip(history, whole, strict=True)]


def first_reaching(scores: Sequence[float | None], score: float) -> int | None:
    """The place of the first of `scores` that is at least `score`; None: none is."""
    return next((place for place, value in enumerate(scores) if value is not None and value >= score), None)


def read_history(path: Path) -> list[dict[str, Any]]:
    """The records of a history.jsonl. Raises InputError naming it."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise InputError(f"{path} cannot be read: it is missing or damaged, train again") from None
