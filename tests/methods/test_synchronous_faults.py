"""Synchronous training when trainers fail or rows do not come: who is named, what stays, and how it goes on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from rig import Rig, blocks, rig

from farflung.errors import PeerLostError, TrainerError
from farflung.nn import flat
from farflung.tasks.node_classification import NodeClassification
from farflung.team import Message, Reply
from farflung.team.local import LocalTeam

RATES = pytest.mark.parametrize("rate", [1.0, 0.4])


def broken(faults: str = "", **options: object) -> Rig:
    usual: dict[str, object] = {"dtype": "float64", "steps": 20, "interval": 5, "keep": "last", "layers": 3, "lr": 0.05}
    return rig(blocks(), "synchronous", faults=faults, **{**usual, **options})  # type: ignore[arg-type]


@RATES
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("round", [0, 1, 3])
def test_one_that_dies_ends_the_run_at_once(round: int, layers: int, rate: float) -> None:
    run = broken(f"kill:1@{round}", layers=layers, boundary_rate=rate)
    straight = broken(layers=layers, boundary_rate=rate, steps=5 * round) if round else None
    with pytest.raises(
        PeerLostError, match=rf"lost trainer 1 \(dead: killed .* in round {round}, waiting for "
    ) as caught:
        run.train()
    assert "trainer 0" not in str(caught.value) and "\n" not in str(caught.value)
    assert len(run.history) == run.keeper.rounds == round
    if straight is None:
        assert run.keeper.last == {}, "the initial weights are what there is"
    else:
        assert np.array_equal(run.vector(), straight.train().vector())
        assert run.team.now() - straight.team.now() <= 0.125, "nobody waits for the dead, but for a step of the others"


@pytest.mark.parametrize("seconds", ["100s", "inf"])
def test_one_that_is_late_ends_the_run_within_a_deadline_for_each_half(seconds: str) -> None:
    run = broken(f"delay:2@2={seconds}", deadline="50s")
    with pytest.raises(PeerLostError, match=r"trainer 2 \(late: .* deadline of 50 s\) in round 2, waiting for"):
        run.train()
    assert run.team.now() == 10 * 0.125 + 2 * 50, "it is late in both halves of an exchange: to give and to take"
    assert run.keeper.rounds == len(run.history) == 2


def test_one_that_is_slow_is_waited_for_where_there_is_no_deadline() -> None:
    late, straight = broken("delay:2@2=3s").train(), broken().train()
    assert np.array_equal(late.vector(), straight.vector())
    assert late.team.now() > straight.team.now()


def test_all_that_are_lost_are_named() -> None:
    with pytest.raises(PeerLostError, match=r"lost trainer 0 \(dead.*\) and trainer 2 \(dead.*\) in round 1"):
        broken("kill:0@1, kill:2@1").train()


def test_an_exception_reaches_the_user_with_the_trainers_name() -> None:
    with pytest.raises(TrainerError, match="trainer 1 failed in round 2 on 'forward'") as caught:
        broken("raise:1@2").train()
    assert isinstance(caught.value.__cause__, RuntimeError)


@RATES
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_not_a_number_is_refused_and_its_sender_named(layers: int, encoder: str, rate: float) -> None:
    run = broken("nan:1@1", layers=layers, encoder=encoder, boundary_rate=rate)
    kept: dict[int, np.ndarray] = {}
    run.diary.after = lambda record: kept.setdefault(record.round, run.vector())
    run.train()
    assert run.history[1].absent == {1: "refused: its gradients are not finite"}
    assert run.history[1].loss is None and set(run.history[1].steps.values()) == {0}
    assert np.array_equal(kept[1], kept[0]), "weights stay"
    assert [record.absent for record in run.history[2:]] == [{}, {}]
    assert run.history[3].steps == {0: 5, 1: 5, 2: 5}
    if rate == 1:  # what was refused counts as if it had never been
        assert np.array_equal(run.vector(), broken(layers=layers, encoder=encoder, steps=15).train().vector())


def test_features_that_are_no_numbers_are_sent_again() -> None:
    run = broken("nan:1@0").train()
    assert set(run.history[0].absent) == {1} and run.history[0].loss is None
    assert all(record.absent == {} for record in run.history[1:])
    straight = broken(steps=15).train()
    assert np.array_equal(run.vector(), straight.vector())
    assert run.ledger.total("features") == 2 * straight.ledger.total("features")


class NoLoss(NodeClassification):
    """Its loss is not a number."""

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(logits, targets) * float("nan")


def test_a_loss_that_is_not_a_number_is_refused_and_named() -> None:
    run = broken()
    before = flat.pack(run.setting.model)
    run.team._trainers[1].task = NoLoss(3)  # type: ignore[attr-defined]
    run.train()
    assert all(record.absent == {1: "refused: its loss is not finite"} for record in run.history)
    assert np.array_equal(run.vector(), before)


class Losing(LocalTeam):
    """A team that spoils what trainer 1 sends to trainer 0 in one exchange."""

    def lose(self, kind: str, occasion: int, how: str) -> None:
        """Spoil the arrays of `kind` at the `occasion`-th time (1, 2, ...) that there are some: `how`."""
        self.kind, self.left, self.how = kind, occasion, how

    def _deliver(
        self, messages: Mapping[int, Message], deadline: float | None, from_peers: bool = False
    ) -> list[Reply]:
        name = f"{self.kind}/1"
        arrays = dict(messages[0].arrays) if from_peers else {}
        if name in arrays:
            self.left -= 1
            if self.left == 0:
                rows = arrays.pop(name)
                if self.how == "infinite":
                    arrays[name] = rows.copy()
                    arrays[name][-1, 0] = np.inf
                elif self.how == "short":
                    arrays[name] = rows[:-1]
                elif self.how == "wide":
                    arrays[name] = np.hstack([rows, rows])
                messages = {**messages, 0: Message(messages[0].verb, messages[0].scalars, arrays)}
        return super()._deliver(messages, deadline, from_peers)


@pytest.mark.parametrize("how", ["missing", "infinite", "short", "wide"])
@pytest.mark.parametrize("occasion", [3, 4], ids=["deep", "shallow"])
@pytest.mark.parametrize("kind", ["embeddings", "embedding-gradients"])
def test_rows_that_are_lost_on_the_way_spoil_their_step_alone(kind: str, occasion: int, how: str) -> None:
    """Two exchanges of each kind a step: the third and fourth are the second step's."""
    run = broken(interval=1, steps=6)
    run.team.__class__ = Losing
    run.team.lose(kind, occasion, how)  # type: ignore[attr-defined]
    run.train()
    assert run.history[1].absent == {1: "refused: rows that it sent are missing or not finite"}
    assert all(record.absent == {} for record in run.history if record.round != 1)
    assert np.array_equal(run.vector(), broken(interval=1, steps=5).train().vector())


def test_lost_features_are_not_taken_for_zeros() -> None:
    run = broken(interval=1, steps=6)
    run.team.__class__ = Losing
    run.team.lose("features", 1, "missing")  # type: ignore[attr-defined]
    run.train()
    assert run.history[0].absent == {1: "refused: its features are missing or not finite"}
    assert np.array_equal(run.vector(), broken(interval=1, steps=5).train().vector())


def test_when_nothing_can_be_trained_the_weights_stay() -> None:
    """No labels anywhere: no step, no error, and no decay of weights."""
    graph = blocks()
    nobody = np.zeros(graph.num_nodes, dtype=bool)
    split = type(graph.split)(nobody, graph.split.val, graph.split.test)  # type: ignore[union-attr]
    run = rig(graph.with_(split=split), "synchronous", steps=4, interval=2)
    before = flat.pack(run.setting.model)
    run.train()
    assert np.array_equal(run.vector(), before)
    assert [record.loss for record in run.history] == [None, None]
