"""The classic check: the two-layer GCN of Kipf and Welling on the public split of Cora."""

from __future__ import annotations

from pathlib import Path

from rig import rig

from farflung.graph import choose_features, choose_split, load


def test_cora_by_the_classic_gcn(data_dir: Path) -> None:
    graph = choose_split(choose_features(load("cora"), "given", "row", 0), "public", 0)
    run = rig(
        graph,
        "centralised",
        encoder="gcn",
        hidden=16,
        norm="none",
        dropout=0.5,
        lr=0.01,
        weight_decay=5e-4,
        decay="first",
        steps=200,
        interval=1,
    ).train()
    test = run.evaluator.metrics(run.keeper.chosen("best"), "test")["test"]["accuracy"]
    assert test >= 0.795
    assert run.history[0].val["accuracy"] < 0.6
