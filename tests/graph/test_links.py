"""Splits of edges, what training may see, and negatives; against sets of pairs."""

from __future__ import annotations

from collections import Counter

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.graph import Graph, load
from farflung.graph.links import Links, LinkSplit, split_links, training_pairs

Edge = tuple[int, int]


def edges_of(graph: Graph) -> list[Edge]:
    return list(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))


def pairs_of(links: Links) -> list[Edge]:
    return list(zip(links.source.tolist(), links.destination.tolist(), strict=True))


def pair(edge: Edge) -> Edge:
    return min(edge), max(edge)


def random_graph(nodes: int, edges: int, seed: int, symmetric: bool, **fields: object) -> Graph:
    """Loops, duplicates and isolated nodes (the last quarter) included; every edge carries its own number."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(max(1, nodes * 3 // 4), size=(2, edges))
    ends = np.concatenate([ends, [[0, 1], [1, 0]], ends[:, : edges // 4]], axis=1)
    return Graph.from_edges(
        *ends,
        num_nodes=nodes,
        symmetric=symmetric,
        edge_columns={"number": np.arange(ends.shape[1])},
        x=rng.standard_normal((nodes, 2)).astype(np.float32),
        y=np.arange(nodes) % 3,
        **fields,
    )


graphs = st.builds(
    random_graph, st.integers(6, 25), st.integers(0, 40), st.integers(0, 10_000), symmetric=st.booleans()
)


def check_negatives(graph: Graph, links: Links, negatives: int) -> None:
    """None is its source, or joined to it."""
    assert links.negatives.shape == (links.count, negatives) and links.negatives.dtype == np.int32
    joined = set(edges_of(graph))
    for u, row in zip(links.source.tolist(), links.negatives.tolist(), strict=True):
        assert all(0 <= w < graph.num_nodes and w != u and (u, w) not in joined for w in row)


def check_split(graph: Graph, split: LinkSplit, directed: bool) -> None:
    """Every pair is in one split, with all its copies; training keeps the rest and every loop, in order."""
    same = (lambda edge: edge) if directed else pair
    assert split.directed == directed
    val, test = ([same(edge) for edge in pairs_of(links)] for links in (split.val, split.test))
    train = {same(e) for e in edges_of(split.graph) if e[0] != e[1]}
    assert len(set(val)) == len(val) and len(set(test)) == len(test)
    assert not (set(val) & set(test) or set(val) & train or set(test) & train)
    assert {same(e) for e in edges_of(graph) if e[0] != e[1]} == train | set(val) | set(test)
    cut = set(val) | set(test)
    assert edges_of(split.graph) == [e for e in edges_of(graph) if e[0] == e[1] or same(e) not in cut]
    assert set(pairs_of(split.val)) | set(pairs_of(split.test)) <= set(edges_of(graph))
    assert split.train_count == len(train)


@given(graphs, st.integers(0, 100))
@settings(max_examples=60)
def test_every_pair_is_in_one_split_with_all_its_copies(graph: Graph, seed: int) -> None:
    split = split_links(graph, "random:0.5/0.2/0.3", 3, seed)
    there = set(edges_of(graph))
    symmetric = all((v, u) in there for u, v in there)
    check_split(graph, split, directed=not symmetric)
    total = split.train_count + split.val.count + split.test.count
    assert [split.train_count, split.val.count] == [round(0.5 * total), round(0.2 * total)]
    for links in (split.val, split.test):
        check_negatives(graph, links, 3)
    kept = dict(zip(graph.edge_columns["number"].tolist(), edges_of(graph), strict=True))
    numbers = split.graph.edge_columns["number"].tolist()
    assert len(numbers) == split.graph.num_edges
    assert all(symmetric or kept[n] == e for n, e in zip(numbers, edges_of(split.graph), strict=True))
    assert np.array_equal(split.graph.x, graph.x) and np.array_equal(split.graph.y, graph.y)


@given(graphs)
@settings(max_examples=30)
def test_the_papers_way_splits_directed_edges(graph: Graph) -> None:
    split = split_links(graph, "directed:0.5/0.25/0.25", 1, 0)
    check_split(graph, split, directed=True)
    assert "reverses of test edges" in split.graph.notes[-1]


def ring(nodes: int, **fields: object) -> Graph:
    start = np.arange(nodes)
    return Graph.from_edges(start, (start + 1) % nodes, num_nodes=nodes, **{"symmetric": True, **fields})


def test_shares() -> None:
    graph = ring(200)
    sizes = {
        "random": [180, 10, 10],
        "random:0.6/0.3/0.1": [120, 60, 20],
        "random:0.5/0.1/0.1": [100, 20, 20],
        "random:1/0/0": [200, 0, 0],
        "random:0/0/1": [0, 0, 200],
        "directed:0.8/0.1/0.1": [320, 40, 40],
    }
    for name, expected in sizes.items():
        split = split_links(graph, name, 2, 0)
        assert [split.train_count, split.val.count, split.test.count] == expected
        assert split.val.negatives.shape == (expected[1], 2)


def test_undirected_pairs_are_predicted_either_way_round() -> None:
    test = split_links(ring(2000), "random:0/0/1", 1, 0).test
    assert 800 < np.count_nonzero(test.source < test.destination) < 1200


def test_splits_repeat_by_seed_and_are_shuffled() -> None:
    graph = ring(300)
    first, again, other = (split_links(graph, "random:0.2/0.4/0.4", 5, seed) for seed in (1, 1, 2))
    for name in ("source", "destination", "negatives"):
        assert np.array_equal(getattr(first.test, name), getattr(again.test, name))
        assert not np.array_equal(getattr(first.test, name), getattr(other.test, name))
    assert abs(np.corrcoef(first.test.source, np.arange(first.test.count))[0, 1]) < 0.3


def test_negatives_do_not_depend_on_what_else_is_predicted() -> None:
    graph = ring(50)
    tables = [
        {edge: row.tolist() for edge, row in zip(pairs_of(links), links.negatives, strict=True)}
        for name in ("random:0/0/1", "random:0.5/0/0.5")
        for links in [split_links(graph, name, 4, 3).test]
    ]
    common = tables[0].keys() & tables[1].keys()
    assert len(common) >= 5 and all(tables[0][edge] == tables[1][edge] for edge in common)


def test_limited_takes_the_first() -> None:
    graph = ring(40, edge_type=np.arange(40) % 2, symmetric=False)
    val = split_links(graph, "random:0.5/0.5/0", 3, 0).val
    few = val.limited(5)
    assert few.count == 5 and few.negatives.shape == (5, 3) and len(few.relation) == 5
    assert np.array_equal(few.destination, val.destination[:5])
    assert val.limited(1000).count == val.count


def test_edges_of_several_types_between_two_nodes_stay_together_and_are_predicted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(12, size=(2, 60))
    ends = np.concatenate([ends, ends[::-1]], axis=1)  # symmetric, the reverses of other types
    graph = Graph.from_edges(*ends, num_nodes=20, edge_type=np.arange(120) % 5)
    split = split_links(graph, "random:0.4/0.3/0.3", 2, 0)
    assert not split.directed
    triples = {(*e, int(t)) for e, t in zip(edges_of(graph), graph.edge_type, strict=True) if e[0] != e[1]}
    predicted = []
    for links in (split.val, split.test):
        assert {(u, v, t) for (u, v), t in zip(pairs_of(links), links.relation.tolist(), strict=True)} <= triples
        predicted.append([(*pair(e), t) for e, t in zip(pairs_of(links), links.relation.tolist(), strict=True)])
    train = {pair(e) for e in edges_of(split.graph)}
    assert not {t[:2] for t in predicted[0]} & {t[:2] for t in predicted[1]}
    assert not train & {t[:2] for t in predicted[0] + predicted[1]}
    cut = {(*pair((u, v)), t) for u, v, t in triples if pair((u, v)) not in train}
    assert Counter(predicted[0] + predicted[1]) == Counter(cut)


def test_given_column() -> None:
    graph = Graph.from_edges(
        [0, 1, 2, 3, 3, 4], [1, 2, 3, 3, 4, 0], num_nodes=9, edge_columns={"split": [0, 1, 2, 2, 0, 1]}, notes=("mine",)
    )
    split = split_links(graph, "given", 4, 0)
    assert split.directed and split.train_count == 2
    assert sorted(pairs_of(split.val)) == [(1, 2), (4, 0)] and pairs_of(split.test) == [(2, 3)]
    assert edges_of(split.graph) == [(0, 1), (3, 3), (3, 4)] and split.graph.notes == graph.notes
    check_negatives(graph, split.test, 4)


def test_given_splits_of_a_pair_that_differ_settle_on_the_last() -> None:
    ends = [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    graph = Graph.from_edges(*ends, num_nodes=9, edge_columns={"split": [0, 2, 1, 0, 0, 0]})
    split = split_links(graph, "given", 1, 0)
    check_split(graph, split, directed=False)
    assert pair(pairs_of(split.val)[0]) == (1, 2) and pair(pairs_of(split.test)[0]) == (0, 1)
    assert split.graph.notes[-1].startswith("2 edges whose copies or reverses")


def test_given_splits_of_a_knowledge_graph(data_dir) -> None:  # type: ignore[no-untyped-def]
    graph = load("kg_umls")
    split = split_links(graph, "given", 7, 0)
    assert split.directed and (split.val.count, split.test.count) == (652, 661)
    assert split.graph.num_edges == 5216
    column = graph.edge_columns["split"]
    triples = [(*e, int(t)) for e, t in zip(edges_of(graph), graph.edge_type, strict=True)]
    for links, number in ((split.val, 1), (split.test, 2)):
        found = {(u, v, t) for (u, v), t in zip(pairs_of(links), links.relation.tolist(), strict=True)}
        assert found == {t for t, s in zip(triples, column, strict=True) if s == number}
        check_negatives(graph, links, 7)


@pytest.mark.parametrize("degree", [3, 60])
def test_negatives_are_uniform_over_the_free_nodes(degree: int) -> None:
    """Few neighbours: draws are tried; many: they come from a list."""
    n, each = 80, 30_000
    source = np.zeros(degree, np.int64)
    graph = Graph.from_edges(source, np.arange(1, degree + 1), num_nodes=n)
    links = split_links(graph, "random:0/0/1", each, 5).test.limited(2)
    for row in links.negatives:
        counts = np.bincount(row, minlength=n)
        assert not counts[: degree + 1].any()
        free, expected = n - degree - 1, each / (n - degree - 1)
        spread = ((counts[degree + 1 :] - expected) ** 2 / expected).sum()
        assert spread < free - 1 + 6 * np.sqrt(2 * free)
    assert np.count_nonzero(links.negatives[0] == links.negatives[1]) < 3 * each / (n - degree - 1)


def test_a_single_free_node_is_found() -> None:
    n = 40
    graph = Graph.from_edges(np.zeros(n - 2, np.int64), np.arange(1, n - 1), num_nodes=n)
    assert (split_links(graph, "random:0/1/0", 6, 0).val.negatives == n - 1).all()


def test_a_node_joined_to_all_others_is_named() -> None:
    graph = Graph.from_edges(["hub", "hub", "a"], ["a", "b", "b"], name="star")
    with pytest.raises(InputError, match="graph 'star': node hub has edges to all other nodes"):
        split_links(graph, "random:0/0/1", 1, 0)


def test_negatives_are_equal_for_any_number_of_threads() -> None:
    before = numba.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("Numba has one thread here")
    graph = random_graph(300, 2000, 0, symmetric=True)
    try:
        tables = []
        for threads in (1, 2):
            numba.set_num_threads(threads)
            tables.append(split_links(graph, "random:0.2/0.4/0.4", 20, 0).test.negatives)
    finally:
        numba.set_num_threads(before)
    assert np.array_equal(*tables)


def test_more_nodes_than_a_multinomial_takes() -> None:
    n = 2**24 + 1
    graph = Graph.from_edges([0, n - 1, 5], [n - 1, 0, n - 1], num_nodes=n)
    test = split_links(graph, "random:0/0/1", 1000, 0).test
    assert test.negatives.shape == (3, 1000) and test.negatives.dtype == np.int32
    assert test.negatives.min() >= 0 and test.negatives.max() < n
    assert abs(test.negatives.mean() / n - 0.5) < 0.05


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_training_pairs_are_the_distinct_edges(directed: bool, seed: int) -> None:
    graph = random_graph(15, 40, seed, symmetric=not directed)
    source, destination = training_pairs(graph.indptr, graph.indices, directed)
    got = list(zip(source.tolist(), destination.tolist(), strict=True))
    there = {e for e in edges_of(graph) if e[0] != e[1]}
    assert sorted(got) == sorted(there if directed else {pair(e) for e in there})
    assert source.dtype == destination.dtype == np.int64


def test_training_pairs_of_a_graph_without_edges() -> None:
    source, destination = training_pairs(np.zeros(4, np.int64), np.empty(0, np.int32), False)
    assert len(source) == len(destination) == 0


@pytest.mark.parametrize(
    ("name", "negatives", "message"),
    [
        ("public", 5, "unknown split of edges 'public'; splits are random, "),
        ("given:1", 5, "unknown split of edges 'given:1'"),
        ("given", 5, "graph 'graph' has no edge column `split`"),
        ("random:0.5/0.5", 5, "'random:0.5/0.5': expected three shares that sum to at most 1"),
        ("random:0.9/0.2/0.1", 5, "expected three shares"),
        ("random:-0.1/0.5/0.5", 5, "expected three shares"),
        ("random:nan/0.5/0.5", 5, "expected three shares"),
        ("directed:a/b/c", 5, "expected three shares"),
        ("random", 0, "at least 1 negative per edge, found 0"),
    ],
)
def test_what_cannot_be_split(name: str, negatives: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        split_links(ring(10), name, negatives, 0)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_graph_without_edges_cannot_be_split() -> None:
    with pytest.raises(InputError, match="graph 'graph' has no edges to predict"):
        split_links(Graph.from_edges([1], [1], num_nodes=3), "random", 1, 0)


@pytest.mark.parametrize("column", [[0, 3], [0, -1], [0.0, 1.0]])
def test_a_given_column_with_other_values(column: list[float]) -> None:
    graph = Graph.from_edges([0, 1], [1, 2], num_nodes=5, edge_columns={"split": np.array(column)})
    with pytest.raises(InputError, match=r"edge column `split` of graph 'graph': expected 0 \(training\)"):
        split_links(graph, "given", 1, 0)


def test_negatives_that_no_memory_holds_are_refused_before_they_are_drawn(monkeypatch):
    from farflung.graph import links

    monkeypatch.setattr(links, "MAX_NEGATIVES_BYTES", 10**6)
    graph = load("digits")
    assert split_links(graph, "random", 10, 0).val.negatives.shape[1] == 10
    with pytest.raises(InputError, match=r"617 edges with 1000 negatives each take .* GB: choose smaller shares"):
        split_links(graph, "random", 1000, 0)
