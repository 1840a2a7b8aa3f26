"""LLCG: the server's correction on the whole graph, what it sends, and what it is without correction."""

from __future__ import annotations

import numpy as np
import pytest
from rig import blocks, rig

from farflung.errors import FarflungError
from farflung.partition import setup_bytes
from farflung.team import SERVER, Message


@pytest.mark.parametrize("sample", [None, {"fanouts": "4,4", "batch": 16}])
@pytest.mark.parametrize("links", [None, {"eval_negatives": 10}])
@pytest.mark.parametrize("encoder", ["gcn", "gat"])
def test_without_correction_it_is_psgd_pa_to_the_bit(encoder, sample, links) -> None:  # type: ignore[no-untyped-def]
    options = {
        "encoder": encoder,
        "by": "mincut",
        "dropout": 0.3,
        "steps": 12,
        "interval": 4,
        "sample": sample,
        "links": links,
    }
    plain = rig(blocks(), "tma", **options).train()
    corrected = rig(blocks(), "llcg", correction_steps=0, **options).train()
    assert np.array_equal(plain.vector(), corrected.vector())
    assert [r.val for r in plain.history] == [r.val for r in corrected.history]
    assert plain.ledger.by_kind() == corrected.ledger.by_kind()
    changed = rig(blocks(), "llcg", correction_steps=2, **options).train()
    assert np.isfinite(changed.vector()).all() and not np.array_equal(changed.vector(), plain.vector())


def test_a_correction_is_steps_of_one_optimiser_on_the_whole_graph() -> None:
    """With trainers that learn nothing (one step each, undone by an average of equals), the server alone trains."""
    graph = blocks()
    one = rig(graph, "llcg", parts=1, steps=1, interval=1, correction_steps=5, lr=0.01, keep="last").train()
    before = rig(graph, "tma", parts=1, steps=1, interval=1, lr=0.01, keep="last").train()
    server = rig(graph, "tma", parts=1, steps=1, interval=1, lr=0.01).team
    answer = server.at_server(Message("train", {"interval": "5steps", "round": 0}, {"weights": before.vector()}))
    assert answer.scalars["steps"] == 5
    assert np.array_equal(one.vector(), answer.arrays["weights"])
    assert not np.array_equal(one.vector(), before.vector())


def test_the_server_keeps_its_optimiser_and_its_time_counts() -> None:
    two = rig(blocks(), "llcg", steps=8, interval=4, correction_steps=2).train()
    plain = rig(blocks(), "tma", steps=8, interval=4).train()
    assert two.team.now() == plain.team.now() + 2 * 2 * 0.125
    own = two.team._own
    assert own is not None
    assert {int(state["step"]) for state in own.optimiser.state.values()} == {4}


def test_every_part_goes_to_the_server_once() -> None:
    two = rig(blocks(), "llcg", steps=8, interval=4).train()
    rows = two.ledger.table()
    up = (rows["kind"] == "setup") & (rows["receiver"] == SERVER)
    assert rows["sender"][up].tolist() == [0, 1, 2]
    assert rows["bytes"][up].tolist() == [setup_bytes(shard) for shard in two.partition.shards]
    plain = rig(blocks(), "tma", steps=8, interval=4).train()
    assert two.ledger.training() == plain.ledger.training()


def test_a_correction_that_diverges_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = rig(blocks(), "llcg", steps=8, interval=4)
    plain = rig(blocks(), "tma", steps=8, interval=4).train()

    def at_server(message: Message) -> Message:
        return Message("train", {"finite": False}, {"weights": np.full_like(message.arrays["weights"], np.nan)})

    monkeypatch.setattr(broken.team, "at_server", at_server)
    broken.train()
    assert np.array_equal(broken.vector(), plain.vector())


def test_a_server_without_the_graph_says_so() -> None:
    team = rig(blocks(), "tma").team
    team._whole = None
    with pytest.raises(FarflungError, match="holds no graph"):
        team.at_server(Message("train", {"interval": "1steps", "round": 0}))


@pytest.mark.parametrize("faults", ["kill:1@0", "kill:1@1", "kill:1@1-2", "nan:1@1", "delay:1@1=inf", "slow:1@1=100x"])
def test_failures_are_survived_and_named(faults: str) -> None:
    one = rig(blocks(), "llcg", steps=16, interval=4, deadline=5.0, faults=faults).train()
    assert np.isfinite(one.vector()).all()
    assert any(1 in record.absent for record in one.history)
    assert one.keeper.best_score is not None
    if faults in ("kill:1@1-2", "nan:1@1"):
        assert not one.history[-1].absent
        assert all(np.array_equal(m.arrays["weights"], one.vector()) for m in one.reveal()), "back with old weights"
