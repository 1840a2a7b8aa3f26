"""Edge columns to CSR: ids, ranges, duplicates, loops, reverse edges (pitfalls 1, 2, 3, 6, 9)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.graph import Graph, Split, csr_by_destination, differences, from_edges, is_symmetric, symmetrise


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A node count and edges, loops and duplicates included; often with isolated nodes."""
    n = draw(st.integers(1, 8))
    node = st.integers(0, n - 1)
    return n, draw(st.lists(st.tuples(node, node), max_size=25))


def columns(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))


@given(edge_lists())
def test_csr_equals_a_sort(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    indptr, indices, order = csr_by_destination(*columns(edges), n)
    expected = sorted(range(len(edges)), key=lambda e: (edges[e][1], edges[e][0], e))
    assert order.tolist() == expected
    assert indices.tolist() == [edges[e][0] for e in expected]
    assert indptr.tolist() == [sum(d < v for _, d in edges) for v in range(n + 1)]
    assert indptr.dtype == np.int64 and order.dtype == np.int64


@given(edge_lists())
def test_symmetrise_adds_exactly_the_missing_reverse_edges(case: tuple[int, list[tuple[int, int]]]) -> None:
    n, edges = case
    graph = from_edges(
        *columns(edges), num_nodes=n, edge_weight=np.arange(len(edges)), edge_columns={"w": np.arange(len(edges))}
    )
    there = set(edges)
    assert is_symmetric(graph) == all((d, s) in there for s, d in edges)
    both = symmetrise(graph)
    added = [(d, s) for s, d in edges if (d, s) not in there]
    assert sorted(edges_of(both)) == sorted(edges + added)
    assert is_symmetric(both)
    assert symmetrise(both) is both
    assert any(f"{len(added)} reverse edges" in note for note in both.notes) == bool(added)
    weight_of = {(s, d, w) for w, (s, d) in enumerate(edges)}
    for (s, d), w, column in zip(edges_of(both), both.edge_weight, both.edge_columns["w"], strict=True):
        assert w == column
        assert (s, d, int(w)) in weight_of or (d, s, int(w)) in weight_of


@given(edge_lists())
def test_sum_counts_what_keep_keeps(case: tuple[int, list[tuple[int, int]]]) -> None:
    """Pitfall 2: the dense adjacency is the same, so a GCN's output is too."""
    n, edges = case
    dense = np.zeros((n, n))
    for s, d in edges:
        dense[d, s] += 1
    for policy in ("keep", "sum"):
        graph = from_edges(*columns(edges), num_nodes=n, duplicates=policy)
        built = np.zeros((n, n))
        weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
        np.add.at(built, (graph.destinations(), graph.indices), weight)
        assert np.array_equal(built, dense)
    assert (graph.edge_weight is None) == (len(set(edges)) == len(edges))
    assert graph.num_edges == len(set(edges))


def test_pitfall_1_isolated_nodes_stay() -> None:
    split = Split(*np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]], np.bool_))
    graph = from_edges([0], [1], num_nodes=4, x=np.eye(4), y=[0, 1, 0, 1], split=split)
    assert graph.num_nodes == 4
    assert graph.in_degree().tolist() == [0, 1, 0, 0]
    assert graph.x.shape == (4, 4) and graph.y.tolist() == [0, 1, 0, 1] and graph.split.test[3]


def test_pitfall_1_features_for_fewer_nodes_are_an_error() -> None:
    with pytest.raises(InputError, match="`x` needs a row per node: expected 4, found 2; isolated"):
        from_edges([0], [1], num_nodes=4, x=np.eye(2))


def test_pitfall_2_duplicates_follow_the_policy_and_are_counted() -> None:
    kept = from_edges([0, 0, 1], [1, 1, 0], num_nodes=2)
    assert kept.num_edges == 3 and "1 duplicate edge kept" in kept.notes
    summed = from_edges([0, 0, 1], [1, 1, 0], num_nodes=2, duplicates="sum", edge_weight=[1, 2.5, 4])
    assert summed.edge_weight.tolist() == [4, 3.5] and "1 duplicate edge summed into edge_weight" in summed.notes
    with pytest.raises(InputError, match="edge at row 1 is a duplicate"):
        from_edges([0, 0, 1], [1, 1, 0], num_nodes=2, duplicates="error")
    with pytest.raises(InputError, match="keep, sum, error, found 'drop'"):
        from_edges([0], [1], num_nodes=2, duplicates="drop")
    with pytest.raises(InputError, match="cannot merge `edge_attr`"):
        from_edges([0, 0], [1, 1], num_nodes=2, duplicates="sum", edge_attr=np.ones((2, 3)))


