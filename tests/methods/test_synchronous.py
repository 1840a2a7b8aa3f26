"""Synchronous training against training in one place, BNS-GCN against its expectation, and their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from rig import Rig, blocks, digits, rig, tangled
from test_bytes import boundaries, encoder_parameters, training_kinds

from farflung.graph import Graph, choose_split, load
from farflung.methods.synchronous_trainer import SynchronousTrainer
from farflung.nn import flat

ENCODERS = ["gcn", "sage", "gat"]
CUTS = [(2, "random"), (5, "random"), (2, "mincut"), (5, "mincut")]


def trained(graph: Graph, method: str, **options: object) -> Rig:
    usual: dict[str, object] = {"dtype": "float64", "steps": 20, "interval": 10, "keep": "last"}
    return rig(graph, method, **{**usual, **options}).train()  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("graph", [blocks, tangled, digits])
def test_it_is_training_in_one_place(graph: Callable[[], Graph], encoder: str, layers: int) -> None:
    central = trained(graph(), "centralised", encoder=encoder, layers=layers)
    start = flat.pack(rig(graph(), "centralised", encoder=encoder, layers=layers, dtype="float64").setting.model)
    assert np.abs(central.vector() - start).max() > 0.05
    for parts, by in CUTS if graph is not digits else CUTS[1:3]:
        run = trained(graph(), "synchronous", encoder=encoder, layers=layers, parts=parts, by=by)
        assert np.abs(run.vector() - central.vector()).max() <= 1e-9
        for here, there in zip(run.history, central.history, strict=True):
            assert here.val == there.val
            assert here.loss == pytest.approx(there.loss, abs=1e-9)


class Gradients:
    """The first gradient that reaches the server's optimiser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first: np.ndarray | None = None
        step = torch.optim.Adam.step

        def seen(optimiser: torch.optim.Adam, *args: object) -> object:
            if self.first is None:
                grads = [p.grad.reshape(-1) for group in optimiser.param_groups for p in group["params"]]
                self.first = torch.cat(grads).numpy().copy()
            return step(optimiser, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(torch.optim.Adam, "step", seen)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("parts", "by"), CUTS)
