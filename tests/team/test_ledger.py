from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import FarflungError, InputError
from farflung.team.ledger import Ledger
from farflung.team.message import EVALUATOR, KINDS, SERVER, TRAINING_KINDS

ROWS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["train", "layer0", "layer1"]),
        st.sampled_from(KINDS),
        st.integers(EVALUATOR, 4) | st.just(2**31 - 1),
        st.integers(EVALUATOR, 4) | st.just(2**31 - 1),
        st.integers(0, 2**40),
    ),
    max_size=25,
)


def ledger_of(rows) -> Ledger:
    ledger = Ledger()
    for row in rows:
        ledger.add(*row)
    return ledger


def sums(rows, key) -> dict:
    found: Counter = Counter()
    for row in rows:
        found[key(row)] += row[5]
    return dict(found)


@given(ROWS)
def test_every_sum_equals_a_naive_loop(rows):
    ledger = ledger_of(rows)
    assert len(ledger) == len(rows)
    assert ledger.total() == sum(row[5] for row in rows)
    assert ledger.training() == sum(row[5] for row in rows if row[2] in TRAINING_KINDS)
    assert ledger.rounds() == sums(rows, lambda row: row[0])
    assert ledger.by_phase() == sums(rows, lambda row: row[1])
    assert ledger.by_kind() == sums(rows, lambda row: row[2])
    assert ledger.sent_by() == sums(rows, lambda row: row[3])
    assert ledger.received_by() == sums(rows, lambda row: row[4])
    assert ledger.matrix() == sums(rows, lambda row: (row[3], row[4]))
    for kind in KINDS:
        assert ledger.total(kind) == sum(row[5] for row in rows if row[2] == kind)
        assert ledger.total(kind, "layer0") == sum(row[5] for row in rows if row[1:3] == ("layer0", kind))
    assert ledger.total(phase="layer1") == sum(row[5] for row in rows if row[1] == "layer1")


@given(ROWS)
def test_the_table_holds_the_rows_in_order(rows):
    table = ledger_of(rows).table()
    assert list(table) == ["round", "phase", "kind", "sender", "receiver", "bytes"]
    assert list(zip(*(column.tolist() for column in table.values()), strict=True)) == rows
    assert table["bytes"].dtype == np.int64 and table["sender"].dtype == np.int32


def test_orders_of_the_sums_are_stable():
    ledger = ledger_of([(1, "b", "weights", 1, 0, 1), (0, "a", "features", 0, 1, 2), (0, "b", "setup", SERVER, 0, 3)])
    assert list(ledger.by_phase()) == ["b", "a"]
    assert list(ledger.by_kind()) == ["setup", "features", "weights"]
    assert list(ledger.rounds()) == [0, 1]
    assert list(ledger.matrix()) == [(SERVER, 0), (0, 1), (1, 0)]


def test_arrays_and_scalars_broadcast():
    ledger = Ledger()
    ledger.add(3, "train", "weights", SERVER, np.arange(4), 100)
    ledger.add(3, "train", "gradients", np.arange(4), SERVER, np.array([1, 2, 3, 4]))
    ledger.add(3, "train", "metrics", [], SERVER, [])
    assert len(ledger) == 8
    assert ledger.sent_by() == {SERVER: 400, 0: 1, 1: 2, 2: 3, 3: 4}
    assert ledger.received_by() == {SERVER: 10, 0: 100, 1: 100, 2: 100, 3: 100}


