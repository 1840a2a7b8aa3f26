"""METIS in its child process. Pitfalls 9, 11, 13 and 16 by number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymetis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.graph import Graph, load
from farflung.partition import Partition, PartitionerError, metis, partition
from farflung.partition.undirected import undirected_csr


def ring_of_cliques(cliques: int, size: int) -> Graph:
    """Cliques in a ring, each joined to the next by one edge: the best cut is known."""
    pairs = [(c * size + i, c * size + j) for c in range(cliques) for i in range(size) for j in range(i)]
    pairs += [(c * size, ((c + 1) % cliques) * size + 1) for c in range(cliques)]
    source, destination = np.array(pairs).T
    return Graph.from_edges(source, destination, num_nodes=cliques * size)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), e=st.integers(0, 40))
def test_11_the_undirected_copy_against_a_naive_loop(seed: int, n: int, e: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(rng.integers(0, n, e), rng.integers(0, n, e), num_nodes=n)
    pairs = {(int(u), int(v)) for u, v in zip(graph.indices, graph.destinations(), strict=True) if u != v}
    pairs |= {(v, u) for u, v in pairs}
    indptr, indices = undirected_csr(graph)
    for v in range(n):
        assert indices[indptr[v] : indptr[v + 1]].tolist() == sorted(u for u, w in pairs if w == v)
    assert indptr[-1] == len(indices) == len(pairs)


def test_9_11_a_directed_graph_with_loops_and_duplicates_is_cut_and_stays_as_it_is() -> None:
    graph = Graph.from_edges([0, 0, 1, 1, 2, 2], [1, 2, 2, 2, 2, 0], num_nodes=4)
    indptr, indices = graph.indptr.copy(), graph.indices.copy()
    found = partition(graph, "mincut", parts=2, seed=0)
    assert sorted(np.bincount(found.assignment).tolist()) in ([1, 3], [2, 2])
    assert np.array_equal(graph.indptr, indptr)
    assert np.array_equal(graph.indices, indices)
    assert np.array_equal(found.graph().indices, indices)


@pytest.mark.parametrize("parts", [2, 4, 12])
@pytest.mark.parametrize("balance", ["nodes", "edges"])
def test_mincut_finds_cliques(parts: int, balance: str) -> None:
    found = partition(ring_of_cliques(12, 6), "mincut", parts=parts, seed=1, balance=balance)
    assert np.bincount(found.assignment).tolist() == [72 // parts] * parts
    for clique in found.assignment.reshape(12, 6):
        assert len(set(clique.tolist())) == 1


def test_mincut_balances_what_it_is_told_to() -> None:
    hub = np.zeros(40, dtype=np.int64)
    others = np.arange(1, 41)
    ring = np.stack([np.arange(41, 101), np.roll(np.arange(41, 101), 1)])
    graph = Graph.from_edges(np.concatenate([hub, ring[0]]), np.concatenate([others, ring[1]]), num_nodes=101)
    degree = np.diff(undirected_csr(graph)[0])
    by_nodes = partition(graph, "mincut", parts=2, balance="nodes").assignment
    by_edges = partition(graph, "mincut", parts=2, balance="edges").assignment
    assert np.abs(np.bincount(by_nodes) - 50.5).max() <= 2
    assert np.abs(np.bincount(by_edges, weights=degree) - degree.sum() / 2).max() <= 0.05 * degree.sum()


@pytest.mark.parametrize("num_edges", [0, 1])
def test_graphs_with_hardly_any_edges(num_edges: int) -> None:
    graph = Graph.from_edges(np.zeros(num_edges, int), np.ones(num_edges, int), num_nodes=9)
    for by in ("mincut", "supernode"):
        counts = np.bincount(partition(graph, by, parts=3).assignment, minlength=3)
        assert counts.sum() == 9
        assert counts.max() <= 5


def test_one_part_needs_no_metis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "CHILD", Path("does-not-exist.py"))
    assert partition(ring_of_cliques(2, 3), "mincut", parts=1).assignment.tolist() == [0] * 6


def test_13_one_seed_one_partition_in_two_processes_and_thread_counts() -> None:
    name = "sbm:nodes=600,classes=4,degree=8,homophily=0.8,features=2,seed=3"
    code = (
        "from farflung.graph import load; from farflung.partition import partition\n"
        f"graph = load('{name}')\n"
        "print(*(partition(graph, by, parts=5, seed=11).digest for by in ('random', 'mincut', 'supernode')))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for threads in ("1", "2")
    ]
    graph = load(name)
    here = [partition(graph, by, parts=5, seed=11) for by in ("random", "mincut", "supernode")]
    digests = [found.digest for found in here]
    assert outputs == [digests, digests]
    assert [found.manifest["digest"] for found in here] == digests
    for by, digest in zip(("random", "mincut", "supernode"), digests, strict=True):
        assert partition(graph, by, parts=5, seed=12).digest != digest


CHILDREN = {
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, most likely for lack of memory"),
    "crashed": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
    "failed": ("raise MemoryError('no room for 7 nodes')", r"exit code 1 \(MemoryError: no room for 7 nodes\)"),
    "out of memory": (
        "import sys; print('***Memory allocation failed for graph. Requested 9 bytes\\n', file=sys.stderr); 1 / 0",
        r"exit code 1 \(Memory allocation failed for graph. Requested 9 bytes\)",
    ),
    "silent": ("pass", "exit code 0"),
    "nonsense": (
        "import sys, numpy; numpy.save(sys.argv[1] + '/parts.npy', numpy.array([99]))",
        "its result is no assignment",
    ),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_16_a_failing_metis_is_an_error_in_the_parent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, message = CHILDREN[kind]
    child = tmp_path / "child.py"
    child.write_text(code, encoding="utf-8")
    monkeypatch.setattr(metis, "CHILD", child)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(PartitionerError, match=message) as caught:
        partition(ring_of_cliques(3, 4), "mincut", parts=2)
    assert str(caught.value).startswith("METIS: ")
    assert "\n" not in str(caught.value)
    assert list(temporary.iterdir()) == []


def test_edges_out_of_range_never_reach_metis() -> None:
    graph = ring_of_cliques(2, 3)
    broken = graph.indices.copy()
    broken[3] = 600
    object.__setattr__(graph, "indices", broken)
    with pytest.raises(InputError, match=r"edge 3 comes from node 600, expected 0..5"):
        partition(graph, "mincut", parts=2)


def test_partitions_of_real_graphs(data_dir: Path) -> None:
    found: Partition = partition(load("cora"), "mincut", parts=20)
    counts = np.bincount(found.assignment, minlength=20)
    assert counts.min() > 0


def test_weights_that_sum_to_more_than_metis_counts_are_an_error() -> None:
    most = np.iinfo(pymetis.zero_copy_dtype()).max
    arrays = {"xadj": np.array([0, 1, 2]), "adjncy": np.array([1, 0]), "vweights": np.array([most, most])}
    with pytest.raises(PartitionerError, match="weights of nodes that sum to"):
        metis._run_child(arrays, ["2", "0", "1"])
