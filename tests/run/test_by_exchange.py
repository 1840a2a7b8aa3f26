"""A saved run on a partition folder: trainers infer together, and nothing puts the graph together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farflung
from farflung.graph import choose_split
from farflung.run.saved import SavedRun


@pytest.mark.parametrize("encoder", ["sage", "gat"])
def test_predictions_embeddings_and_scores_are_the_central_ones(encoder: str, tmp_path: Path) -> None:
    graph = choose_split(farflung.load("sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"), "random", 0)
    farflung.cut(graph, by="random", parts=3).save(tmp_path / "parts")
    run = farflung.train(
        tmp_path / "parts", method="random-tma", encoder=encoder, hidden=8, steps=30, threads=1, out=tmp_path / "run"
    )
    saved = SavedRun.open(tmp_path / "run")
    assert saved.graph is None and saved.parts is not None
    assert np.abs(saved.predict().probabilities - run.predict().probabilities).max() < 1e-5
    assert np.abs(saved.embed().rows - run.embed().rows).max() < 1e-5
    assert saved.evaluate("test")["test"] == run.test
