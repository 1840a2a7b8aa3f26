"""TMA against loops written out here: one trainer, several trainers, and what they hold after an aggregation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rig import blocks, digits, flat_vector, induced, rig, tangled

from farflung.graph import Graph, choose_split, load
from farflung.kernels import SparseMatrix
from farflung.nn import Encoder, ModelConfig, build_encoder, graph_adjacency
from farflung.seeding import derive


def features(graph: Graph, dtype: torch.dtype) -> torch.Tensor | SparseMatrix:
    return torch.from_numpy(np.asarray(graph.x)).to(dtype)


class PlainTrainer:
    """A PyTorch training loop on one graph, full-batch: nothing here knows of trainers, teams or methods."""

    def __init__(self, graph: Graph, train: np.ndarray, part: int, model: ModelConfig, classes: int, dtype: str):
        kind = getattr(torch, dtype)
        self.model: Encoder = build_encoder(model, graph.num_features, classes, False, 0, kind)
        self.matrix = graph_adjacency(self.model.aggregation, graph, np.dtype(dtype))
        self.gathered = self.model.prepare(self.matrix, features(graph, kind))
        self.rows = torch.from_numpy(np.flatnonzero(train))
        self.targets = torch.from_numpy(graph.y[np.flatnonzero(train)]).long()
        self.part = part
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01, weight_decay=5e-4, fused=True)

    def interval(self, number: int, steps: int) -> float | None:
        loss = None
        for step in range(steps):
            key = derive(0, "dropout", number, self.part, step)
            self.optimiser.zero_grad()
            loss = F.cross_entropy(self.model(self.matrix, self.gathered, key)[self.rows], self.targets)
            loss.backward()
            self.optimiser.step()
        return None if loss is None else loss.item()

    def vector(self) -> np.ndarray:
        return flat_vector(self.model.state_dict()).copy()

    def load(self, vector: np.ndarray) -> None:
        at = 0
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.from_numpy(vector[at : at + p.numel()]).reshape(p.shape))
                at += p.numel()


def plain(graph: Graph, encoder: str, dropout: float, dtype: str) -> PlainTrainer:
    model = ModelConfig(encoder=encoder, hidden=16, dropout=dropout)
    return PlainTrainer(graph, graph.split.train, 0, model, graph.num_classes, dtype)


@pytest.mark.parametrize("method", ["tma", "centralised"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_trainer_is_a_plain_loop_to_the_bit(encoder: str, dtype: str, dropout: float, method: str) -> None:
    graph = blocks()
    one = rig(
        graph, method, parts=1, encoder=encoder, dtype=dtype, dropout=dropout, steps=23, interval=5, keep="last"
    ).train()
    loop = plain(graph, encoder, dropout, dtype)
    losses, scores = [], []
    for number, steps in enumerate([5, 5, 5, 5, 3]):
        losses.append(loop.interval(number, steps))
        logits = loop.model(loop.matrix, loop.gathered).detach().numpy()[graph.split.val]
        scores.append(float(np.mean(logits.argmax(axis=1) == graph.y[graph.split.val])))

    assert np.array_equal(one.vector(), loop.vector())
    assert one.vector().dtype == np.dtype(dtype)
    assert [record.loss for record in one.history] == losses
    assert [record.val["accuracy"] for record in one.history] == scores
    held = one.reveal()[0]
    assert held.scalars["steps"] == [23], "the Adam state was reset"
    for name in ("exp_avg", "exp_avg_sq"):
        state = [loop.optimiser.state[p][name].numpy().reshape(-1) for p in loop.model.parameters()]
        assert np.array_equal(held.arrays[f"weights/{name}"], np.concatenate(state))


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_one_trainer_is_a_plain_loop_on_digits_and_on_a_tangled_graph(encoder: str) -> None:
    for graph in (digits(), tangled()):
        one = rig(graph, "tma", parts=1, encoder=encoder, dropout=0.3, steps=12, interval=5).train()
        loop = plain(graph, encoder, 0.3, "float32")
        for number, steps in enumerate([5, 5, 2]):
            loop.interval(number, steps)
        assert np.array_equal(one.vector(), loop.vector())


def test_one_trainer_with_sparse_features_is_a_plain_loop(data_dir: Path) -> None:
    graph = choose_split(load("cora"), "public", 0)
    for dropout in (0.0, 0.5):
        one = rig(graph, "tma", parts=1, encoder="gcn", dropout=dropout, steps=6, interval=3).train()
        loop = plain(graph.with_(features=(graph.x.toarray(),)), "gcn", dropout, "float32")
        sparse = SparseMatrix.from_scipy(graph.x, np.float32)
        loop.gathered = loop.model.prepare(loop.matrix, sparse)
        loop.interval(0, 3)
        loop.interval(1, 3)
        assert np.array_equal(one.vector(), loop.vector())


def test_centralised_sends_nothing() -> None:
    one = rig(blocks(), "centralised", steps=10, interval=5).train()
    assert len(one.ledger) == 0
    assert one.ledger.total() == 0


def test_centralised_takes_one_trainer() -> None:
    three = rig(blocks(), "tma", parts=3)
    three.method = "centralised"
    with pytest.raises(ValueError, match="one trainer"):
        three.train()


def trainers_of(setting, dropout: float = 0.0) -> list[PlainTrainer]:  # type: ignore[no-untyped-def]
    """One plain loop per part of a rig, on the subgraph of the part."""
    graph, assignment = setting.graph, setting.partition.assignment
    loops = []
    for part in range(setting.partition.num_parts):
        nodes = np.flatnonzero(assignment == part)
        model = ModelConfig(encoder="gcn", hidden=16, dropout=dropout)
        loops.append(
            PlainTrainer(induced(graph, nodes), graph.split.train[nodes], part, model, graph.num_classes, "float32")
        )
    return loops


@pytest.mark.parametrize("by", ["random", "mincut", "supernode"])
def test_several_trainers_are_loops_whose_weights_are_averaged(by: str) -> None:
    run = rig(blocks(), "tma", by=by, parts=3, dropout=0.3, steps=12, interval=4)
    loops = trainers_of(run, 0.3)
    run.train()
    weights = loops[0].vector()
    for number in range(3):
        for loop in loops:
            loop.load(weights)
            loop.interval(number, 4)
        total = sum(loop.vector().astype(np.float64) for loop in loops)
        weights = (total / 3).astype(np.float32)
    assert np.array_equal(run.vector(), weights)


def test_after_an_aggregation_all_trainers_hold_the_same_weights_and_their_own_adam() -> None:
    run = rig(blocks(), "tma", parts=4, steps=12, interval=4)
    seen = []

    def look(record) -> None:  # type: ignore[no-untyped-def]
        held = run.reveal()
        for one in held:
            assert np.array_equal(one.arrays["weights"], run.vector())
            assert one.scalars["steps"] == [4 * (record.round + 1)]
        seen.append(held)

    run.diary.after = look
    run.train()
    assert len(seen) == 3
    for held in seen:
        moments = [one.arrays["weights/exp_avg"] for one in held]
        assert not any(np.array_equal(moments[0], other) for other in moments[1:])


def test_several_local_steps_are_several_optimiser_steps() -> None:
    """Pitfall 22: five steps in one interval lead elsewhere than one, and to where five intervals of one lead."""
    whole = rig(blocks(), "tma", parts=1, steps=5, interval=5).train()
    single = rig(blocks(), "tma", parts=1, steps=5, interval=1).train()
    first = rig(blocks(), "tma", parts=1, steps=1, interval=1).train()
    assert np.array_equal(whole.vector(), single.vector())
    assert not np.array_equal(whole.vector(), first.vector())
    parted = rig(blocks(), "tma", parts=3, steps=5, interval=5).train()
    assert parted.history[0].steps == {0: 5, 1: 5, 2: 5}
    assert [held.scalars["steps"] for held in parted.reveal()] == [[5], [5], [5]]


def test_the_first_best_by_validation_is_kept() -> None:
    run = rig(blocks(), "tma", parts=3, steps=30, interval=1)
    kept = {}
    run.diary.after = lambda record: kept.setdefault(record.round, run.vector())
    run.train()
    scores = [record.val["accuracy"] for record in run.history]
    best = int(np.argmax(scores))
    assert scores.count(max(scores)) > 1, "this test wants a tie"
    assert run.keeper.best_round == best and run.keeper.best_score == scores[best]
    assert np.array_equal(run.vector("best"), kept[best])
    assert np.array_equal(run.vector("last"), kept[29])
    assert [record.round for record in run.history if record.best] == [
        i for i, score in enumerate(scores) if score > max(scores[:i], default=-1)
    ]


def test_without_validation_nodes_the_last_weights_count() -> None:
    graph = blocks()
    split = type(graph.split)(graph.split.train, np.zeros(240, bool), graph.split.test)
    run = rig(graph.with_(split=split), "tma", steps=4, interval=2).train()
    assert run.history[-1].val["accuracy"] is None
    assert run.keeper.best_round is None
    assert np.array_equal(run.vector("best"), run.vector("last"))
