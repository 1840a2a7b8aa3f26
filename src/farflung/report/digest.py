"""What a report says of runs: grouped into methods, summed up over seeds, thinned to what a chart can show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farflung.report.record import RunRecord
from farflung.run.replay import first_reaching, whole_scores

POINTS = 200
"""Most points of a curve."""
_NOT_OPTIONS = ("seed", "graph")
"""Options in which the runs of one method may differ: `graph` may be the same graph at another place."""


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation of what is known of `values`."""

    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.known) if self.known else None

    @property
    def sd(self) -> float | None:
        """n - 1; None for fewer than two values."""
        return statistics.stdev(self.known) if len(self.known) > 1 else None


@dataclass(frozen=True, eq=False)
class Curve:
    """The mean over a method's seeds of what its history says, at equal progress. Unknown numbers are NaN."""

    columns: Mapping[str, np.ndarray]
    """By name, each [K]: `val`, `val_sd`, `loss`, `loss_sd`, `steps`, `training_bytes`, `seconds/PROFILE`."""
    phases: tuple[str, ...]
    """Of the first seed, [K]."""
    rounds: tuple[int, ...]
    """Of the first seed, from 1, [K]."""

    def __len__(self) -> int:
        return len(self.rounds)


@dataclass(frozen=True, eq=False)
class Method:
    """Runs that differ in their seeds alone."""

    name: str
    place: int
    """Among the methods of its study: says its colour, line and marker."""
    runs: tuple[RunRecord, ...]
    metric: str

    def test(self) -> Spread:
        """Of the chosen weights."""
        return Spread(tuple((run.metrics.get("test") or {}).get(self.metric) for run in self.runs))

    def val(self) -> Spread:
        """Of the chosen weights."""
        return Spread(tuple((run.metrics.get("val") or {}).get(self.metric) for run in self.runs))

    def mean(self, of: Callable[[RunRecord], float | None]) -> float | None:
        """Mean over seeds of what is known."""
        return Spread(tuple(of(run) for run in self.runs)).mean

    def training_bytes(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(run.metrics["training_bytes"] for run in self.runs)

    def total_seconds(self, profile: str) -> float | None:
        """Until the end of training on a link profile; mean over seeds, None where it is not known."""
        return self.mean(lambda run: run.seconds[profile][-1] if run.seconds.get(profile) else None)

    def seconds_to(self, share: float, profile: str) -> float | None:
        """Until a run's validation score first is `share` of its own best; mean over seeds, None if unknown."""
        return self.mean(lambda run: _at(run.seconds.get(profile), self._reaches(run, share)))

    def bytes_to(self, share: float) -> float | None:
        """Training bytes until then."""
        return self.mean(lambda run: _at(run.training_bytes, self._reaches(run, share)))

    def _reaches(self, run: RunRecord, share: float) -> int | None:
        """Which record of the history is the first whose score is `share` of the best."""
        scores = whole_scores(run.history, self.metric)
        known = [value for value in scores if value is not None]
        return first_reaching(scores, share * max(known)) if known else None

    def curve(self, of: str, points: int = POINTS) -> Curve:
        """History at equal progress through the records in which `of` (`val` or `loss`) is known."""
        known = [
            (run, [place for place, record in enumerate(run.history) if self._value(record, of) is not None])
            for run in self.runs
        ]
        known = [(run, places) for run, places in known if places]
        count = min(points, max((len(places) for _, places in known), default=0))
        chosen = [(run, _spaced(places, count)) for run, places in known]
        columns: dict[str, np.ndarray] = {}
        for name in self._columns():
            rows = np.array([self._cells(run, name)[places] for run, places in chosen], dtype=float)
            columns[name] = _mean(rows, count)
            if name in ("val", "loss"):
                columns[f"{name}_sd"] = _sd(rows, count)
        first, places = chosen[0] if chosen else (None, [])
        records = [first.history[place] for place in places] if first else []
        return Curve(columns, tuple(r["phase"] for r in records), tuple(r["round"] + 1 for r in records))

    def _columns(self) -> list[str]:
        return ["val", "loss", "steps", "training_bytes", *(f"seconds/{name}" for name in profiles(self.runs))]

    def _value(self, record: Mapping[str, Any], of: str) -> float | None:
        return score(record, self.metric) if of == "val" else record.get("loss")

    def _cells(self, run: RunRecord, name: str) -> np.ndarray:
        """A column of a run's curve over its whole history, [records]; NaN where it is not known."""
        if name in ("val", "loss"):
            values: Sequence[float | None] = [self._value(record, name) for record in run.history]
        elif name == "steps":
            return np.cumsum([max(record["steps"].values(), default=0) for record in run.history]).astype(float)
        elif name == "training_bytes":
            values = run.training_bytes
        else:
            values = run.seconds.get(name.removeprefix("seconds/")) or []
        column = np.full(len(run.history), np.nan)
        column[: len(values)] = [_number(value) for value in values[: len(column)]]
        return column


@dataclass(frozen=True)
class Failure:
    """A cell of a comparison that ended in an error."""

    label: str
    seed: int
    error: str
    graph: str = ""


@dataclass(frozen=True, eq=False)
class Study:
    """Methods that were trained on one graph for one task: their figures compare."""

    graph: str
    metric: str
    methods: tuple[Method, ...]
    failed: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks about what was read, one sentence each."""
    key: tuple[str, ...] = field(default=(), repr=False)

    @property
    def records(self) -> list[RunRecord]:
        return [run for method in self.methods for run in method.runs]

    def profiles(self) -> list[str]:
        """Link profiles for which the time of any run is known, the named ones first."""
        return profiles(self.records)

    def most_bytes(self) -> float:
        """Training bytes of the method that sent most."""
        return max((method.training_bytes() for method in self.methods), default=0)


def studies(records: Sequence[RunRecord], failed: Sequence[Failure] = (), notes: Sequence[str] = ()) -> list[Study]:
    """Runs by graph, task and metric, and in each by method, in the order in which they come.

    A run that is there twice counts once. Failures go to the study of their graph, or else to the first one.
    """
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(_key(record), []).append(record)
    found = []
    left = list(failed)
    for place, (key, mine) in enumerate(groups.items()):
        names = {str(record.config["graph"]) for record in mine}
        own = [one for one in left if one.graph in names or (place == 0 and not _known_graph(one, records))]
        left = [one for one in left if one not in own]
        unique, twice = _once(mine)
        said = [*(notes if place == 0 else ()), *twice]
        found.append(Study(_graph_name(mine[0]), key[2], tuple(_methods(unique, key[2])), tuple(own), tuple(said), key))
    return found


def _known_graph(failure: Failure, records: Sequence[RunRecord]) -> bool:
    return any(record.config["graph"] == failure.graph for record in records)


def _key(record: RunRecord) -> tuple[str, ...]:
    graph = (record.manifest or {}).get("graph") or {}
    return (
        str(graph.get("fingerprint", record.config["graph"])),
        str(record.config.get("task", "")),
        str(record.config.get("metric") or ""),
    )


def _graph_name(record: RunRecord) -> str:
    return str(((record.manifest or {}).get("graph") or {}).get("name", record.config["graph"]))


def _once(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[str]]:
    """The records without repetitions, and a sentence for each repetition."""
    kept: dict[tuple[Any, ...], RunRecord] = {}
    said = []
    for record in records:
        key = (record.label, record.seed, _options(record))
        if key in kept:
            said.append(f"{record.label}, seed {record.seed}, was given twice with the same options: it counts once.")
        kept.setdefault(key, record)
    return list(kept.values()), said


def _methods(records: Sequence[RunRecord], metric: str) -> Iterator[Method]:
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.label, _options(record)), []).append(record)
    names = _names(list(groups))
    for place, (name, runs) in enumerate(zip(names, groups.values(), strict=True)):
        yield Method(name, place, tuple(sorted(runs, key=lambda run: run.seed)), metric)


def _names(keys: Sequence[tuple[str, tuple[tuple[str, str], ...]]]) -> list[str]:
    """Labels; of those that stand for several settings, with the options in which they differ."""
    names = []
    for label, options in keys:
        rivals = [dict(other) for name, other in keys if name == label]
        if len(rivals) == 1:
            names.append(label)
            continue
        differing = [path for path, value in options if any(rival.get(path) != value for rival in rivals)]
        own = dict(options)
        shown = ", ".join(f"{path}={own[path]}" for path in differing[:3]) + (", …" if len(differing) > 3 else "")
        name = f"{label} ({shown})"
        names.append(name if name not in names else f"{name} #{names.count(name) + 2}")
    return names


def _options(record: RunRecord) -> tuple[tuple[str, str], ...]:
    flat = flat_options(record.config)
    return tuple((path, value) for path, value in flat.items() if path not in _NOT_OPTIONS)


def flat_options(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Options by dotted path, as text; unset ones are `-`."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and not prefix:  # deeper ones are the value of one option
            flat.update(flat_options(value, f"{prefix}{name}."))
        elif isinstance(value, list):
            flat[f"{prefix}{name}"] = ",".join(str(item) for item in value)
        else:
            flat[f"{prefix}{name}"] = "-" if value is None else str(value)
    return flat


def profiles(runs: Iterable[RunRecord]) -> list[str]:
    """Link profiles for which the time of any run is known, the named ones first."""
    from farflung.team.link import PROFILES

    known = dict.fromkeys(name for run in runs for name in run.seconds)
    return [*(name for name in PROFILES if name in known), *(name for name in known if name not in PROFILES)]


def score(record: Mapping[str, Any], metric: str) -> float | None:
    """The validation score in a record of a history."""
    return (record.get("val") or {}).get(metric)


@dataclass(frozen=True)
class Absence:
    """A trainer that did not count in records of a history that follow each other."""

    seed: int
    trainer: str
    why: str
    """As of the first of them."""
    phase: str
    first: int
    last: int
    """Rounds, from 1."""


def absences(method: Method) -> list[Absence]:
    """Who was absent from when to when, in the order of the history."""
    found: list[Absence] = []
    for run in method.runs:
        open_ones: dict[str, Absence] = {}
        for record in run.history:
            going = {}
            for trainer, why in record["absent"].items():
                before, now = open_ones.get(trainer), record["round"] + 1
                same = before is not None and before.phase == record["phase"] and _kind(before.why) == _kind(why)
                if before is not None and same:
                    going[trainer] = replace(before, last=now)
                    found[found.index(before)] = going[trainer]
                else:
                    going[trainer] = Absence(run.seed, trainer, why, record["phase"], now, now)
                    found.append(going[trainer])
            open_ones = going
    return found


def _kind(why: str) -> str:
    """`dead` of `dead: killed in or before round 5`."""
    return why.partition(":")[0]


def _at(values: Sequence[float] | None, place: int | None) -> float | None:
    return None if place is None or values is None or place >= len(values) else values[place]


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _spaced(places: Sequence[int], count: int) -> list[int]:
    """`count` of the places, evenly spaced, first and last among them; repeated where there are fewer."""
    return [places[round(at * (len(places) - 1) / max(1, count - 1))] for at in range(count)]


def _mean(rows: np.ndarray, count: int) -> np.ndarray:
    """Mean [K] of what is known in rows [R, K]."""
    if not rows.size:
        return np.full(count, np.nan)
    known = np.isfinite(rows).sum(axis=0)
    return np.where(known > 0, np.nansum(rows, axis=0) / np.maximum(known, 1), np.nan)


def _sd(rows: np.ndarray, count: int) -> np.ndarray:
    """Sample deviation [K]; 0 where there is one row."""
    if len(rows) < 2:
        return np.zeros(count)
    return np.nan_to_num(np.std(rows, axis=0, ddof=1))
