"""Parts of a graph as graphs, against loops over nodes and edges."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from farflung.graph import Graph, Split
from farflung.graph.subgraph import between, with_edges, with_nodes

N = 12


def full(sparse: bool = False, types: bool = False) -> Graph:
    """Loops, duplicates, isolated nodes, and something in every field."""
    rng = np.random.default_rng(0)
    source, destination = rng.integers(0, N - 2, (2, 40))
    source[:2], destination[:2] = [3, 3], [3, 3]
    x = rng.normal(size=(N, 3)).astype(np.float32)
    place = np.arange(N) % 4
    graph = Graph.from_edges(
        source,
        destination,
        num_nodes=N,
        x=sp.csr_matrix(x) if sparse else x,
        y=np.arange(N) % 3,
        edge_weight=rng.random(40).astype(np.float32),
        edge_type=rng.integers(0, 2, 40).astype(np.int16),
        edge_attr=rng.random((40, 2)).astype(np.float32),
    )
    if types:
        kind = np.sort(np.arange(N) % 2).astype(np.int16)
        graph = graph.with_(node_type=kind, features=(x[kind == 0], x[kind == 1][:, :2]))
    return graph.with_(
        ids=np.array([f"n{v}" for v in range(N)]),
        split=Split(place == 0, place == 1, place == 2),
        columns={"region": np.arange(N) // 3},
        edge_columns={"when": np.arange(40)},
    )


def edges(graph: Graph) -> list[tuple[object, ...]]:
    """Everything about each edge, by original ids, in order."""
    ids = graph.original_ids
    return [
        (ids[graph.indices[e]], ids[v], graph.edge_weight[e], graph.edge_type[e], *graph.edge_attr[e], w)
        for v in range(graph.num_nodes)
        for e, w in zip(
            range(graph.indptr[v], graph.indptr[v + 1]),
            graph.edge_columns["when"][graph.indptr[v] : graph.indptr[v + 1]],
            strict=True,
        )
    ]


CHOICES = [np.arange(N) % 3 > 0, np.arange(N) < 5, np.ones(N, bool), np.zeros(N, bool), np.arange(N) == 3]


@pytest.mark.parametrize("keep", CHOICES)
@pytest.mark.parametrize(("sparse", "types"), [(False, False), (True, False), (False, True)])
def test_nodes_keep_all_they_carry_and_the_edges_among_them(keep: np.ndarray, sparse: bool, types: bool) -> None:
    graph = full(sparse, types)
    part = with_nodes(graph, keep)
    chosen = {f"n{v}" for v in np.flatnonzero(keep)}
    assert part.original_ids.tolist() == [f"n{v}" for v in range(N) if keep[v]]
    assert edges(part) == [e for e in edges(graph) if e[0] in chosen and e[1] in chosen]
    assert part.y.tolist() == graph.y[keep].tolist()
    assert part.columns["region"].tolist() == graph.columns["region"][keep].tolist()
    for mask in ("train", "val", "test"):
        assert getattr(part.split, mask).tolist() == getattr(graph.split, mask)[keep].tolist()
    rows = [[] for _ in graph.features]
    seen = [0] * len(graph.features)
    for v in range(N):
        t = 0 if graph.node_type is None else int(graph.node_type[v])
        block = graph.features[t].toarray() if sparse else graph.features[t]
        if keep[v]:
            rows[t].append(block[seen[t]].tolist())
        seen[t] += 1
    for block, expected in zip(part.features, rows, strict=True):
        assert (block.toarray() if sparse else block).tolist() == expected


@pytest.mark.parametrize("keep", [np.arange(40) % 2 == 0, np.zeros(40, bool), np.ones(40, bool)])
def test_edges_keep_all_they_carry(keep: np.ndarray) -> None:
    graph = full()
    part = with_edges(graph, keep)
    assert edges(part) == [e for e, kept in zip(edges(graph), keep, strict=True) if kept]
    assert part.num_nodes == N and part.x is graph.x


def test_edges_between_nodes_have_both_ends_there() -> None:
    graph, nodes = full(), np.arange(N) % 2 == 0
    ends = list(zip(graph.indices, graph.destinations(), strict=True))
    assert between(graph, nodes).tolist() == [bool(nodes[u] and nodes[v]) for u, v in ends]
