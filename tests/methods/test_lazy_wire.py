"""Fewer bytes for the rows that lazy training exchanges: what they cost, and what they change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rig import Rig, blocks, digits, rig
from test_bytes import boundaries, cora, training_kinds

from farflung.team.rows import from_arrays, to_arrays


def bytes_of_rows(b: int, d: int, wire: str) -> int:
    return {"float32": 4 * b * d, "float16": 2 * b * d, "int8": b * (d + 8)}[wire]


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
def test_bytes_are_the_formula(wire: str, layers: int) -> None:
    run = rig(blocks(), "lazy", parts=3, layers=layers, hidden=8, steps=7, wire=wire).train()
    plain = rig(blocks(), "lazy", parts=3, layers=layers, hidden=8, steps=7).train()
    b = sum(len(nodes) for nodes in boundaries(run.graph, run.partition.assignment).values())
    kinds = training_kinds(run)
    assert kinds["features"] == bytes_of_rows(b, run.graph.num_features, wire)
    assert kinds["embeddings"] == (layers - 1) * bytes_of_rows(b, 8, wire)
    for kind in ("gradients", "weights"):
        assert kinds[kind] == training_kinds(plain)[kind]
    assert np.array_equal(run.vector(), plain.vector()) == (wire == "float32")


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_bags_of_words_travel_sparse_and_exact(wire: str, data_dir: Path) -> None:
    graph = cora(data_dir)
    run = rig(graph, "lazy", parts=3, layers=1, steps=5, keep="last", wire=wire).train()
    expected = 0
    for nodes in boundaries(graph, run.partition.assignment).values():
        z, b = int(np.diff(graph.x.indptr)[sorted(nodes)].sum()), len(nodes)
        expected += (6 if wire == "float16" else 5) * z + 4 * (b + 1) + (8 * b if wire == "int8" else 0)
    assert training_kinds(run)["features"] == expected
    plain = rig(graph, "lazy", parts=3, layers=1, steps=5, keep="last").train()
    assert set(graph.x.data.tolist()) == {1.0}, "ones survive any rounding"
    assert np.array_equal(run.vector(), plain.vector())


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_own_rows_stay_exact_and_halo_rows_are_what_was_sent(wire: str) -> None:
    run = rig(blocks(), "lazy", parts=3, layers=1, steps=1, wire=wire).train()
    for k, trainer in run.team._trainers.items():
        assert trainer.embeddings[0] is trainer.shard.x
        for owner, rows in trainer.halo.rows.items():
            sender = run.team._trainers[owner]
            exact = np.asarray(sender.shard.x)[sender.shard.boundary_for(k)]
            assert not np.array_equal(rows, exact)
            assert np.array_equal(rows, from_arrays(to_arrays("features/0", exact, wire), 0, exact.shape[1]))


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_accuracy_is_that_of_exact_rows(encoder: str, wire: str) -> None:
    def accuracy(wire: str) -> float:
        run: Rig = rig(digits(), "lazy", parts=4, encoder=encoder, steps=120, wire=wire, hidden=32).train()
        found = run.evaluator.metrics(run.keeper.best, "test")["test"]["accuracy"]
        assert found is not None
        return found

    exact = accuracy("float32")
    assert exact > 0.9
    assert abs(accuracy(wire) - exact) < 0.01


@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_rows_that_are_no_numbers_are_refused_and_named(wire: str) -> None:
    run = rig(blocks(), "lazy", parts=3, steps=6, wire=wire, faults="nan:1@0", keep="last").train()
    assert run.history[0].absent.keys() == {1}
    assert np.isfinite(run.vector()).all()
    assert 1 in run.history[-1].steps and not run.history[-1].absent
