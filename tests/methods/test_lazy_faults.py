"""Lazy training when trainers fail: the survivors' weights against the plain loop with the same gaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracle import lazy_loop
from rig import Rig, blocks, flat_vector, rig

from farflung.errors import AllTrainersLostError, TrainerError
from farflung.graph import Graph
from farflung.tasks.node_classification import NodeClassification
from farflung.team import SERVER, Message

T = 10
"""Rounds of each of two layers: 0..9 and 10..19; the second exchange is in round 10."""


def two_classes() -> Graph:
    graph = blocks()
    return graph.with_(y=(graph.y > 0).astype(np.int64), class_names=None)


def broken(faults: str, graph: Graph | None = None, **options: object) -> Rig:
    options = {"parts": 3, "dtype": "float64", "steps": 2 * T, "keep": "last", **options}
    return rig(graph or blocks(), "lazy", faults=faults, **options)


def check(run: Rig, gone: set[int], unheard: dict[int, set[int]] | None = None) -> None:
    """Weights and losses are those of the loop without trainer 1 in the rounds `gone`.

    `unheard`: per layer the rounds in which its rows are missing from others' aggregates.
    """
    unheard = unheard or {}
    weights, losses = lazy_loop(
        run,
        rounds=[T, T],
        answers=lambda r: [0, 2] if r in gone else [0, 1, 2],
        unheard=lambda layer, r: [1] if r in unheard.get(layer, ()) else [],
    )
    assert np.allclose([record.loss for record in run.history], losses, rtol=0, atol=1e-9)
    assert np.abs(run.vector() - weights).max() <= 1e-9
    for record in run.history:
        if record.round in gone:
            assert set(record.absent) == {1} and 1 not in record.steps
        else:
            assert 1 in record.steps
    assert len(run.history) == 2 * T


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_that_never_starts(encoder: str) -> None:
    run = broken("kill:1@0", encoder=encoder).train()
    check(run, set(range(20)), {0: set(range(20)), 1: set(range(20))})
    assert all("dead" in record.absent[1] for record in run.history)
    assert (SERVER, 1) not in run.ledger.matrix() and 1 not in run.ledger.sent_by()


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_that_is_killed_in_round_2(encoder: str) -> None:
    run = broken("kill:1@2", encoder=encoder).train()
    check(run, set(range(2, 20)), {1: set(range(10, 20))})
    assert run.history[1].absent == {}
    assert "killed in or before round 2" in run.history[2].absent[1]


def test_one_that_is_slow_for_one_round() -> None:
    run = broken("delay:1@3=100s", deadline="50s").train()
    check(run, {3})
    assert "late" in run.history[3].absent[1] and "deadline of 50 s" in run.history[3].absent[1]


def test_one_that_is_slow_when_nobody_waits_for_ever_is_waited_for() -> None:
    run = broken("delay:1@3=100s").train()
    check(run, set())
    assert run.team.now() == pytest.approx(100 + 20 * 0.125)


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_that_is_slow_at_an_exchange(encoder: str) -> None:
    """Its rows miss rounds 10 and 11; once it answers again, they are sent."""
    run = broken("delay:1@10=100s", deadline="50s", encoder=encoder).train()
    check(run, {10}, {1: {10, 11}})
    assert run.history[11].absent == {1: "its boundary rows are missing"}
    assert run.history[12].absent == {}


def test_one_that_hangs() -> None:
    run = broken("delay:1@3-6=inf", deadline="50s").train()
    check(run, {3, 4, 5})
    assert run.team.now() == 3 * 50 + 17 * 0.125
    sent = run.ledger.table()
    hung = (sent["sender"] == 1) & (sent["round"] >= 3) & (sent["round"] < 6)
    assert not hung.any(), "one that hangs sends nothing"


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize("back", [3, 5, 9])
def test_one_that_comes_back(encoder: str, back: int) -> None:
    run = broken(f"kill:1@2-{back}", encoder=encoder).train()
    check(run, set(range(2, back + 1)))
    assert "killed" in run.history[2].absent[1]
    assert run.history[back].absent[1] == "came back, catching up"


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_that_comes_back_in_the_second_layer(encoder: str) -> None:
    check(broken("kill:1@13-15", encoder=encoder).train(), {13, 14, 15})


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_rows_of_one_that_is_gone_at_an_exchange_are_left_out_and_come_with_it(encoder: str) -> None:
    run = broken("kill:1@10-12", encoder=encoder).train()
    check(run, {10, 11, 12}, {1: {10, 11, 12}})


def test_one_that_starts_late() -> None:
    run = broken("kill:1@0-4").train()
    check(run, {0, 1, 2, 3, 4}, {0: {0, 1, 2, 3, 4}})


def test_one_that_comes_back_slowly() -> None:
    """It starts in round 4 and is late in round 5, when the server asks it to catch up."""
    run = broken("kill:1@0-4,delay:1@5=100s", deadline="50s").train()
    assert set(run.history[4].absent) == {1} and set(run.history[5].absent) == {1}
    assert all(record.absent == {} and set(record.steps) == {0, 1, 2} for record in run.history[8:])


def test_one_that_sends_late_while_another_catches_up() -> None:
    """Trainer 0 is late just when trainer 1 asks for its rows: they are sent later."""
    run = broken("kill:1@2-4,delay:0@5=100s", deadline="50s", layers=1, steps=T).train()
    straight = broken("", layers=1, steps=T).train()
    assert set(run.history[4].absent) == {1} and 0 in run.history[5].absent
    assert np.array_equal(gradients(run, run)[1], gradients(straight, run)[1])


def gradients(run: Rig, weights_of: Rig | None = None, layer: int | None = None) -> list[np.ndarray]:
    """Each trainer's gradient of the last layer, all at the same weights."""
    layer = len(run.setting.model.layers) - 1 if layer is None else layer
    source = weights_of or run
    prefix = f"stack.{layer}."
    vector = flat_vector({n: v for n, v in source.keeper.chosen("last").items() if n.startswith(prefix)})
    scalars = {"layer": layer, "round": 0, "of": 100, "score": False, "keep": False}
    replies = run.team.broadcast(Message("gradient", scalars, {"weights": vector}))
    assert not any(reply.scalars.get("behind") for reply in replies)
    return [reply.arrays["gradients"] for reply in replies]


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
@pytest.mark.parametrize(("layers", "faults"), [(1, "kill:1@3-6"), (2, "kill:1@13-15"), (3, "kill:1@22-24")])
def test_after_catching_up_gradients_equal_those_of_the_undisturbed_run(encoder: str, layers: int, faults: str) -> None:
    steps = T * layers
    run = broken(faults, encoder=encoder, layers=layers, steps=steps).train()
    straight = broken("", encoder=encoder, layers=layers, steps=steps).train()
    for mine, other in zip(gradients(run, run), gradients(straight, run), strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("faults", [f"kill:1@{r}-{r + 1}" for r in range(1, 10)] + ["kill:1@4-9", "kill:1@9-10"])
def test_all_embed_with_the_chosen_weights(faults: str) -> None:
    """Wherever the best round lies, one that was away while those weights passed gets them."""
    for lr in (0.01, 0.1, 1.0):  # the larger, the earlier is the best round
        run = broken(faults, keep="best", lr=lr).train()
        central = run.evaluator.embeddings(run.keeper.chosen("best"))
        for shard, held in zip(run.partition.shards, run.reveal(weights=np.zeros(51)), strict=True):
            assert np.abs(held.arrays["embeddings/1"] - central[shard.inner]).max() <= 1e-9


def test_not_a_number_is_refused() -> None:
    run = broken("nan:1@4,nan:1@13").train()
    check(run, {4, 13})
    assert run.history[4].absent == {1: "refused: its gradients are not finite"}
    assert np.isfinite(run.vector()).all()


@pytest.mark.parametrize("round", [4, 9, 19])
def test_not_a_number_in_the_scores_of_two_classes_is_left_out(round: int) -> None:
    run = broken(f"nan:1@{round}", two_classes(), keep="best").train()
    assert len(run.history) == 20
    assert 1 in run.history[round].absent
    assert np.isfinite(run.vector()).all()


class NoLoss(NodeClassification):
    """Its loss is not a number."""

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(logits, targets) * float("nan")


def test_a_loss_that_is_not_a_number_is_refused_and_named() -> None:
    run = broken("")
    run.team._trainers[1].task = NoLoss(3)
    run.train()
    check(run, set(range(20)))
    assert all(record.absent == {1: "refused: its loss is not finite"} for record in run.history)


def test_rows_that_are_not_numbers_are_not_used() -> None:
    """They are left out as if they had not come, and sent again."""
    run = broken("nan:1@10").train()
    check(run, {10}, {1: {10, 11}})


def test_the_only_one_with_labels_is_missing_at_the_start() -> None:
    graph = blocks()
    assignment = np.where(graph.split.train, 0, 1 + np.arange(240) % 2)
    run = broken("kill:0@0-3", assignment=assignment).train()
    assert [record.loss is None for record in run.history[:5]] == [True] * 4 + [False]
    assert set(run.history[19].steps) == {0, 1, 2}


@pytest.mark.parametrize("round", [0, 1, 5, 10, 15])
def test_when_all_die_the_run_ends_at_once(round: int) -> None:
    run = broken(", ".join(f"kill:{k}@{round}" for k in range(3)))
    with pytest.raises(AllTrainersLostError, match="trainer 2"):
        run.train()
    # A round counts when its weights are scored, which is at the next one's answers.
    assert run.keeper.rounds == len(run.history) == max(0, round - 1)
    assert max(run.ledger.rounds(), default=0) <= round


def test_when_all_are_late_the_run_ends_within_a_deadline() -> None:
    run = broken("delay:0@5=1000s,delay:1@5=1000s,delay:2@5=1000s", deadline="50s")
    with pytest.raises(AllTrainersLostError, match="late"):
        run.train()
    assert run.team.now() == 5 * 0.125 + 50


def test_two_restarts_that_cross() -> None:
    """Trainer 0 dies in the round in which trainer 1 comes back; both are whole again in the end."""
    run = broken("kill:1@12-14,kill:0@14-15").train()
    straight = broken("").train()
    assert set(run.history[14].absent) == {0, 1}
    assert all(set(record.steps) == {0, 1, 2} for record in run.history[17:])
    for mine, other in zip(gradients(run, run), gradients(straight, run), strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("round", [0, 3, 10])
def test_an_exception_reaches_the_user_with_the_trainers_name(round: int) -> None:
    run = broken(f"raise:1@{round}")
    with pytest.raises(TrainerError, match=f"trainer 1 failed in round {round}") as caught:
        run.train()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.__cause__.__traceback__ is not None
    assert len(run.history) <= round
