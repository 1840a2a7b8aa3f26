"""The classic check: the two-layer GCN of Kipf and Welling on public Planetoid splits."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import rig

from farflung.graph import choose_features, choose_split, load
from farflung.methods.presets import PRESETS


@pytest.mark.parametrize(("name", "published"), [("cora", 0.815), ("citeseer", 0.703)])
def test_the_classic_gcn_reaches_what_was_published(data_dir: Path, name: str, published: float) -> None:
    """One seed each; docs/benchmarks.md has five, and pubmed."""
    graph = choose_split(choose_features(load(name), "given", "row", 0), "public", 0)
    defaults = PRESETS["gcn-kipf"].defaults
    assert defaults["normalise"] == "row" and defaults["split"] == "public"
    run = rig(graph, "centralised", **defaults["model"], **defaults["optim"], **defaults["train"]).train()
    test = run.evaluator.metrics(run.keeper.chosen("best"), "test")["test"]["accuracy"]
    assert test >= published - 0.015
    assert run.history[0].val["accuracy"] < 0.6
