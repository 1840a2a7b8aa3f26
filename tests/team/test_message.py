"""Messages: what they weigh, and what they may hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from farflung.errors import AllTrainersLostError, FarflungError
from farflung.team import KINDS, TRAINING_KINDS, Message, Reply, Status, absent, require_some


def test_the_envelope_is_the_length_of_its_json() -> None:
    scalars = {"layer": 1, "to": [0, 2], "loss": None, "finite": True, "share": 0.25, "name": "ä"}
    message = Message("boundary", scalars)
    assert message.bytes_by_kind() == {"control": len(json.dumps(["boundary", scalars]).encode())}
    assert Message("x").bytes_by_kind() == {"control": len('["x", {}]')}


def test_arrays_count_by_the_kind_in_front_of_their_name() -> None:
    message = Message(
        "rows",
        {},
        {
            "weights": np.zeros(3, np.float32),
            "features/0/data": np.zeros(5, np.float64),
            "features/0/indices": np.zeros(5, np.int32),
            "features/11/data": np.zeros((2, 2), np.float16),
            "metrics/nodes": np.zeros(1, np.int64),
            "embeddings": np.zeros((0, 4), np.float32),
        },
    )
    assert message.bytes_by_kind() == {
        "control": len('["rows", {}]'),
        "weights": 12,
        "features": 40 + 20 + 8,
        "metrics": 8,
        "embeddings": 0,
    }


def test_the_bytes_are_those_of_the_view_not_of_what_it_looks_at() -> None:
    whole = np.zeros((100, 8), np.float32)
    assert Message("m", {}, {"embeddings": whole[::2, :3]}).bytes_by_kind()["embeddings"] == 50 * 3 * 4


@pytest.mark.parametrize("name", ["weight", "Weights", "", "/weights", "embeddings2/1"])
def test_an_array_of_no_kind_is_refused(name: str) -> None:
    with pytest.raises(FarflungError, match=r"names no ledger kind.*weights"):
        Message("m", {}, {name: np.zeros(1)}).bytes_by_kind()


def test_scalars_are_json() -> None:
    with pytest.raises(TypeError):
        Message("m", {"array": np.zeros(2)}).bytes_by_kind()


def test_training_kinds_are_kinds() -> None:
    assert set(TRAINING_KINDS) < set(KINDS)
    assert not {"setup", "handshake", "evaluation", "metrics", "control"} & set(TRAINING_KINDS)


def test_a_reply_without_a_message_is_empty() -> None:
    late = Reply(3, Status.LATE, 2.0, None, "slow")
    assert not late.done and late.arrays == {} and late.scalars == {}
    done = Reply(3, Status.DONE, 2.0, Message("m", {"a": 1}, {"weights": np.ones(1)}))
    assert done.done and done.scalars == {"a": 1} and list(done.arrays) == ["weights"]


def test_absent_names_who_and_why() -> None:
    replies = [Reply(0, Status.DONE), Reply(1, Status.LATE, 2.0, None, "slow"), Reply(2, Status.DEAD)]
    assert absent(replies) == {1: "late: slow", 2: "dead"}
    assert absent([]) == {}


def test_some_are_enough() -> None:
    replies = [Reply(0, Status.DONE), Reply(1, Status.DEAD, reason="gone")]
    assert require_some(replies, "train") == replies[:1]
    assert require_some([], "train") == []
    with pytest.raises(AllTrainersLostError, match=r"'train' \(trainer 1 dead: gone\): .*again"):
        require_some(replies[1:], "train")