def test_first_gradients_in_float32(encoder: str, parts: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for method in ("centralised", "synchronous"):
        with monkeypatch.context() as patch:
            seen = Gradients(patch)
            trained(digits(), method, encoder=encoder, parts=parts, by=by, dtype="float32", steps=1, interval=1)
        assert seen.first is not None
        found.append(seen.first)
    central, here = found
    assert np.abs(central).max() > 1e-3
    assert np.abs(here - central).max() <= 1e-4 * np.abs(central).max()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_whole_of_each_boundary_is_synchronous_to_the_bit(encoder: str) -> None:
    plain = trained(digits(), "synchronous", encoder=encoder, dtype="float32", dropout=0.3)
    whole = trained(digits(), "synchronous", encoder=encoder, dtype="float32", dropout=0.3, boundary_rate=1.0)
    assert (plain.vector() == whole.vector()).all()
    assert plain.ledger == whole.ledger
    again = trained(digits(), "synchronous", encoder=encoder, dtype="float32", dropout=0.3, boundary_rate=0.3)
    other = trained(digits(), "synchronous", encoder=encoder, dtype="float32", dropout=0.3, boundary_rate=0.3)
    assert (again.vector() == other.vector()).all() and (again.vector() != plain.vector()).any()


@pytest.mark.parametrize("rate", [1.0, 0.1, 0.5])
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_bytes(layers: int, encoder: str, rate: float) -> None:
    graph, T, W = digits(), 3, 4
    run = trained(
        graph, "synchronous", dtype="float32", encoder=encoder, layers=layers, hidden=8, parts=W, steps=T,
        boundary_rate=rate,
    )  # fmt: skip
    pairs = boundaries(graph, run.partition.assignment)
    b = sum(len(nodes) for nodes in pairs.values())
    drawn = sum(math.ceil(rate * len(nodes)) for nodes in pairs.values())
    P = encoder_parameters(encoder, [graph.num_features] + [8] * (layers - 1) + [graph.num_classes])
    rows = {kind: 4 * T * drawn * 8 * (layers - 1) for kind in ("embeddings", "embedding-gradients") if layers > 1}
    expected = {"features": 4 * b * graph.num_features, **rows, "gradients": 4 * T * W * P, "weights": 4 * T * W * P}
    assert training_kinds(run) == expected
    assert run.ledger.training() == 4 * b * graph.num_features + 8 * T * drawn * 8 * (layers - 1) + 8 * W * T * P


def test_sparse_features_are_counted_as_they_are_sent(data_dir: object) -> None:
    graph = choose_split(load("cora"), "public", 0)
    run = trained(graph, "synchronous", dtype="float32", steps=1, interval=1, parts=3)
    size = 0
    for nodes in boundaries(graph, run.partition.assignment).values():
        rows = graph.x[np.sort(list(nodes))]  # type: ignore[index]
        size += rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes
    assert run.ledger.total("features") == size


def trainers(graph: Graph, encoder: str, rate: float) -> list[SynchronousTrainer]:
    run = rig(graph, "synchronous", encoder=encoder, layers=2, dtype="float64", boundary_rate=rate, parts=3)
    return [run.team._trainers[k] for k in range(3)]  # type: ignore[misc]


@pytest.mark.parametrize("encoder", ["gcn", "sage"])  # attention is not linear in the rows
def test_the_sampled_aggregate_is_unbiased(encoder: str) -> None:
    """The mean over draws of what layer 1 gathers, against what it gathers from all rows."""
    graph, rng, draws = tangled(), np.random.default_rng(0), 4000
    h = rng.normal(size=(graph.num_nodes, 3))
    sampled = trainers(graph, encoder, 0.3)
    checked = 0
    for trainer in sampled:
        shard = trainer.shard
        if not shard.num_halo:
            continue
        aggregation = trainer.model.layers[1].aggregation
        inner = torch.from_numpy(h[shard.inner])
        total, squares = torch.zeros(shard.num_inner, 3, dtype=torch.float64), 0.0
        for step in range(draws):
            trainer.draw.anew(step)
            trainer.drawn.clear()
            came = torch.empty(len(trainer.draw.places), 3, dtype=torch.float64)
            for number, place in trainer.draw.slices().items():
                owner = sampled[number]
                owner.draw.anew(step)
                chosen, scale = owner.draw.sent(shard.part)
                assert (owner.shard.inner[chosen] == shard.halo[trainer.draw.places[place]]).all(), "equal at both ends"
                came[place] = torch.from_numpy(h[owner.shard.inner[chosen]]) * scale
            found = trainer._matrix(aggregation) @ torch.cat([inner, came])
            total += found
            squares += found**2
        mean = total / draws
        error = torch.sqrt((squares / draws - mean**2).clamp(min=0) / draws)
        full = trainer._whole(aggregation) @ torch.cat([inner, torch.from_numpy(h[shard.halo])])
        assert error.max() > 0
        assert ((mean - full).abs() <= 5 * error + 1e-12).all()
        checked += 1
    assert checked


def test_training_on_a_tenth_of_the_rows_learns() -> None:
    run = trained(digits(), "synchronous", encoder="sage", steps=60, boundary_rate=0.1, parts=4)
    assert run.history[-1].val["accuracy"] > 0.9  # type: ignore[index,operator]


def test_parts_without_boundary_without_labels_and_without_nodes() -> None:
    graph = tangled()
    central = trained(graph, "centralised")
    alone = np.full(graph.num_nodes, 3, dtype=np.int32)
    alone[graph.split.train] = 0  # type: ignore[union-attr]
    alone[34:] = 1  # isolated nodes: no boundary; part 2 is empty
    for rate in (1.0, 0.5):
        run = trained(graph, "synchronous", assignment=alone, parts=4, boundary_rate=rate)
        assert np.isfinite(run.vector()).all()
        if rate == 1:
            assert np.abs(run.vector() - central.vector()).max() <= 1e-9


def test_patience_ends_training() -> None:
    run = trained(digits(), "synchronous", steps=4000, lr=0.05, interval=5, patience=3, parts=2)
    best = max(range(len(run.history)), key=lambda r: run.history[r].val["accuracy"])  # type: ignore[index,arg-type]
    assert len(run.history) == best + 4 < 800
    tma = trained(digits(), "tma", steps=4000, lr=0.05, interval=5, patience=3, parts=2)
    assert len(tma.history) < 800 and not any(record.best for record in tma.history[-3:])


def test_seconds_end_rounds_and_training() -> None:
    run = trained(digits(), "synchronous", interval="2s", time_limit="5s", costs={"step": 0.5, "layer": 0.25}, parts=2)
    assert [record.steps[0] for record in run.history] == [2, 2, 1]
