"""The degree without loops against a naive loop and against the sum in float64, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.graph import Graph
from farflung.graph.degrees import degree_without_loops


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_sum_in_the_order_of_the_edges_to_the_bit(weighted: bool, index: type) -> None:
    rng = np.random.default_rng(0)
    weight = rng.random(500).astype(np.float32) if weighted else None
    drawn = Graph.from_edges(rng.integers(0, 15, 500), rng.integers(0, 17, 500), num_nodes=20, edge_weight=weight)
    indices, destinations = drawn.indices.astype(index), drawn.destinations()
    found = degree_without_loops(drawn.indptr, indices, drawn.edge_weight)
    expected = np.zeros(20)
    for e, (u, v) in enumerate(zip(indices, destinations, strict=True)):
        if u != v:
            expected[v] += 1.0 if drawn.edge_weight is None else np.float64(drawn.edge_weight[e])
    assert found.dtype == np.float64
    assert found.tobytes() == expected.tobytes()
    weights = (indices != destinations).astype(np.float64) * (1.0 if drawn.edge_weight is None else drawn.edge_weight)
    assert found.tobytes() == np.bincount(destinations, weights=weights, minlength=20).tobytes()


def test_loops_do_not_count_and_isolated_nodes_have_none(loopy_graph: Graph) -> None:
    found = degree_without_loops(loopy_graph.indptr, loopy_graph.indices, loopy_graph.edge_weight)
    assert found.tolist() == [0.0, 7.0, 0.0, 5.0, 0.0]
    assert degree_without_loops(loopy_graph.indptr, loopy_graph.indices).tolist() == [0.0, 3.0, 0.0, 1.0, 0.0]
    assert degree_without_loops(np.zeros(1, np.int64), np.empty(0, np.int32)).shape == (0,)
