"""Assignments: random, super-nodes, given. Pitfalls 12 and 13 by number."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.graph import Graph, load
from farflung.partition import (
    PartitionConfig,
    assign,
    kept_share_expected,
    kept_share_sd,
    loops,
    partition,
    super_nodes,
)
from farflung.partition.assign import choose_num_clusters, cut, deal_clusters, random_parts
from farflung.partition.undirected import undirected_csr


@pytest.fixture(scope="module")
def blocks() -> Graph:
    return load("sbm:nodes=1200,classes=4,degree=8,homophily=0.8,features=4,seed=3")


def line(n: int, **fields: Any) -> Graph:
    return Graph.from_edges(np.arange(n - 1), np.arange(1, n), num_nodes=n, symmetric=True, **fields)


def test_13_random_parts_are_the_same_on_any_machine() -> None:
    parts = random_parts(1000, 4, seed=7)
    assert parts.dtype == np.int32
    assert parts[:12].tolist() == [1, 2, 0, 2, 2, 2, 2, 0, 1, 1, 1, 2]
    assert hashlib.sha256(parts.astype("<i4").tobytes()).hexdigest()[:16] == "efa5aae6cc7ec433"
    assert not np.array_equal(parts, random_parts(1000, 4, seed=8))


def test_random_parts_are_uniform() -> None:
    counts = np.bincount(random_parts(60_000, 6, seed=0), minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 4 * np.sqrt(60_000 * (1 / 6) * (5 / 6))


def test_the_seed_of_the_config_goes_before_the_run_s() -> None:
    graph = line(50)
    own = assign(graph, PartitionConfig(parts=3, seed=5), seed=1)
    assert np.array_equal(own, assign(graph, PartitionConfig(parts=3), seed=5))
    assert not np.array_equal(own, assign(graph, PartitionConfig(parts=3), seed=1))


@pytest.mark.parametrize("by", ["random", "mincut", "supernode"])
def test_12_more_parts_than_nodes(by: str) -> None:
    with pytest.raises(InputError, match="5 parts of graph 'graph', which has 3 nodes: choose at most 3"):
        partition(line(3), by, parts=5)


def test_12_random_may_leave_a_part_empty() -> None:
    graph = line(5)
    sizes = [np.bincount(partition(graph, parts=4, seed=seed).assignment, minlength=4).min() for seed in range(20)]
    assert min(sizes) == 0


def test_kept_share_of_20_random_partitions(blocks: Graph) -> None:
    indptr, indices = undirected_csr(blocks)
    pairs = len(indices) // 2
    for parts in (2, 5):
        shares = np.array(
            [
                loops.count_kept(indptr, indices, random_parts(blocks.num_nodes, parts, seed)) / (2 * pairs)
                for seed in range(20)
            ]
        )
        sd = kept_share_sd(parts, pairs)
        assert np.abs(shares - 1 / parts).max() < 3 * sd
        assert abs(shares.mean() - 1 / parts) < 3 * sd / np.sqrt(20)
        assert 0.5 * sd < shares.std(ddof=1) < 1.6 * sd


def test_supernode_share_equals_its_formula_in_expectation(blocks: Graph) -> None:
    clusters = super_nodes(blocks, 60, seed=0)
    indptr, indices = undirected_csr(blocks)
    inside = loops.count_kept(indptr, indices, clusters) / len(indices)
    shares, expected = [], []
    for seed in range(200):
        owner = deal_clusters(60, 4, seed)
        shares.append(loops.count_kept(indptr, indices, owner[clusters]) / len(indices))
        expected.append(kept_share_expected(4, inside, np.bincount(owner, minlength=4)))
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - np.mean(expected)) < 3 * error
    assert inside < np.mean(expected) < 1


def test_supernode_formula_by_hand() -> None:
    # 4 clusters dealt 2 and 2: 4 of the 12 ordered pairs of clusters fall together.
    assert kept_share_expected(2, 0.4, [2, 2]) == pytest.approx(0.4 + 0.6 * 4 / 12)
    assert kept_share_expected(8) == 0.125
    with pytest.raises(InputError, match="go together"):
        kept_share_expected(8, 0.1)


@pytest.mark.parametrize(("clusters", "parts"), [(10, 3), (11, 3), (12, 4), (3, 3), (100, 7)])
def test_clusters_are_dealt_as_in_the_paper(clusters: int, parts: int) -> None:
    floor = clusters // parts
    counts = np.array([np.bincount(deal_clusters(clusters, parts, s), minlength=parts) for s in range(400)])
    assert (counts.sum(axis=1) == clusters).all()
    early = counts[:, :-1]
    assert set(np.unique(early)) <= {floor, floor + 1}
    share = clusters / parts - floor
    assert abs((early > floor).mean() - share) < 4 * np.sqrt(share * (1 - share) / early.size) + 1e-12
    assert not np.array_equal(deal_clusters(clusters, parts, 0), deal_clusters(clusters, parts, 1)) or clusters < 6


@pytest.mark.parametrize(
    ("nodes", "parts", "clusters", "expected"),
    [
        (10_000_000, 4, None, 15_000),
        (32_000, 4, None, 2_000),
        (400, 4, None, 40),
        (20, 4, None, 20),
        (1_000_000, 2_000, None, 15_000),
        (1_000_000, 20_000, None, 20_000),
        (400, 4, 7, 7),
    ],
)
def test_number_of_super_nodes(nodes: int, parts: int, clusters: int | None, expected: int) -> None:
    config = PartitionConfig(by="supernode", parts=parts, clusters=clusters)
    assert choose_num_clusters(nodes, config) == expected


def test_super_nodes_keep_whole_clusters_together(blocks: Graph) -> None:
    found = cut(blocks, PartitionConfig(by="supernode", parts=3, clusters=40), seed=2)
    assert found.clusters is not None
    assert np.array_equal(found.clusters, super_nodes(blocks, 40, seed=2))
    assert np.array_equal(np.unique(found.clusters), np.arange(40))
    together = np.unique(np.stack([found.clusters, found.assignment]), axis=1)
    assert together.shape[1] == 40


def test_as_many_super_nodes_as_nodes_is_random_dealing() -> None:
    assert super_nodes(line(9), 9, seed=0).tolist() == list(range(9))


def test_too_few_or_too_many_super_nodes() -> None:
    with pytest.raises(InputError, match="2 super-nodes cannot be dealt to 3 parts"):
        partition(line(9), "supernode", parts=3, clusters=2)
    with pytest.raises(InputError, match=r"expected 1..9 of them"):
        partition(line(9), "supernode", parts=3, clusters=10)


@pytest.mark.parametrize(
    ("column", "parts", "names"),
    [
        (np.array([7, 3, 7, 5]), [2, 0, 2, 1], ["3", "5", "7"]),
        (np.array(["FR", "DE", "FR", "DE"]), [1, 0, 1, 0], ["DE", "FR"]),
    ],
)
def test_given_column_becomes_sorted_parts(column: np.ndarray, parts: list[int], names: list[str]) -> None:
    found = partition(line(4, columns={"region": column}), "given", parts=None, given="region")
    assert found.assignment.tolist() == parts
    assert found.assignment.dtype == np.int32
    assert found.num_parts == len(names)
    assert found.manifest["part_names"] == names


def test_given_files(tmp_path: Path) -> None:
    np.save(tmp_path / "parts.npy", np.array([0, 2, 2, 0], dtype=np.uint8))
    np.savez(tmp_path / "parts.npz", assignment=np.array([1, 0, 1, 0]), other=np.zeros(3))
    found = partition(line(4), "given", given=str(tmp_path / "parts.npy"))
    assert found.assignment.tolist() == [0, 2, 2, 0]
    assert found.num_parts == 3
    assert partition(line(4), "given", given=str(tmp_path / "parts.npz")).assignment.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([0, 1, 0]), r"shape \(3,\), expected \(4,\)"),
        (np.array([0, -1, 0, 1]), "row 1 holds part -1"),
        (np.array([0, 1, 4, 0]), r"row 2 holds part 4, expected 0..3"),
        (np.array([0.0, 1.0, 1.0, 0.0]), "found float64, expected integers"),
        (np.array([0, 1, "a", None], dtype=object), "cannot be read"),
    ],
)
def test_given_files_that_are_no_assignment(tmp_path: Path, array: np.ndarray, message: str) -> None:
    path = tmp_path / "parts.npy"
    np.save(path, array)
    with pytest.raises(InputError, match=message) as caught:
        partition(line(4), "given", given=str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_given_that_names_nothing(tmp_path: Path) -> None:
    graph = line(4, columns={"region": np.zeros((4, 2), int)})
    for source, message in [
        (None, "columns: region"),
        ("county", "no column 'county' .columns: region."),
        ("region", r"of shape \(4, 2\)"),
        (str(tmp_path / "none.npy"), "no such file"),
    ]:
        with pytest.raises(InputError, match=message):
            partition(graph, "given", given=source)


def test_unknown_options_are_listed() -> None:
    with pytest.raises(InputError, match=r"option `by`.*options are by, parts, clusters"):
        partition(line(4), "magic")
    with pytest.raises(InputError, match="option `colour`"):
        partition(line(4), colour=1)


def test_given_npz_with_something_else_than_arrays(tmp_path: Path) -> None:
    path = tmp_path / "parts.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("parts.txt", "0 1 0 1")
    with pytest.raises(InputError, match="holds no array"):
        partition(line(4), "given", given=str(path))
    np.savez_compressed(path, assignment=np.zeros(5000, np.int64))
    damaged = bytearray(path.read_bytes())
    damaged[80:100] = b"x" * 20
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"parts.npz: cannot be read"):
        partition(line(4), "given", given=str(path))


def test_a_fault_of_our_own_is_not_blamed_on_the_given_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(AttributeError, match="a bug"):
        partition(line(4), "given", given=str(tmp_path / "parts.npy"))
