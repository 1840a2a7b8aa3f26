"""Lazy training against a loop written out here, and its independence of how the graph is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracle import lazy_loop
from rig import Rig, blocks, digits, flat_vector, rig, tangled

from farflung.graph import Graph, Split, choose_split, load

CUTS = [(1, "random"), (2, "random"), (5, "random"), (2, "mincut"), (5, "mincut")]


def held_logits(run: Rig, keep: str) -> np.ndarray:
    """Class scores that the trainers compute from the rows they hold, in the order of the graph."""
    weights = run.keeper.chosen(keep)
    last = max(int(name.split(".")[1]) for name in weights)
    vector = flat_vector({name: value for name, value in weights.items() if name.startswith(f"stack.{last}.")})
    logits = np.full((run.graph.num_nodes, run.graph.num_classes), np.nan)
    for shard, held in zip(run.partition.shards, run.reveal(weights=vector), strict=True):
        logits[shard.inner] = held.arrays["embeddings/logits"]
    return logits


def check_cuts(graph: Graph, encoder: str, keep: str, rounds: int = 50, layers: int = 2) -> None:
    found = []
    for parts, by in CUTS:
        run = rig(
            graph,
            "lazy",
            parts=parts,
            by=by,
            encoder=encoder,
            dtype="float64",
            steps=rounds * layers,
            layers=layers,
            keep=keep,
        ).train()
        central = run.logits(keep)
        assert np.abs(central - held_logits(run, keep)).max() <= 1e-9
        found.append((central, [(record.loss, record.val["accuracy"], record.best) for record in run.history]))
    first, history = found[0]
    assert np.isfinite(first).all() and np.ptp(first) > 0.1
    for other, records in found[1:]:
        assert np.abs(other - first).max() <= 1e-9
        assert [record[1:] for record in records] == [record[1:] for record in history]
        assert np.allclose([record[0] for record in records], [record[0] for record in history], rtol=0, atol=1e-9)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_digits_do_not_depend_on_the_cut(encoder: str, keep: str) -> None:
    check_cuts(digits(), encoder, keep)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_cora_does_not_depend_on_the_cut(encoder: str, keep: str, data_dir: Path) -> None:
    check_cuts(choose_split(load("cora"), "public", 0), encoder, keep)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_loops_isolated_nodes_and_directed_edges_do_not_depend_on_the_cut(encoder: str, keep: str) -> None:
    check_cuts(tangled(), encoder, keep, layers=2)
    check_cuts(tangled(), encoder, keep, rounds=20, layers=3)


@pytest.mark.parametrize("graph", [blocks, tangled])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_it_is_the_loop_of_the_paper(encoder: str, layers: int, graph) -> None:  # type: ignore[no-untyped-def]
    run = rig(
        graph(), "lazy", parts=3, encoder=encoder, layers=layers, dtype="float64", steps=10 * layers, keep="last"
    ).train()
    weights, losses = lazy_loop(run, rounds=[10] * layers)
    assert np.abs(run.vector() - weights).max() <= 1e-9
    assert np.allclose([record.loss for record in run.history], losses, rtol=0, atol=1e-9)


def test_decay_of_the_first_layer_alone() -> None:
    run = rig(blocks(), "lazy", dtype="float64", steps=20, keep="last", weight_decay=0.1, decay="first").train()
    weights, _ = lazy_loop(run, rounds=[10, 10])
    assert np.abs(run.vector() - weights).max() <= 1e-9


def test_the_first_best_of_each_layer_is_kept_and_built_upon() -> None:
    run = rig(digits(), "lazy", dtype="float64", steps=80, lr=0.05)
    kept: dict[int, np.ndarray] = {}
    run.diary.after = lambda record: kept.setdefault(record.round, run.vector("last"))
    run.train()
    chosen = {}
    for layer, rounds in ((0, range(40)), (1, range(40, 80))):
        scores = [run.history[r].val["accuracy"] for r in rounds]
        chosen[layer] = rounds[int(np.argmax(scores))]
        assert [r for r in rounds if run.history[r].best] == [
            r for i, r in enumerate(rounds) if scores[i] > max(scores[:i], default=-1)
        ]
    assert chosen[0] < 39, "this test wants a best round before the last"
    assert run.keeper.best_round == chosen[1]
    assert np.array_equal(run.vector("best"), kept[chosen[1]])
    first = len(flat_vector(run.setting.model.layers[0].state_dict()))
    assert np.array_equal(run.vector("best")[:first], kept[chosen[0]][:first])


def test_without_validation_nodes_the_last_weights_count() -> None:
    graph = blocks()
    split = Split(graph.split.train, np.zeros(graph.num_nodes, bool), graph.split.test)
    best = rig(graph.with_(split=split), "lazy", steps=10, dtype="float64", keep="best").train()
    last = rig(graph.with_(split=split), "lazy", steps=10, dtype="float64", keep="last").train()
    assert best.keeper.best_round is None
    assert np.array_equal(best.vector("best"), last.vector("last"))
    assert np.abs(held_logits(best, "best") - best.logits("best")).max() <= 1e-9


def test_two_labels_per_node_train_alike() -> None:
    """Multi-label graphs have a loss of their own, and still do not depend on the cut."""
    graph = blocks()
    y = np.stack([graph.y == 0, graph.y != 1, graph.y == 2], axis=1).astype(np.uint8)
    check_cuts(graph.with_(y=y, class_names=None), "gcn", "best", rounds=15)
