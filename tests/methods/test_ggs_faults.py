"""Global sampling when trainers fail: nobody else has a lost one's nodes, so the run ends, at once and by name."""

from __future__ import annotations

import numpy as np
import pytest
from rig import Rig, blocks, rig
from test_ggs import trainers

from farflung.errors import FarflungError, PeerLostError, TrainerError
from farflung.methods.ggs_trainer import GGSTrainer
from farflung.run.config import resolve
from farflung.run.folder import RunFolder
from farflung.run.train import execute
from farflung.team import Message

ROUNDS, STEPS = 4, 3


def broken(faults: str, **options: object) -> Rig:
    options = {"encoder": "sage", "parts": 3, "steps": ROUNDS * STEPS, "interval": STEPS, "keep": "last", **options}
    return rig(blocks(), "ggs", faults=faults, **options)


@pytest.mark.parametrize("round", [0, 2])
def test_a_dead_trainer_ends_the_run_by_name(round: int) -> None:
    run = broken(f"kill:1@{round}")
    what = "the ids of its nodes" if round == 0 else "the neighbours of its nodes"
    text = rf"lost trainer 1 \(dead: killed in or before round {round}\) in round {round}, waiting for {what}"
    with pytest.raises(PeerLostError, match=text):
        run.train()
    assert len(run.history) == round == run.keeper.rounds
    assert run.team.now() == round * STEPS * 0.125
    assert issubclass(PeerLostError, FarflungError)


def test_one_that_would_come_back_ends_it_too() -> None:
    with pytest.raises(PeerLostError, match=r"trainer 0 \(dead.*\) and trainer 2 \(dead.*\) in round 1"):
        broken("kill:0@1-2, kill:2@1-3").train()


@pytest.mark.parametrize("seconds", ["100s", "inf"])
def test_a_late_trainer_ends_the_run_within_the_deadline(seconds: str) -> None:
    run = broken(f"delay:1@2={seconds}", deadline="50s")
    with pytest.raises(PeerLostError, match=r"lost trainer 1 \(late: .*deadline of 50 s\) in round 2, waiting for the"):
        run.train()
    # It is late in asking, in hearing what others ask, and in giving: a fetch has all three before it reports.
    assert run.team.now() == 2 * STEPS * 0.125 + 3 * 50
    assert len(run.history) == 2


def test_one_that_is_late_in_the_first_round_is_not_waited_for_again() -> None:
    with pytest.raises(PeerLostError, match="waiting for a sign that the partition book has come"):
        broken("delay:1@0=100s", deadline="50s").train()


def test_a_slow_trainer_is_waited_for_without_a_deadline() -> None:
    slow, fast = broken("delay:1@2=100s").train(), broken("").train()
    assert slow.vector().tobytes() == fast.vector().tobytes()
    assert slow.team.now() > 100 > fast.team.now()
    assert all(record.absent == {} for record in slow.history)


def test_an_exception_reaches_the_user_with_the_trainers_name() -> None:
    with pytest.raises(TrainerError, match=r"trainer 1 failed in round 2") as caught:
        broken("raise:1@2").train()
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_rows_that_are_no_numbers_are_refused_and_their_owner_named(encoder: str) -> None:
    """All need rows of trainer 1: nobody has a gradient in that round, and the run goes on."""
    run = broken("nan:1@2", encoder=encoder)
    kept: list[np.ndarray] = []
    run.diary.after = lambda _: kept.append(run.vector())
    run.train()
    assert np.array_equal(kept[2], kept[1]) and not np.array_equal(kept[3], kept[2])
    assert [set(record.absent) for record in run.history] == [set(), set(), {1}, set()]
    assert run.history[2].absent[1] == "refused: rows that it gave are missing or not finite"
    assert run.history[2].loss is None
    assert run.history[2].steps == {0: 0, 1: 0, 2: 0} and run.history[3].steps == {0: 3, 1: 3, 2: 3}
    assert np.isfinite(run.vector()).all()


