"""The ledger: every byte that left a trainer or the server, in columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from farflung.errors import FarflungError, InputError
from farflung.files import write_atomic
from farflung.team.message import EVALUATOR, KINDS, TRAINING_KINDS

_DTYPES: dict[str, type[np.signedinteger]] = {
    "round": np.int32,
    "phase": np.int32,
    "kind": np.int8,
    "sender": np.int32,
    "receiver": np.int32,
    "bytes": np.int64,
}
_FORMAT = b"farflung.ledger"
_VERSION = b"1"


class Ledger:
    """Bytes by round, phase, kind, sender and receiver, as sent and counted once, at the sender.

    Endpoints are trainers 0..M-1, `SERVER` and `EVALUATOR`. A row is never changed once it is added; all sums
    are exact (int64). `len` is the number of rows; ledgers are equal if they hold equal rows in equal order.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self._size = 0
        self._columns = {name: np.empty(0, dtype) for name, dtype in _DTYPES.items()}
        self._phases: dict[str, int] = {}

    def add(
        self, round: int, phase: str, kind: str, senders: ArrayLike, receivers: ArrayLike, bytes: ArrayLike
    ) -> None:
        """Enter what was sent in `round` of `phase` for `kind`, one row per element.

        `senders`, `receivers`, `bytes`: integers or integer arrays [n], broadcast against each other.
        Raises FarflungError, and enters nothing, for an unknown kind, negative bytes or no endpoint.
        """
        where = f"ledger entry of kind '{kind}' in round {round} of phase '{phase}'"
        columns = {
            "round": _integers(round, "round", where),
            "kind": np.asarray(_code(kind)),
            "sender": _integers(senders, "sender", where),
            "receiver": _integers(receivers, "receiver", where),
            "bytes": _integers(bytes, "bytes", where),
        }
        try:
            shape = np.broadcast_shapes(*(column.shape for column in columns.values()))
        except ValueError:
            shapes = ", ".join(str(columns[name].shape) for name in ("sender", "receiver", "bytes"))
            raise FarflungError(
                f"{where}: senders, receivers and bytes have shapes {shapes}: make them broadcast to one"
            ) from None
        if len(shape) > 1:
            raise FarflungError(f"{where} has {len(shape)} dimensions: give scalars or flat arrays")
        columns["phase"] = np.asarray(self._phases.setdefault(phase, len(self._phases)))
        end = self._size + (shape[0] if shape else 1)
        self._reserve(end)
        for name, column in columns.items():
            self._columns[name][self._size : end] = column
        self._size = end

    def __len__(self) -> int:
        return self._size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        if len(self) != len(other):
            return False
        codes = np.array([self._phases.get(phase, -1) for phase in other._phases], dtype=np.int64)
        return all(
            np.array_equal(self._column(name), codes[other._column(name)] if name == "phase" else other._column(name))
            for name in _DTYPES
        )

    def total(self, kind: str | None = None, phase: str | None = None) -> int:
        """Bytes in all, or those of one kind, of one phase, or both.

        Raises FarflungError for an unknown kind; a phase that does not occur has 0 bytes.
        """
        chosen = np.ones(len(self), dtype=bool)
        if kind is not None:
            chosen &= self._column("kind") == _code(kind)
        if phase is not None:
            chosen &= self._column("phase") == self._phases.get(phase, -1)
        return int(self._column("bytes")[chosen].sum())

    def training(self) -> int:
        """Bytes of the kinds that training itself needs: those with closed formulas."""
        return sum(size for kind, size in self.by_kind().items() if kind in TRAINING_KINDS)

    def by_kind(self) -> dict[str, int]:
        """Bytes of each kind that occurs, in the order of `KINDS`."""
        return {KINDS[code]: size for code, size in self._sums("kind").items()}

    def by_phase(self) -> dict[str, int]:
        """Bytes of each phase, in the order in which phases first occur."""
        sums = self._sums("phase")
        return {phase: sums[code] for phase, code in self._phases.items() if code in sums}

    def rounds(self) -> dict[int, int]:
        """Bytes of each round that occurs, all phases together, ascending by round."""
        return self._sums("round")

    def sent_by(self) -> dict[int, int]:
        """Bytes that each endpoint sent; endpoints ascending, those without a row left out."""
        return self._sums("sender")

    def received_by(self) -> dict[int, int]:
        """Bytes that each endpoint received; endpoints ascending, those without a row left out."""
        return self._sums("receiver")

    def matrix(self) -> dict[tuple[int, int], int]:
        """Bytes of each ordered pair (sender, receiver) that occurs, ascending."""
        pairs = (self._column("sender").astype(np.int64) << 32) + self._column("receiver") - EVALUATOR
        sums = self._sums_by(pairs)
        return {(pair >> 32, (pair & 0xFFFFFFFF) + EVALUATOR): size for pair, size in sums.items()}

    def table(self) -> dict[str, np.ndarray]:
        """All rows as read-only columns: round, sender, receiver int32; bytes int64; phase, kind str."""
        table = {name: self._column(name) for name in _DTYPES}
        table["phase"] = np.array(list(self._phases) or [""])[table["phase"]]
        table["kind"] = np.array(KINDS)[table["kind"]]
        for column in table.values():
            column.flags.writeable = False
        return table

    def save(self, path: str | Path) -> None:
        """Write a Parquet file, whole or not at all: the columns of `table`, strings dictionary-encoded.

        Raises FarflungError where the disk refuses.
        """
        arrays = {name: pa.array(self._column(name)) for name in _DTYPES}
        for name, words in (("phase", list(self._phases)), ("kind", list(KINDS))):
            indices = pa.array(self._column(name))
            arrays[name] = pa.DictionaryArray.from_arrays(indices, pa.array(words, type=pa.string()))
        table = pa.table(arrays).replace_schema_metadata({_FORMAT: _VERSION})
        write_atomic(Path(path), lambda temporary: pq.write_table(table, temporary, compression="zstd"))

    @classmethod
    def load(cls, path: str | Path) -> Ledger:
        """Read what `save` wrote; rows can be added to it. Raises InputError if the file is no ledger."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"there is no ledger at '{path}': give the ledger.parquet of a run folder")
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"'{path}' cannot be read as Parquet: give an intact ledger.parquet") from error
        version = (table.schema.metadata or {}).get(_FORMAT)
        if version != _VERSION or table.column_names != list(_DTYPES):
            raise InputError(f"'{path}' is no ledger of format {_VERSION.decode()}: give one that was saved here")
        try:
            return cls._from_table(table)
        except (FarflungError, pa.ArrowException) as error:
            raise InputError(f"ledger '{path}' is damaged ({error}): give an intact one") from error

    @classmethod
    def _from_table(cls, table: pa.Table) -> Ledger:
        ledger = cls()
        ledger._reserve(table.num_rows)
        ledger._size = table.num_rows
        for name in _DTYPES:
            if table[name].null_count:
                raise FarflungError(f"column {name} has empty fields")
            if name in ("phase", "kind"):
                encoded = table[name].cast(pa.string()).combine_chunks().dictionary_encode()
                words = encoded.dictionary.to_pylist()
                if name == "phase":
                    ledger._phases = {word: code for code, word in enumerate(words)}
                codes = [_code(word) if name == "kind" else ledger._phases[word] for word in words]
                ledger._columns[name][:] = np.array(codes, dtype=np.int64)[encoded.indices.to_numpy()]
            else:
                ledger._columns[name][:] = _integers(table[name].to_numpy(), name, "its table")
        return ledger

    def _column(self, name: str) -> np.ndarray:
        return self._columns[name][: self._size]

    def _reserve(self, size: int) -> None:
        """Make room for `size` rows, at least doubling: adding row by row stays linear."""
        capacity = len(self._columns["bytes"])
        if size > capacity:
            for name, column in self._columns.items():
                grown = np.empty(max(size, 2 * capacity), dtype=column.dtype)
                grown[: self._size] = column[: self._size]
                self._columns[name] = grown

    def _sums(self, name: str) -> dict[int, int]:
        return self._sums_by(self._column(name))

    def _sums_by(self, keys: np.ndarray) -> dict[int, int]:
        """Bytes of each distinct key, ascending. `keys`: integers, one per row."""
        distinct, place = np.unique(keys, return_inverse=True)
        sums = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(sums, place, self._column("bytes"))
        return dict(zip(distinct.tolist(), sums.tolist(), strict=True))


def _code(kind: str) -> int:
    if kind not in KINDS:
        raise FarflungError(f"'{kind}' is no kind of bytes: use one of {', '.join(KINDS)}")
    return KINDS.index(kind)


def _integers(values: ArrayLike, name: str, where: str) -> np.ndarray:
    """`values` of column `name` as integers, all of them in the column's range."""
    array = np.asarray(values)
    limits = np.iinfo(_DTYPES[name])
    low = {"bytes": 0, "sender": EVALUATOR, "receiver": EVALUATOR}.get(name, limits.min)
    if array.dtype.kind not in "iu" and array.size:
        raise FarflungError(f"{where}: {name} has dtype {array.dtype}: give integers")
    if array.size and (int(array.min()) < low or int(array.max()) > limits.max):
        raise FarflungError(
            f"{where}: {name} reaches from {array.min()} to {array.max()}: it must lie in {low}..{limits.max}"
        )
    return array
