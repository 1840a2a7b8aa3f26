import os
import subprocess
import sys
from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chi2

from farflung.kernels import SparseMatrix, sampling
from farflung.kernels.sampling import Block, InEdges, NeighbourSampler, Places, hop_key, take_rows

N = 40
FANOUTS = pytest.mark.parametrize("fanouts", [(2,), (3, 5), (None, 2), (4, None, 1), (1000, 1000)])
REPLACE = pytest.mark.parametrize("replace", [False, True])


def csr(sources: np.ndarray, destinations: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """CSR by destination, in-neighbours ascending."""
    order = np.lexsort((sources, destinations))
    return np.searchsorted(destinations[order], np.arange(num_nodes + 1)), sources[order].astype(np.int32)


def messy(seed: int = 0, num_edges: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """A directed multigraph with loops and duplicates; the last 10 nodes have no in-edges."""
    rng = np.random.default_rng(seed)
    sources, destinations = rng.integers(0, N, num_edges), rng.integers(0, N - 10, num_edges)
    return csr(np.append(sources, sources[:50]), np.append(destinations, destinations[:50]), N)


def regular(degree: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Every node has the in-edges of the nodes 0 .. degree - 1."""
    return np.arange(num_rows + 1) * degree, np.tile(np.arange(degree, dtype=np.int32), num_rows)


def check(block: Block, indptr, indices, fanout, replace, hidden=frozenset()) -> None:
    """A block holds for each destination what was asked of the edges that are not hidden, and nothing else."""
    num_rows = block.num_destinations
    known = list(block.nodes[:num_rows])
    for i in range(num_rows):
        v = block.nodes[i]
        there = [e for e in range(indptr[v], indptr[v + 1]) if (indices[e], v) not in hidden]
        edges = list(block.edges[block.indptr[i] : block.indptr[i + 1]])
        assert set(edges) <= set(there)
        if fanout is None or (len(there) <= fanout and not replace):
            assert edges == there
        elif replace:
            assert len(edges) == (fanout if there else 0)
        else:
            assert len(edges) == fanout
            assert all(a < b for a, b in pairwise(edges))
    for e in block.edges:
        if indices[e] not in known:
            known.append(indices[e])
    np.testing.assert_array_equal(block.nodes, known)  # destinations, then sources as they are first seen
    np.testing.assert_array_equal(block.nodes[block.indices], indices[block.edges])
    types = [array.dtype for array in (block.nodes, block.indptr, block.indices, block.edges)]
    assert types == [np.int64, np.int64, np.int32, np.int64]


def equal(one: list[Block], other: list[Block]) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for a, b in zip(one, other, strict=True)
        for name in ("nodes", "indptr", "indices", "edges")
    )


@FANOUTS
@REPLACE
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_blocks_hold_what_was_asked_and_chain(fanouts, replace, index):
    indptr, indices = messy()
    sampler = NeighbourSampler(indptr, indices.astype(index))
    for key in range(5):
        seeds = np.random.default_rng(key).permutation(N)[:12]
        blocks = sampler.blocks(seeds, fanouts, key, replace)
        for block, fanout in zip(blocks, fanouts, strict=True):
            check(block, indptr, indices, fanout, replace)
        np.testing.assert_array_equal(blocks[-1].nodes[: blocks[-1].num_destinations], seeds)
        for before, after in pairwise(blocks):
            np.testing.assert_array_equal(before.nodes[: before.num_destinations], after.nodes)


@FANOUTS
@REPLACE
def test_hidden_edges_are_gone_in_all_copies_until_the_next_call(fanouts, replace):
    indptr, indices = messy()
    destinations = np.repeat(np.arange(N), np.diff(indptr))
    sampler, seeds = NeighbourSampler(indptr, indices), np.arange(N)
    whole = sampler.blocks(seeds, fanouts, 3, replace)
    rng = np.random.default_rng(1)
    for size in (300, 1, 30):
        some = rng.choice(len(indices), size)
        # Edges, their reverses (most are no edges), loops, and pairs named twice.
        pairs = np.stack([indices[some], destinations[some]])
        u, v = np.concatenate([pairs, pairs[::-1], pairs[:, :1]], axis=1)
        sampler.hide(u, v)
        gone = set(zip(u.tolist(), v.tolist(), strict=True))
        edges = [e for e in range(len(indices)) if (indices[e], destinations[e]) in gone]
        np.testing.assert_array_equal(sampler.hidden, edges)
        np.testing.assert_array_equal(sampler.hidden_in, np.bincount(destinations[edges], minlength=N))
        for block, fanout in zip(sampler.blocks(seeds, fanouts, 3, replace), fanouts, strict=True):
            check(block, indptr, indices, fanout, replace, gone)
    sampler.hide(np.empty(0, np.int64), np.empty(0, np.int64))
    assert not sampler.hidden_in.any() and len(sampler.hidden) == 0
    assert equal(sampler.blocks(seeds, fanouts, 3, replace), whole)


def test_a_node_whose_edges_are_all_hidden_draws_none():
    indptr, indices = csr(np.array([1, 1, 2]), np.array([0, 0, 0]), 3)
    sampler = NeighbourSampler(indptr, indices)
    sampler.hide(np.array([1, 2, 0]), np.array([0, 0, 1]))
    for replace in (False, True):
        (block,) = sampler.blocks(np.array([0]), (2,), 0, replace)
        assert len(block.edges) == 0 and block.nodes.tolist() == [0]


@FANOUTS
@pytest.mark.parametrize(("indptr", "indices"), [(np.zeros(6, np.int64), []), (np.zeros(1, np.int64), [])])
def test_graphs_without_edges_and_without_seeds(fanouts, indptr, indices):
    sampler = NeighbourSampler(indptr, np.array(indices, np.int32))
    sampler.hide(np.arange(len(indptr) - 1), np.arange(len(indptr) - 1))
    for seeds in (np.arange(len(indptr) - 1), np.empty(0, np.int64)):
        for block in sampler.blocks(seeds, fanouts, 0):
            np.testing.assert_array_equal(block.nodes, seeds)
            assert block.indptr.tolist() == [0] * (len(seeds) + 1) and len(block.edges) == 0


@REPLACE
def test_a_draw_depends_on_key_hop_and_destination_alone(replace):
    sampler = NeighbourSampler(*messy())
    seeds = np.arange(30)
    (forward,), (backward,) = (sampler.blocks(s, (3,), 7, replace) for s in (seeds, seeds[::-1]))
    rows = [forward.edges[forward.indptr[i] : forward.indptr[i + 1]] for i in range(30)]
    for i in range(30):
        np.testing.assert_array_equal(
            rows[i], backward.edges[backward.indptr[29 - i] : backward.indptr[30 - i]], strict=True
        )
    assert equal(sampler.blocks(seeds, (3,), 7, replace), [forward])
    assert not equal(sampler.blocks(seeds, (3,), 8, replace), [forward])
    assert equal(sampler.blocks(seeds, (9, 3), 7, replace)[1:], [forward])  # the hop next to the seeds is hop 0
    assert not np.array_equal(sampler.blocks(np.arange(N), (3, None), 7, replace)[0].edges, forward.edges)


@FANOUTS
@REPLACE
@pytest.mark.parametrize("hide", [False, True])
def test_who_holds_some_rows_under_their_names_draws_what_the_whole_graph_gives(fanouts, replace, hide):
    indptr, indices = messy()
    whole = NeighbourSampler(indptr, indices)
    destinations = np.repeat(np.arange(N), np.diff(indptr))
    some = np.random.default_rng(2).permutation(len(indices))[:60]
    held = np.array([0, 3, 4, 11, 25, 29, 33])
    starts = indptr[held]
    rows = np.concatenate([np.arange(indptr[v], indptr[v + 1]) for v in held])
    part = InEdges(np.append(0, np.cumsum(indptr[held + 1] - starts)), indices[rows], names=held)
    if hide:
        u, v = indices[some].astype(np.int64), destinations[some]
        whole.hide(u, v)
        mine = np.isin(v, held)
        part.hide(u[mine], np.searchsorted(held, v[mine]))
        assert len(part.hidden) > 3
        np.testing.assert_array_equal(part.visible(np.arange(7)), whole.visible(held))
    for hop, fanout in enumerate(fanouts):
        asked = np.array([5, 0, 3, 6])
        found, edges, sources = part.draw(asked, fanout, hop_key(7, hop), replace)
        expected = whole.draw(held[asked], fanout, hop_key(7, hop), replace)
        np.testing.assert_array_equal(found, expected[0], strict=True)
        np.testing.assert_array_equal(rows[edges], expected[1])
        np.testing.assert_array_equal(sources, expected[2], strict=True)


def test_names_beyond_what_can_be_hashed_are_refused():
    with pytest.raises(ValueError, match="2147483648 nodes are too many"):
        InEdges(np.array([0, 0]), np.empty(0, np.int64), names=np.array([2**31 - 1]))


def test_places_number_nodes_as_they_are_first_seen():
    places = Places(9)
    for _ in range(3):
        places.begin(np.array([7, 2]))
        sources = np.array([2, 5, 5, 0, 7, 5], np.int32)
        places.number(sources)
        assert sources.tolist() == [1, 2, 2, 3, 0, 2] and places.nodes.tolist() == [7, 2, 5, 0]
        sources = np.array([8, 0], np.int32)
        places.number(sources)
        assert sources.tolist() == [4, 3] and places.nodes.tolist() == [7, 2, 5, 0, 8]


def bound(cells: int) -> float:
    """What a chi-square statistic exceeds once in a million times."""
    return float(chi2.isf(1e-6, cells - 1))


def statistic(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize(
    ("degree", "fanout"), [(6, 1), (6, 3), (7, 5), (10, 9), (12, 10)]
)  # Floyd's way thrice, Knuth's
def test_every_subset_is_equally_likely(degree, fanout, hide):
    # Three cases go Floyd's way, two Knuth's.
    num_rows = 20_000
    sampler, absent = NeighbourSampler(*regular(degree + hide, num_rows)), 2
    if hide:
        sampler.hide(np.full(num_rows, absent), np.arange(num_rows))
    (block,) = sampler.blocks(np.arange(num_rows), (fanout,), 5)
    sources = block.nodes[block.indices].reshape(num_rows, fanout)
    left = [u for u in range(degree + hide) if not (hide and u == absent)]
    number = {subset: i for i, subset in enumerate(combinations(left, fanout))}
    counts = np.bincount([number[tuple(row)] for row in sources.tolist()], minlength=len(number))
    assert statistic(counts) < bound(len(number))


def test_draws_with_replacement_are_uniform_and_independent():
    num_rows, degree = 20_000, 5
    (block,) = NeighbourSampler(*regular(degree, num_rows)).blocks(np.arange(num_rows), (2,), 5, replace=True)
    first, second = block.nodes[block.indices].reshape(num_rows, 2).T
    assert statistic(np.bincount(first * degree + second, minlength=degree**2)) < bound(degree**2)


@pytest.mark.parametrize("by", ["destination", "key", "hop"])
def test_draws_of_two_destinations_keys_and_hops_are_independent(by):
    num_rows, degree = 20_000, 4
    sampler, seeds = NeighbourSampler(*regular(degree, num_rows)), np.arange(20_000)

    def picks(fanouts: tuple[int, ...], key: int) -> list[np.ndarray]:
        return [block.nodes[block.indices] for block in sampler.blocks(seeds, fanouts, key)]

    if by == "destination":
        (one,) = picks((1,), 1)
        other = np.roll(one, 1)
    elif by == "key":
        (one,), (other,) = picks((1,), 1), picks((1,), 2)
    else:
        one, other = picks((1, 1), 1)
    assert statistic(np.bincount(one * degree + other, minlength=degree**2)) < bound(degree**2)


def test_a_big_row_is_sampled_evenly_by_either_algorithm():
    degree = 10_000
    for fanout in (200, 5_000):
        sampler = NeighbourSampler(np.array([0, degree] + [degree] * degree), np.arange(1, degree + 1, dtype=np.int32))
        tenths = np.zeros(10)
        for key in range(40):
            (block,) = sampler.blocks(np.array([0]), (fanout,), key)
            assert len(np.unique(block.edges)) == fanout
            tenths += np.bincount(block.edges // 1000, minlength=10)
        # Counts of a sample without replacement vary less than independent ones: the bound is on the safe side.
        assert statistic(tenths) < bound(10)


_DIGEST = """
import hashlib, numpy as np
from farflung.graph import load
from farflung.kernels.sampling import NeighbourSampler
graph = load("sbm:nodes=3000,classes=3,degree=30,homophily=0.8,features=1,seed=1")
sampler = NeighbourSampler(graph.indptr, graph.indices)
sampler.hide(graph.indices[:500].astype(np.int64), graph.destinations()[:500].astype(np.int64))
state = hashlib.sha256()
for replace in (False, True):
    for block in sampler.blocks(np.arange(0, 3000, 3), (10, 25, None), key=7, replace=replace):
        for array in (block.nodes, block.indptr, block.indices, block.edges):
            state.update(array.tobytes())
print(state.hexdigest())
"""


def test_equal_for_1_and_4_threads() -> None:
    """Numba takes its largest number of threads when it is imported, so each count has a process of its own."""
    found = set()
    for threads in ("1", "4"):
        env = {**os.environ, "NUMBA_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", _DIGEST], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1
    assert len(found.pop()) == 64


def test_stamps_may_run_out(monkeypatch):
    expected = NeighbourSampler(*messy()).blocks(np.arange(9), (3, 2), 0)
    monkeypatch.setattr(sampling, "_STAMPS", 3 * N)
    sampler = NeighbourSampler(*messy())
    for _ in range(20):
        assert equal(sampler.blocks(np.arange(9), (3, 2), 0), expected)


@pytest.mark.parametrize(
    ("seeds", "fanouts", "text"),
    [
        ([3, 1, 3], (2,), "seeds must be unique"),
        ([0, N], (2,), f"nodes must be 0 to {N - 1}, found 0 to {N}"),
        ([-1], (2,), "found -1"),
        ([0], (2, 0), r"1 or more, found \[2, 0\]"),
    ],
)
def test_what_cannot_be_sampled_is_refused_and_does_no_harm(seeds, fanouts, text):
    sampler = NeighbourSampler(*messy())
    expected = sampler.blocks(np.array([3, 1]), (2,), 0)
    with pytest.raises(ValueError, match=text):
        sampler.blocks(np.array(seeds), fanouts, 0)
    assert equal(sampler.blocks(np.array([3, 1]), (2,), 0), expected)


def test_pairs_that_name_no_node_are_refused():
    with pytest.raises(ValueError, match="found 40 to 40"):
        NeighbourSampler(*messy()).hide(np.array([0]), np.array([N]))


@pytest.mark.parametrize("index", [[], [3], [5, 0, 5, 2], list(range(8))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_taken_rows_are_those_of_the_matrix(index, dtype):
    dense = np.random.default_rng(0).random((8, 6)) * (np.random.default_rng(1).random((8, 6)) < 0.4)
    matrix = SparseMatrix.from_scipy(sp.csr_matrix(dense), dtype)
    part = take_rows(matrix, np.array(index, dtype=np.int64))
    assert part.shape == (len(index), 6) and part.values.dtype == dtype
    np.testing.assert_array_equal(part.to_scipy().toarray(), dense.astype(dtype)[index])