def test_a_million_senders_are_one_call():
    ledger = Ledger()
    ledger.add(0, "train", "gradients", np.arange(1_000_000, dtype=np.int32), SERVER, 2**33)
    assert len(ledger) == 1_000_000
    assert ledger.total() == 1_000_000 * 2**33  # past 2^53: sums are exact integers
    ledger.add(0, "train", "gradients", 0, SERVER, 1)
    assert ledger.total("gradients") == 1_000_000 * 2**33 + 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "weight"}, "use one of setup, handshake"),
        ({"bytes": -1}, "bytes reaches from -1"),
        ({"bytes": np.array([5, -7])}, "bytes reaches from -7 to 5"),
        ({"bytes": 1.0}, "give integers"),
        ({"bytes": True}, "give integers"),
        ({"bytes": np.array([2**63], dtype=np.uint64)}, "bytes reaches"),
        ({"senders": -3}, "sender reaches"),
        ({"receivers": 2**31}, "receiver reaches"),
        ({"round": 2**31}, "round reaches"),
        ({"senders": [0, 1], "bytes": [1, 2, 3]}, "make them broadcast"),
        ({"senders": [[0], [1]]}, "flat arrays"),
    ],
)
def test_wrong_entries_leave_the_ledger_as_it_was(entry, message):
    ledger = ledger_of([(0, "train", "weights", 0, SERVER, 5)])
    fields = {
        "round": 0,
        "phase": "new",
        "kind": "weights",
        "senders": 0,
        "receivers": SERVER,
        "bytes": 1,
        **entry,
    }
    with pytest.raises(FarflungError, match=message) as caught:
        ledger.add(**fields)
    assert "\n" not in str(caught.value)
    assert ledger == ledger_of([(0, "train", "weights", 0, SERVER, 5)])
    assert ledger.by_phase() == {"train": 5}


def test_a_misspelt_kind_is_no_zero():
    with pytest.raises(FarflungError, match="'weight' is no kind"):
        Ledger().total("weight")


def test_table_columns_are_read_only_and_do_not_follow():
    ledger = ledger_of([(0, "train", "weights", 0, SERVER, 5)])
    table = ledger.table()
    with pytest.raises(ValueError, match="read-only"):
        table["bytes"][0] = 1
    ledger.add(1, "train", "weights", 0, SERVER, 6)
    assert table["bytes"].tolist() == [5]


@given(ROWS, ROWS)
def test_equality_is_equality_of_rows(one, other):
    assert (ledger_of(one) == ledger_of(other)) == (one == other)
    assert ledger_of(one) == ledger_of(one)


def test_equality_sees_through_the_codes_of_phases():
    one = ledger_of([(0, "a", "weights", 0, 1, 1), (0, "b", "weights", 0, 1, 1)])
    swapped = ledger_of([(0, "b", "weights", 0, 1, 1), (0, "a", "weights", 0, 1, 1)])
    assert one != swapped
    late = Ledger()
    late.add(0, "b", "weights", [], [], [])  # names a phase first, enters nothing
    for row in [(0, "a", "weights", 0, 1, 1), (0, "b", "weights", 0, 1, 1)]:
        late.add(*row)
    assert late == one
    assert one != "ledger"


@given(ROWS)
def test_parquet_round_trip_and_adding_on(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("ledger") / "ledger.parquet"
    ledger = ledger_of(rows)
    ledger.save(path)
    loaded = Ledger.load(path)
    assert loaded == ledger
    assert [p.name for p in path.parent.iterdir()] == ["ledger.parquet"]
    for each in (ledger, loaded):
        each.add(9, "layer2", "metrics", [0, 1], SERVER, 8)
    assert loaded == ledger
    assert loaded.by_phase() == ledger.by_phase()


def test_parquet_strings_are_dictionary_encoded_and_read_by_anyone(tmp_path):
    ledger_of([(0, "train", "weights", 0, SERVER, 5)]).save(tmp_path / "l.parquet")
    table = pq.read_table(tmp_path / "l.parquet")
    assert pa.types.is_dictionary(table.schema.field("kind").type)
    assert table.to_pylist() == [
        {"round": 0, "phase": "train", "kind": "weights", "sender": 0, "receiver": -1, "bytes": 5}
    ]


def test_what_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no ledger"):
        Ledger.load(tmp_path / "missing.parquet")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing of use")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        Ledger.load(broken)
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    with pytest.raises(InputError, match="no ledger of format"):
        Ledger.load(other)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("kind", pa.array(["weight"]), "no kind of bytes"),
        ("bytes", pa.array([-1]), "bytes reaches"),
        ("bytes", pa.array([None], type=pa.int64()), "bytes has empty fields"),
        ("sender", pa.array([0.5]), "give integers"),
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path, column, values, message):
    path = tmp_path / "ledger.parquet"
    ledger_of([(0, "train", "weights", 0, SERVER, 5)]).save(path)
    table = pq.read_table(path)
    metadata = table.schema.metadata
    table = table.set_column(table.column_names.index(column), column, values)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(InputError, match=message):
        Ledger.load(path)