def test_who_needs_no_rows_of_the_poisoned_one_goes_on() -> None:
    """Without neighbours only the gradient itself is poisoned: the others' mean counts."""
    run = broken("nan:1@2", encoder="mlp").train()
    assert run.history[2].absent == {1: "refused: its gradients are not finite"}
    assert run.history[2].steps == {0: 3, 1: 0, 2: 3}
    assert np.isfinite([record.loss for record in run.history]).all()
    assert np.isfinite(run.vector()).all()


def test_a_loss_that_is_not_finite_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GGSTrainer._loss

    def diverging(self, turn, round, number):  # type: ignore[no-untyped-def]
        loss = plain(self, turn, round, number)
        return loss * float("inf") if self.shard.part == 2 and turn.step == 4 else loss

    run = broken("")
    monkeypatch.setattr(GGSTrainer, "_loss", diverging)
    run.train()
    assert [record.absent for record in run.history] == [{}, {2: "refused: its loss is not finite"}, {}, {}]
    assert run.history[1].steps == {0: 3, 1: 3, 2: 2}
    assert np.isfinite(run.vector()).all()


RUBBISH = {
    "other counts": {"counts": [1, 1]},
    "negative counts": {"counts": [-1]},
    "fewer sources": {"sources": []},
    "sources beyond the graph": {"sources": [240]},
    "sources below it": {"sources": [-1]},
    "counts of another kind": {"counts": [1.0]},
    "no counts": {"counts": None},
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
def test_lists_that_cannot_be_are_refused(rubbish: dict[str, list[float] | None], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    run = broken("")
    plain = GGSTrainer.on_give_neighbours

    def giving(self, message):  # type: ignore[no-untyped-def]
        answer = plain(self, message)
        if (self.shard.part, message.scalars["step"], message.scalars["hop"]) != (1, 4, 1):
            return answer
        arrays = dict(answer.arrays)
        for peer in (0, 2):
            for name, value in rubbish.items():
                if value is None:
                    del arrays[f"neighbours/{peer}/{name}"]
                else:
                    kind = np.int32 if all(isinstance(v, int) for v in value) else np.float32
                    count = len(arrays[f"neighbours/{peer}/{name}"]) if len(value) == 1 else len(value)
                    arrays[f"neighbours/{peer}/{name}"] = np.full(count, value[:1] or 0, dtype=kind)
        return Message(answer.verb, {}, arrays)

    monkeypatch.setattr(GGSTrainer, "on_give_neighbours", giving)
    run.train()
    assert [set(record.absent) for record in run.history] == [set(), {1}, set(), set()]
    assert run.history[1].steps == {0: 2, 1: 3, 2: 2}


def test_requests_for_rows_that_do_not_exist_are_not_answered() -> None:
    trainer = trainers(broken(""))[0]
    n = trainer.shard.num_inner
    for rows in ([0, n], [-1], [[0]], [0.0]):
        trainer.on_requested(Message("requested", {}, {"neighbours/1": np.array(rows)}))
        assert trainer.requests == {}
    pairs = np.array([[0], [n]])
    trainer.on_requested(Message("requested", {}, {"neighbours/1": np.array([0]), "neighbours/1/hide": pairs}))
    assert trainer.requests == {} and trainer.concealed == {}
    trainer.on_requested(Message("requested", {}, {"neighbours/1": np.array([0, n - 1])}))
    assert trainer.requests.keys() == {1}


def test_the_checkpoint_of_a_run_that_lost_a_trainer_loads(tmp_path) -> None:  # type: ignore[no-untyped-def]
    config = resolve(
        {"graph": "blobs", "method": "ggs", "parts": 2, "steps": 6, "interval": "2steps", "hidden": 8, "threads": 1}
    )
    with pytest.raises(PeerLostError, match="trainer 1"):
        execute(config, given=blocks(), out=tmp_path / "run", faults="kill:1@2")
    keeper = RunFolder.open(tmp_path / "run").read_checkpoint()
    assert keeper.rounds == 2 and keeper.last
    assert RunFolder.open(tmp_path / "run").metrics()["complete"] is False
