"""TMA when trainers fail: the survivors' weights against loops that average those who are there."""

from __future__ import annotations

import numpy as np
import pytest
from rig import Rig, blocks, rig
from test_tma import trainers_of

from farflung.errors import AllTrainersLostError, TrainerError
from farflung.methods.tma_trainer import TMATrainer
from farflung.team import Message

ROUNDS, STEPS = 6, 3


def broken(faults: str, **options: object) -> Rig:
    options = {"parts": 3, "steps": ROUNDS * STEPS, "interval": STEPS, "keep": "last", **options}
    return rig(blocks(), "tma", faults=faults, **options)


def check(run: Rig, gone: set[int], fresh: int | None = None) -> None:
    """Weights are the means over all but trainer 1 in the rounds `gone`, over all elsewhere, to the bit.

    Before round `fresh` trainer 1's optimiser begins anew.
    """
    loops = trainers_of(run)
    weights = loops[0].vector()
    for number in range(ROUNDS):
        if number == fresh:
            loops[1] = trainers_of(run)[1]
        vectors = []
        for k, loop in enumerate(loops):
            loop.load(weights)
            if k == 1 and number in gone:
                continue
            loop.interval(number, STEPS)
            vectors.append(loop.vector().astype(np.float64))
        weights = (sum(vectors) / len(vectors)).astype(np.float32)
        assert set(run.history[number].absent) == ({1} if number in gone else set())
        assert set(run.history[number].steps) == {0, 1, 2} - set(run.history[number].absent)
    assert np.array_equal(run.vector(), weights)
    assert len(run.history) == ROUNDS


def test_one_that_never_starts() -> None:
    run = broken("kill:1@0").train()
    check(run, set(range(ROUNDS)))
    assert 1 not in run.ledger.received_by() and 1 not in run.ledger.sent_by()


def test_one_that_is_killed_in_round_2() -> None:
    run = broken("kill:1@2").train()
    check(run, set(range(2, ROUNDS)))
    assert run.history[2].absent[1] == "dead: killed in or before round 2"


def test_one_that_comes_back_gets_the_weights_and_a_fresh_adam() -> None:
    run = broken("kill:1@2-4").train()
    check(run, {2, 3}, fresh=4)
    assert run.reveal()[1].scalars["steps"] == [2 * STEPS]
    assert run.reveal()[0].scalars["steps"] == [6 * STEPS]


def test_one_that_starts_late() -> None:
    check(broken("kill:1@0-2").train(), {0, 1})


def test_one_that_is_slow_for_one_round() -> None:
    """What it did by itself is lost, its Adam goes on."""
    run = broken("delay:1@2=100s", deadline="50s")
    run.train()
    loops = trainers_of(run)
    weights = loops[0].vector()
    for number in range(ROUNDS):
        for loop in loops:
            loop.load(weights)
            loop.interval(number, STEPS)
        heard = [loop.vector().astype(np.float64) for k, loop in enumerate(loops) if (k, number) != (1, 2)]
        weights = (sum(heard) / len(heard)).astype(np.float32)
    assert np.array_equal(run.vector(), weights)
    assert run.history[2].absent == {1: "late: 100 s passed a deadline of 50 s"}
    assert [r for r, record in enumerate(run.history) if record.absent] == [2]


def test_one_that_hangs() -> None:
    run = broken("delay:1@2-4=inf", deadline="50s").train()
    assert [r for r, record in enumerate(run.history) if 1 in record.absent] == [2, 3]
    assert np.isfinite(run.vector()).all() and np.isfinite(run.team.now())
    sent = run.ledger.table()
    assert not ((sent["sender"] == 1) & (sent["round"] == 2)).any(), "one that hangs sends nothing"


def test_one_that_is_slow_is_waited_for_without_a_deadline() -> None:
    run = broken("delay:1@2=100s").train()
    check(run, set())
    assert run.team.now() == pytest.approx(200 + ROUNDS * STEPS * 0.125)  # it trains late and takes weights late


