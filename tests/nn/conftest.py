"""Graphs of every awkward kind, and the naive matrices to check against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from farflung.graph import Graph

N = 24


def _random(num_edges: int, seed: int, **options: object) -> Graph:
    rng = np.random.default_rng(seed)
    # The last 4 nodes are isolated; the 4 before them have no in-edges.
    source, destination = rng.integers(0, N - 4, num_edges), rng.integers(0, N - 8, num_edges)
    if not options.pop("loops", False):
        source = np.where(source == destination, (source + 1) % (N - 4), source)
    if options.pop("weighted", False):
        options["edge_weight"] = rng.random(num_edges).astype(np.float32) + 0.1
    x = rng.standard_normal((N, 5)).astype(np.float32)
    return Graph.from_edges(source, destination, num_nodes=N, x=x, **options)


KINDS: dict[str, Callable[[], Graph]] = {
    "directed, with duplicates": lambda: _random(120, 0),
    "undirected": lambda: _random(60, 1, symmetric=True, duplicates="sum").with_(edge_weight=None),
    "weighted": lambda: _random(120, 2, weighted=True),
    "loops": lambda: _random(160, 3, loops=True),
    "weighted loops": lambda: _random(160, 4, loops=True, weighted=True),
    "without edges": lambda: Graph.from_edges([], [], num_nodes=3, x=np.ones((3, 5), np.float32)),
    "one node": lambda: Graph.from_edges([], [], num_nodes=1, x=np.ones((1, 5), np.float32)),
    "one node with a loop": lambda: Graph.from_edges([0], [0], num_nodes=1, x=np.ones((1, 5), np.float32)),
    "without nodes": lambda: Graph.from_edges([], [], num_nodes=0, x=np.ones((0, 5), np.float32)),
}


@pytest.fixture(params=KINDS)
def graph(request: pytest.FixtureRequest) -> Graph:
    """A small graph with 5 features; nodes 16 to 19 of the bigger ones only send, 20 to 23 are isolated."""
    return KINDS[request.param]()


def edges_of(graph: Graph) -> list[tuple[int, int, float]]:
    """(source, destination, weight) of each edge."""
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    return [
        (int(graph.indices[e]), v, float(weight[e]))
        for v in range(graph.num_nodes)
        for e in range(graph.indptr[v], graph.indptr[v + 1])
    ]


def naive_matrix(aggregation: str, graph: Graph, present: np.ndarray | None = None) -> np.ndarray:
    """The aggregation matrix, float64 [N, N], by loops over the edges; degrees do not know `present`."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    there = np.ones(graph.num_nodes, bool) if present is None else present
    if aggregation == "mean":
        edges = [edge for edge in edges_of(graph) if there[edge[0]]]
        for u, v, w in edges:
            matrix[v, u] += w / sum(weight for _, destination, weight in edges if destination == v)
        return matrix
    edges = [edge for edge in edges_of(graph) if edge[0] != edge[1]]
    degree = np.ones(graph.num_nodes)
    for _, v, w in edges:
        degree[v] += w
    for u, v, w in edges:
        matrix[v, u] += there[u] * w / np.sqrt(degree[u] * degree[v])
    return matrix + np.diag(1 / degree)


@pytest.fixture(name="naive_matrix")
def _naive_matrix() -> Callable[..., np.ndarray]:
    return naive_matrix