def test_edges_of_different_types_are_no_duplicates() -> None:
    graph = from_edges([0, 0, 0], [1, 1, 1], num_nodes=2, edge_type=[1, 0, 1], duplicates="sum")
    assert graph.edge_type.tolist() == [0, 1] and graph.edge_weight.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ([0, -5], [1, 1], "`source`.*found -5 at row 1.*int64"),
        ([0, 1], [1, 2], "`destination`: expected node rows 0 to 1, found 2 at row 1"),
        (np.array([0, 2**31 + 5], np.int64).astype(np.int32), [1, 1], "at row 1.*int64"),
        ([0, 2**70], [1, 1], "beyond 2\\^63 - 1"),
        (np.array([0, 2**63], np.uint64), [1, 1], "id 9223372036854775808 at row 1"),
        ([0.0, 1.5], [1, 1], "`source`: expected integer or string ids, found float64"),
        ([0], [1, 1], "differ in length: 1 sources, 2 destinations"),
    ],
)
def test_pitfall_3_bad_rows_are_named(source: object, destination: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_edges(source, destination, num_nodes=2)


def test_pitfall_3_negative_ids_without_num_nodes() -> None:
    with pytest.raises(InputError, match="row 1 of edge column `destination`"):
        from_edges([5, 6], [7, -1])


def test_integer_ids_are_kept_unless_they_are_the_rows() -> None:
    big = 2**40
    graph = from_edges([big, 7], [7, 9])
    assert graph.ids.tolist() == [7, 9, big] and edges_of(graph) == [(2, 0), (0, 1)]
    assert graph.original_ids is graph.ids
    assert from_edges([0, 1], [1, 2]).ids is None


def test_nodes_fixes_the_order_and_holds_isolated_nodes() -> None:
    graph = from_edges(["b"], ["a"], nodes=["b", "z", "a"], x=[[1], [2], [3]])
    assert graph.ids.tolist() == ["b", "z", "a"] and edges_of(graph) == [(0, 2)]
    assert graph.x[:, 0].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="`source`: q at row 0 is not in `nodes`"):
        from_edges(["q"], ["a"], nodes=["a", "b"])
    with pytest.raises(InputError, match="`ids` must be unique, found a twice"):
        from_edges(["a"], ["a"], nodes=["a", "a"])
    with pytest.raises(InputError, match="not both"):
        from_edges([0], [1], nodes=[0, 1], num_nodes=2)


_STRINGS = """
from farflung.graph import from_edges
g = from_edges(["b", "c"], ["a", "b"], y=["dog", None, "cat"])
print(g.ids.tolist(), g.y.tolist(), g.class_names, g.indptr.tolist(), g.indices.tolist())
"""


def test_pitfall_6_strings_are_mapped_alike_in_two_processes() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", _STRINGS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] == "['a', 'b', 'c'] [1, -1, 0] ('cat', 'dog') [0, 1, 2, 2] [1, 2]\n"


def test_strings_need_nodes_for_isolated_ones() -> None:
    with pytest.raises(InputError, match="`source` holds strings, found 'a' at row 0: list all ids in `nodes`"):
        from_edges(["a"], ["b"], num_nodes=3)
    with pytest.raises(InputError, match="`destination` holds strings, found 'a' at row 0: list all ids in `nodes`"):
        Graph.from_edges([0, 1], ["a", "b"], num_nodes=3)
    with pytest.raises(InputError, match="all strings or all integers, found 1"):
        from_edges(np.array(["a", 1], object), ["b", "c"])
    with pytest.raises(InputError, match="differ in kind"):
        from_edges([1], ["b"])


def test_pitfall_9_loops_are_kept_and_reported(loopy_graph: Graph) -> None:
    assert (2, 2) in edges_of(loopy_graph)
    assert "1 self-loop kept" in loopy_graph.notes
    assert edges_of(symmetrise(loopy_graph)).count((2, 2)) == 1


def test_direction_stays_unless_symmetric_is_asked_for() -> None:
    assert edges_of(from_edges([0, 0, 1], [1, 2, 2], num_nodes=3)) == [(0, 1), (0, 2), (1, 2)]
    both = from_edges([0, 0, 1], [1, 2, 2], num_nodes=3, symmetric=True)
    assert is_symmetric(both) and "made symmetric: 3 reverse edges added" in both.notes


def test_a_graph_without_edges() -> None:
    graph = from_edges([], [], num_nodes=3, symmetric=True, duplicates="sum", edge_type=np.empty(0, np.int64))
    assert graph.num_edges == 0 and graph.num_nodes == 3 and is_symmetric(graph)
    assert from_edges([], []).num_nodes == 0


def test_edge_fields_follow_their_edges() -> None:
    graph = from_edges(
        [2, 0, 1],
        [0, 2, 0],
        num_nodes=3,
        edge_attr=[[20], [2], [10]],
        edge_weight=[20, 2, 10],
        edge_type=[2, 0, 1],
        edge_columns={"name": ["c", "a", "b"]},
    )
    assert graph.indices.tolist() == [1, 2, 0]
    assert graph.edge_attr[:, 0].tolist() == graph.edge_weight.tolist() == [10, 20, 2]
    assert graph.edge_type.tolist() == [1, 2, 0] and graph.edge_columns["name"].tolist() == ["b", "c", "a"]
    with pytest.raises(InputError, match="`edge_weight` needs a row per edge: expected 1"):
        from_edges([0], [1], num_nodes=2, edge_weight=[1, 2])
    with pytest.raises(InputError, match="`edge_type`: expected 0 to 32767, found 40000 at row 0"):
        from_edges([0], [1], num_nodes=2, edge_type=[40000])


def test_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown field `labels`.*split"):
        from_edges([0], [1], num_nodes=2, labels=[0, 1])


def test_differences_names_the_fields(path_graph: Graph) -> None:
    other = path_graph.with_(y=path_graph.y + 1, name="other", columns={"a": np.zeros(4)})
    assert differences(path_graph, other) == ["y", "columns", "name"]
    assert differences(path_graph, path_graph.with_()) == []


def test_both_columns_in_one_argument_are_named():
    with pytest.raises(InputError, match=r"two columns: give from_edges\(edge_index\[0\], edge_index\[1\]\)"):
        Graph.from_edges(np.array([[0, 1], [1, 2]]))
