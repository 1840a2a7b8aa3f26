"""Splits and features by name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph import Graph, Split, choose_features, choose_split, from_edges, load, read_npz


def labelled(n: int = 100, classes: int = 4, missing: int = 0, name: str = "graph") -> Graph:
    y = np.arange(n) % classes
    y[:missing] = -1
    return from_edges([0], [1], num_nodes=n, y=y, name=name)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def sizes(split: Split) -> list[int]:
    return [int(mask.sum()) for mask in (split.train, split.val, split.test)]


def test_random_shares() -> None:
    graph = labelled(n=120, missing=20)
    assert sizes(choose_split(graph, "random", 0).split) == [20, 20, 60]
    assert sizes(choose_split(graph, "random:0.6/0.2/0.2", 0).split) == [60, 20, 20]
    assert sizes(choose_split(graph, "random:0.5/0.1/0.1", 0).split) == [50, 10, 10]
    chosen = choose_split(graph, "random", 0).split
    assert not (chosen.train | chosen.val | chosen.test)[:20].any()


def test_splits_repeat_by_seed() -> None:
    graph = labelled()
    for name in ("random", "random:3/4", "retexo"):
        first, again, other = (choose_split(graph, name, seed).split for seed in (1, 1, 2))
        assert np.array_equal(first.train, again.train) and np.array_equal(first.test, again.test)
        assert not np.array_equal(first.train, other.train)


def test_the_streams_of_numpy_are_those_that_results_were_made_with() -> None:
    """A split and an sbm by digest: where NumPy draws other numbers, old runs do not repeat, and this fails first."""
    split = choose_split(labelled(), "random", 0).split
    assert digest(split.train, split.val, split.test) == "1becbfcd042f86b6"
    per_class = choose_split(labelled(), "random:5/7", 0).split
    assert digest(per_class.train, per_class.val, per_class.test) == "b88a624c8326a381"
    graph = load("sbm:nodes=200,classes=4,degree=6,homophily=0.8,features=3,seed=1")
    assert digest(graph.indptr, graph.indices.astype("<i4"), graph.y) == "2575545bb23b9af1"
    np.testing.assert_allclose(graph.x[0], [1.682383, 0.062489, -3.167329], rtol=1e-5)


def test_counts_per_class() -> None:
    graph = labelled(n=100, classes=4)
    split = choose_split(graph, "random:5/7", 0).split
    assert np.bincount(graph.y[split.train]).tolist() == [5] * 4
    assert np.bincount(graph.y[split.val]).tolist() == [7] * 4
    assert sizes(split) == [20, 28, 52]
    with pytest.raises(InputError, match="class 0 has 25 nodes, fewer than the 26"):
        choose_split(graph, "random:20/6", 0)


def test_public_splits_by_number() -> None:
    graph = labelled(n=6)
    first = choose_split(graph, "random", 1).split
    second = choose_split(graph, "random", 2).split
    graph = graph.with_(public_splits=(first, second))
    assert choose_split(graph, "public", 0).split is first
    assert choose_split(graph, "public:1", 0).split is second
    with pytest.raises(InputError, match="public:0 to public:1"):
        choose_split(graph, "public:2", 0)
    with pytest.raises(InputError, match="no public split; use `random`"):
        choose_split(labelled(), "public", 0)


@pytest.mark.parametrize("name", ["half", "random:0.6/0.6/0.2", "random:a/b", "random:20", "retexo:3", "random:-1/5"])
def test_an_unknown_split_lists_what_exists(name: str) -> None:
    with pytest.raises(InputError, match=r"retexo, random|random:0.6/0.2/0.2"):
        choose_split(labelled(), name, 0)


def test_labels_are_needed() -> None:
    with pytest.raises(InputError, match="no labels"):
        choose_split(from_edges([0], [1], num_nodes=2), "random", 0)
    multilabel = from_edges([0], [1], num_nodes=10, y=np.eye(10, dtype=np.uint8))
    assert sizes(choose_split(multilabel, "random", 0).split) == [2, 2, 6]
    with pytest.raises(InputError, match="single label"):
        choose_split(multilabel, "random:1/1", 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cora", [602, 300, 1806]),
        ("citeseer", [1068, 357, 1902]),
        ("pubmed", [4383, 2190, 13144]),
        ("facebook_page_page", [4494, 2247, 15729]),
        ("lastfm_asia_structure", [1525, 762, 5337]),
        ("cora_ml", [599, 599, 1797]),
    ],
)
def test_retexo_split_of_real_graphs(name: str, expected: list[int], data_dir: Path) -> None:
    graph = read_npz(data_dir / f"{name}.npz")
    split = choose_split(graph, "retexo", 0).split
    assert sizes(split) == expected
    if name == "cora":
        assert np.bincount(graph.y[split.train]).tolist() == [86] * 7
        renamed = choose_split(graph.with_(name="mine"), "retexo", 0).split
        assert np.array_equal(renamed.train, split.train)


def test_degree_and_gaussian_features(loopy_graph: Graph) -> None:
    degree = np.log1p([0, 3, 1, 1, 0]).astype(np.float32)
    x = choose_features(loopy_graph, "degree", "none", 0).x
    assert np.array_equal(x, np.stack([degree, np.ones(5, np.float32)], axis=1)) and x.dtype == np.float32
    x = choose_features(loopy_graph, "gaussian:8", "none", 0).x
    assert x.shape == (5, 9) and np.array_equal(x[:, 8], degree) and x.dtype == np.float32
    assert np.array_equal(x, choose_features(loopy_graph, "gaussian:8", "none", 0).x)
    assert not np.array_equal(x, choose_features(loopy_graph, "gaussian:8", "none", 1).x)


def test_rows_sum_to_one_and_zero_rows_stay() -> None:
    x = np.array([[1, 3], [0, 0], [2, 2]], np.float16)
    expected = [[0.25, 0.75], [0, 0], [0.5, 0.5]]
    for block in (x, x.astype(np.float64), sp.csr_matrix(x.astype(np.float32))):
        graph = from_edges([0], [1], num_nodes=3, x=block)
        result = choose_features(graph, "given", "row", 0).x
        assert np.array_equal(result.toarray() if sp.issparse(result) else result, expected)
        assert result.dtype == (np.float64 if block.dtype == np.float64 else np.float32)
        assert sp.issparse(result) == sp.issparse(block)


def test_made_features_of_typed_nodes_are_cut_by_type() -> None:
    graph = from_edges([0, 1], [1, 2], num_nodes=3, node_type=[0, 1, 0], features=(None, None))
    blocks = choose_features(graph, "degree", "none", 0).features
    assert [block.shape for block in blocks] == [(2, 2), (1, 2)]


def test_pitfall_10_no_features_is_an_error_that_says_what_to_choose(path_graph: Graph) -> None:
    bare = path_graph.with_(features=(None,))
    with pytest.raises(InputError, match="has no features: choose `degree` or `gaussian:64`"):
        choose_features(bare, "given", "none", 0)
    with pytest.raises(InputError, match="features are given, degree, gaussian"):
        choose_features(bare, "gaussian", "none", 0)
    with pytest.raises(InputError, match="none or row, found 'column'"):
        choose_features(path_graph, "given", "column", 0)
