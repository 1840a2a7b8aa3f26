"""The classic check: the two-layer GCN of Kipf and Welling on the public split of Cora."""

from __future__ import annotations

from pathlib import Path

from rig import rig

from farflung.graph import choose_features, choose_split, load
from farflung.methods.presets import PRESETS


def test_cora_by_the_classic_gcn(data_dir: Path) -> None:
    graph = choose_split(choose_features(load("cora"), "given", "row", 0), "public", 0)
    defaults = PRESETS["gcn-kipf"].defaults
    assert defaults["normalise"] == "row" and defaults["split"] == "public"
    run = rig(graph, "centralised", **defaults["model"], **defaults["optim"], **defaults["train"]).train()
    test = run.evaluator.metrics(run.keeper.chosen("best"), "test")["test"]["accuracy"]
    assert test >= 0.795
    assert run.history[0].val["accuracy"] < 0.6
