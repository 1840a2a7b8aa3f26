"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from farflung.graph import Graph, Split, load

settings.register_profile("untimed", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real graphs; tests that need it are skipped where there is none."""
    folder = os.environ.get("FARFLUNG_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("FARFLUNG_DATA names no folder of graphs")
    return Path(folder)


@pytest.fixture(scope="session")
def digits() -> Graph:
    """The digits graph, 1,797 nodes, no split chosen."""
    return load("digits")


@pytest.fixture
def path_graph() -> Graph:
    """0 - 1 - 2 and the isolated node 3; 2 features, 2 classes, a split; undirected."""
    masks = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=np.bool_)
    return Graph.from_edges(
        [0, 1],
        [1, 2],
        num_nodes=4,
        symmetric=True,
        x=np.arange(8, dtype=np.float32).reshape(4, 2),
        y=[0, 1, 0, 1],
        split=Split(*masks),
        name="path",
    )


@pytest.fixture
def loopy_graph() -> Graph:
    """Directed; 5 nodes, a self-loop at 2, the edge 0 -> 1 twice, node 4 isolated; 3 features, weights."""
    return Graph.from_edges(
        [0, 0, 2, 3, 1],
        [1, 1, 2, 1, 3],
        num_nodes=5,
        x=np.arange(15, dtype=np.float32).reshape(5, 3),
        y=[0, 1, 2, 1, -1],
        edge_weight=[1.0, 2.0, 3.0, 4.0, 5.0],
        name="loopy",
    )
