"""What a team's clock is made of: work, and messages that set out together. Under any link it can be told again.

The clock of a run is the sum of its work (the slowest trainer of each call) and of the time that its messages take on
the link profile. Both are kept apart here, so that the same run can be timed on another link, without training again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from farflung.errors import InputError
from farflung.files import write_atomic
from farflung.team.ledger import Ledger
from farflung.team.link import LinkProfile

_FORMAT = b"farflung.timeline"
_VERSION = b"1"
_COLUMNS = ("round", "work", "begin", "end", "late")


class Timeline:
    """Work and departures in the order in which the clock moved on.

    An event is work of some seconds, or the departure of the ledger's rows `begin` to `end`, which travel together.
    """

    def __init__(self) -> None:
        self._round: list[int] = []
        self._work: list[float] = []
        self._begin: list[int] = []
        self._end: list[int] = []
        self._late: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._round)

    def work(self, round: int, seconds: float) -> None:
        """Everybody waited `seconds` for the slowest."""
        self._add(round, seconds, 0, 0, [])

    def depart(self, round: int, begin: int, end: int, late: Sequence[int] = ()) -> None:
        """The ledger's rows `begin` to `end` set out together; nobody waits for the rows in `late`."""
        self._add(round, 0.0, begin, end, list(late))

    def _add(self, round: int, work: float, begin: int, end: int, late: list[int]) -> None:
        self._round.append(round)
        self._work.append(work)
        self._begin.append(begin)
        self._end.append(end)
        self._late.append(late)

    def replay(self, ledger: Ledger, link: LinkProfile) -> np.ndarray:
        """The clock after each event on `link`, seconds, float64 [events]. Raises InputError for another run's ledger.

        On the link of the run it is the run's own clock, to the bit.
        """
        if max(self._end, default=0) > len(ledger):
            raise InputError("timeline and ledger are not of one run: give the folder as it was written")
        table = ledger.table()
        sender, receiver = table["sender"], table["receiver"]
        size = table["bytes"].copy()
        for late in self._late:
            size[late] = 0
        now, clock = 0.0, np.empty(len(self), dtype=np.float64)
        for event, (work, begin, end) in enumerate(zip(self._work, self._begin, self._end, strict=True)):
            if begin == end:
                now += work
            else:
                rows = slice(begin, end)
                now += link.seconds(sender[rows], receiver[rows], size[rows])
            clock[event] = now
        return clock

    def at_ends(self, clock: np.ndarray, rounds: Sequence[int]) -> list[float]:
        """Of what `replay` gave, the seconds at the end of each of `rounds`."""
        of_event = np.maximum.accumulate(np.array(self._round, dtype=np.int64)) if len(self) else np.empty(0, np.int64)
        places = np.searchsorted(of_event, np.asarray(rounds, dtype=np.int64), side="right")
        return [float(clock[place - 1]) if place else 0.0 for place in places]

    def save(self, path: str | Path) -> None:
        """Write a Parquet file, whole or not at all. Raises FarflungError where the disk refuses."""
        arrays = {
            "round": pa.array(self._round, pa.int32()),
            "work": pa.array(self._work, pa.float64()),
            "begin": pa.array(self._begin, pa.int64()),
            "end": pa.array(self._end, pa.int64()),
            "late": pa.array(self._late, pa.list_(pa.int64())),
        }
        table = pa.table(arrays).replace_schema_metadata({_FORMAT: _VERSION})
        write_atomic(Path(path), lambda temporary: pq.write_table(table, temporary, compression="zstd"))

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what `save` wrote. Raises InputError if the file is no timeline."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"there is no timeline at '{path}': the run is of an earlier version, train it again")
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError):
            raise InputError(f"'{path}' cannot be read as Parquet: give an intact timeline.parquet") from None
        version = (table.schema.metadata or {}).get(_FORMAT)
        if version != _VERSION or tuple(table.column_names) != _COLUMNS:
            raise InputError(f"'{path}' is no timeline of format {_VERSION.decode()}: give one that was saved here")
        timeline = cls()
        for name in _COLUMNS:
            setattr(timeline, f"_{name}", table[name].to_pylist())
        return timeline
