"""The keeper of the best and the last weights."""

from __future__ import annotations

import torch

from farflung.methods.base import Keeper


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def test_the_first_of_equals_stays() -> None:
    keeper = Keeper("accuracy")
    scores = [0.2, 0.5, 0.5, 0.4, 0.5]
    better = [keeper.offer(r, weights(r), {"accuracy": s, "f1": 1 - s}) for r, s in enumerate(scores)]
    assert better == [True, True, False, False, False]
    assert keeper.best_round == 1 and keeper.best_score == 0.5
    assert keeper.chosen("best")["w"].item() == 1 and keeper.chosen("last")["w"].item() == 4


def test_a_score_of_nought_is_a_score() -> None:
    keeper = Keeper("accuracy")
    assert keeper.offer(0, weights(0), {"accuracy": 0.0})
    assert keeper.best_round == 0


def test_without_scores_the_last_counts() -> None:
    keeper = Keeper("accuracy")
    assert not keeper.offer(0, weights(0), None)
    assert not keeper.offer(1, weights(1), {"accuracy": None})
    assert not keeper.offer(2, weights(2), {"other": 0.5})
    assert keeper.chosen("best")["w"].item() == 2
    assert keeper.best_round is None


def test_weights_are_copies() -> None:
    keeper, model = Keeper("accuracy"), torch.nn.Linear(2, 2)
    keeper.offer(0, model.state_dict(), {"accuracy": 0.5})
    with torch.no_grad():
        model.weight.zero_()
    assert keeper.best["weight"].abs().sum() > 0
    assert not keeper.best["weight"].requires_grad


def test_another_layer_begins_anew() -> None:
    keeper = Keeper("accuracy")
    keeper.offer(0, weights(0), {"accuracy": 0.9})
    keeper.forget_best()
    assert keeper.best_score is None
    assert keeper.chosen("best")["w"].item() == 0
    assert keeper.offer(1, weights(1), {"accuracy": 0.1})
    assert keeper.best_round == 1