def test_poisoned_weights_are_refused_and_the_optimiser_begins_anew() -> None:
    run = broken("nan:1@2").train()
    check(run, {2}, fresh=3)
    assert run.history[2].absent == {1: "refused: its weights are not finite"}
    assert run.reveal()[1].scalars["steps"] == [3 * STEPS]


class Diverging(TMATrainer):
    """Trainer 1 has a loss that is not a number in its 7th step."""

    def step(self, key: int) -> float:
        loss = super().step(key)
        self.count = getattr(self, "count", 0) + 1
        return float("inf") if self.shard.part == 1 and self.count == 7 else loss

    def on_reveal(self, message: Message) -> Message:
        return Message("reveal", {"steps": [int(next(iter(self.optimiser.state.values()))["step"])]})


def test_a_loss_that_is_not_finite_is_refused_and_named() -> None:
    run = broken("")
    spec = run.team._spec.model_copy(update={"target": f"{__name__}:Diverging"})
    run.team._trainers = {k: spec.build_trainer(run.partition.shards[k], run.team._clock) for k in range(3)}
    run.train()
    check(run, {2}, fresh=3)
    assert run.history[2].absent == {1: "refused: its loss is not finite"}
    assert all(np.isfinite(record.loss) for record in run.history)
    assert [held.scalars["steps"] for held in run.reveal()] == [[18], [9], [18]]


@pytest.mark.parametrize("round", [0, 2])
def test_when_all_are_refused_the_weights_stay(round: int) -> None:
    run = broken(", ".join(f"nan:{k}@{round}" for k in range(3)))
    kept = [run.setting.model.state_dict()["stack.0.conv.bias"].clone()]
    run.diary.after = lambda record: kept.append(run.keeper.last["stack.0.conv.bias"].clone())
    run.train()
    assert np.array_equal(kept[round + 1], kept[round])
    assert set(run.history[round].absent) == {0, 1, 2}
    assert run.history[round].loss is None
    assert np.isfinite(run.vector()).all()


@pytest.mark.parametrize("round", [0, 1, 4])
def test_when_all_die_the_run_ends_at_once(round: int) -> None:
    run = broken(", ".join(f"kill:{k}@{round}" for k in range(3)))
    with pytest.raises(AllTrainersLostError, match=r"trainer 0 .*trainer 1 .*trainer 2 .*checkpoint"):
        run.train()
    assert len(run.history) == round == run.keeper.rounds
    assert run.team.now() == round * STEPS * 0.125
    if round:
        assert np.isfinite(run.vector()).all()


def test_when_all_are_late_the_run_ends_within_a_deadline() -> None:
    run = broken("delay:0@4=1000s,delay:1@4=1000s,delay:2@4=1000s", deadline="50s")
    with pytest.raises(AllTrainersLostError, match="late"):
        run.train()
    assert run.team.now() == 4 * STEPS * 0.125 + 50


@pytest.mark.parametrize("round", [0, 3])
def test_an_exception_reaches_the_user_with_the_trainers_name(round: int) -> None:
    run = broken(f"raise:1@{round}")
    with pytest.raises(TrainerError, match=f"trainer 1 failed in round {round}") as caught:
        run.train()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.__cause__.__traceback__ is not None
    assert len(run.history) == round


def test_an_exception_of_its_own_keeps_its_traceback() -> None:
    run = broken("")
    run.team._trainers[2].step = lambda key: [][0]  # type: ignore[method-assign]
    with pytest.raises(TrainerError, match=r"trainer 2 failed in round 0 on 'train': IndexError") as caught:
        run.train()
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_killed_trainer_gets_and_sends_nothing() -> None:
    run = broken("kill:1@2-4").train()
    rows = run.ledger.table()
    touched = (rows["sender"] == 1) | (rows["receiver"] == 1)
    assert set(rows["round"][touched].tolist()) == {0, 1, 4, 5}
    P = len(run.vector())
    weights = rows["kind"] == "weights"
    received = weights & (rows["receiver"] == 1)
    # The start, after each of two aggregations, on return, after each of two more.
    assert rows["bytes"][received].sum() == 4 * P * (1 + 2 + 1 + 2)
