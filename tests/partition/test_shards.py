"""Shards against naive oracles, and exact reassembly. Pitfalls 9, 11, 12, 14 and 18 by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.graph import Graph, Split
from farflung.graph.compare import differences
from farflung.partition import (
    GraphInfo,
    Shard,
    build_shards,
    from_arrays,
    local_edge_weight,
    local_edges,
    reassemble,
    setup_bytes,
    to_arrays,
)
from farflung.partition.check import check_shards
from farflung.partition.reassembly import row_pointers


def random_graph(rng: np.random.Generator, n: int, e: int, options: set[str]) -> Graph:
    """A directed graph with loops, duplicates and isolated nodes, and the fields that `options` names."""
    fields: dict[str, Any] = {}
    if "x" in options:
        fields["features"] = (rng.normal(size=(n, 3)).astype(rng.choice(["f2", "f4", "f8"])),)
    if "csr" in options:
        dense = rng.normal(size=(n, 4)).astype(np.float32) * (rng.random((n, 4)) < 0.4)
        fields["features"] = (sp.csr_matrix(dense),)
    if "types" in options:
        types = rng.integers(0, 3, n)
        types[-1] = 2
        sizes = np.bincount(types, minlength=3)
        fields["node_type"] = types.astype(np.int16)
        fields["node_type_names"] = ("author", "paper", "term")
        fields["features"] = (
            rng.normal(size=(sizes[0], 2)).astype(np.float16),
            None,
            sp.csr_matrix(rng.integers(0, 2, (sizes[2], 5)).astype(np.float32)),
        )
        fields["edge_type"] = rng.integers(0, 2, e).astype(np.int16)
        fields["edge_type_names"] = ("cites", "writes")
    if "labels" in options:
        fields["y"] = rng.integers(0, 3, n)
        fields["class_names"] = ("a", "b", "c")
    if "multilabel" in options:
        fields["y"] = rng.integers(0, 2, (n, 4)).astype(np.uint8)
    if "splits" in options:
        splits = [Split(*(rng.integers(0, 3, n) == np.arange(3)[:, None])) for _ in range(3)]
        fields["split"], fields["public_splits"] = splits[0], tuple(splits[1:])
    if "edges" in options:
        fields["edge_weight"] = rng.random(e).astype(np.float32)
        fields["edge_attr"] = rng.random((e, 2)).astype(np.float32)
        fields["edge_columns"] = {"split of the edge": rng.integers(0, 3, e).astype(np.uint8)}
    if "columns" in options:
        fields["columns"] = {
            "Région/1": np.array([f"r{i % 3}" for i in range(n)]),
            "years": rng.integers(0, 9, (n, 2)),
        }
    return Graph.from_edges(
        rng.integers(0, n, e), rng.integers(0, n, e), num_nodes=n, name="drawn", notes=("drawn at random",), **fields
    )


OPTIONS = ("x", "csr", "types", "labels", "multilabel", "splits", "edges", "columns")


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 14),
    e=st.integers(0, 40),
    parts=st.integers(1, 6),
    options=st.sets(st.sampled_from(OPTIONS)),
    ids=st.booleans(),
)
def test_reassembled_shards_equal_the_graph(
    seed: int, n: int, e: int, parts: int, options: set[str], ids: bool
) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, e, options)
    if ids:
        graph = graph.with_(ids=np.array([f"node-{i}" for i in rng.permutation(n)]))
    assignment = rng.integers(0, parts, n)
    shards = build_shards(graph, assignment, parts)
    check_shards(shards, assignment.astype(np.int32))
    assert differences(reassemble(shards), graph) == []
    rebuilt = [from_arrays(s.part, s.num_parts, s.info, to_arrays(s)) for s in shards]
    assert differences(reassemble(rebuilt), graph) == []


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), e=st.integers(0, 30), parts=st.integers(1, 5))
def test_shards_against_a_naive_loop(seed: int, n: int, e: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, e, {"edges"})
    owner = rng.integers(0, parts, n)
    edges = list(zip(graph.indices.tolist(), graph.destinations().tolist(), graph.edge_weight.tolist(), strict=True))
    degree = [sum(w for u, v, w in edges if v == node and u != v) for node in range(n)]
    shards = build_shards(graph, owner, parts)
    for k, shard in enumerate(shards):
        inner = [v for v in range(n) if owner[v] == k]
        remote = {u for u, v, _ in edges if owner[v] == k and owner[u] != k}
        halo = sorted(remote, key=lambda u: (owner[u], u))
        names = np.array(inner + halo, dtype=np.int64)
        assert shard.inner.tolist() == inner
        assert shard.halo.tolist() == halo
        assert [owner[u] for j in range(parts) for u in shard.halo[shard.halo_of(j)]] == [owner[u] for u in halo]
        found = [
            (int(names[u]), v, w)
            for i, v in enumerate(inner)
            for u, w in zip(
                shard.indices[shard.indptr[i] : shard.indptr[i + 1]],
                shard.edge_weight[shard.indptr[i] : shard.indptr[i + 1]].tolist(),
                strict=True,
            )
        ]
        assert found == [edge for edge in edges if owner[edge[1]] == k]
        np.testing.assert_allclose(shard.degree, [degree[v] for v in names], rtol=1e-12)
        for j in range(parts):
            needed = sorted({u for u, v, _ in edges if owner[u] == k and owner[v] == j and j != k})
            assert shard.inner[shard.boundary_for(j)].tolist() == needed
            assert shards[j].halo[shards[j].halo_of(k)].tolist() == needed


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12), e=st.integers(0, 30), parts=st.integers(1, 4))
def test_local_edges_drop_what_comes_from_other_parts(seed: int, n: int, e: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, e, {"edges"})
    owner = rng.integers(0, parts, n)
    for k, shard in enumerate(build_shards(graph, owner, parts)):
        indptr, indices = local_edges(shard)
        weight = local_edge_weight(shard)
        destinations = shard.inner[np.repeat(np.arange(shard.num_inner), np.diff(indptr))]
        inside = (owner[graph.indices] == k) & (owner[graph.destinations()] == k)
        assert shard.inner[indices].tolist() == graph.indices[inside].tolist()
        assert destinations.tolist() == graph.destinations()[inside].tolist()
        assert weight.tolist() == graph.edge_weight[inside].tolist()


def test_14_interleaved_parts_come_back_in_the_original_order() -> None:
    graph = Graph.from_edges(
        [0, 1, 2, 3], [1, 2, 3, 0], num_nodes=4, x=np.arange(4, dtype=np.float32)[:, None], y=[0, 1, 0, 1]
    )
    shards = build_shards(graph, np.array([1, 0, 1, 0]), 2)
    assert [shard.x.ravel().tolist() for shard in shards] == [[1.0, 3.0], [0.0, 2.0]]
    whole = reassemble(shards)
    assert whole.x.ravel().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert differences(whole, graph) == []


def test_9_loops_stay_and_do_not_count_as_degree(loopy_graph: Graph) -> None:
    shards = build_shards(loopy_graph, np.array([0, 1, 1, 0, 0]), 2)
    loop = shards[1]
    assert loop.indices[loop.indptr[1] : loop.indptr[2]].tolist() == [1]
    assert loop.degree.tolist() == [7.0, 0.0, 0.0, 5.0]
    assert differences(reassemble(shards), loopy_graph) == []


def test_12_an_empty_part_has_empty_arrays_of_the_right_types(loopy_graph: Graph) -> None:
    shards = build_shards(loopy_graph, np.array([0, 0, 0, 2, 2]), 3)
    empty = shards[1]
    assert (empty.num_inner, empty.num_halo, len(empty.indices), len(empty.boundary)) == (0, 0, 0, 0)
    assert empty.indptr.tolist() == [0]
    assert empty.x.shape == (0, 3)
    for name, array in to_arrays(empty).items():
        assert array.dtype == to_arrays(shards[0])[name].dtype, name
    assert differences(reassemble(shards), loopy_graph) == []


def test_18_parts_without_a_common_boundary() -> None:
    graph = Graph.from_edges([0, 1, 2, 3], [1, 0, 3, 2], num_nodes=4)
    for shard in build_shards(graph, np.array([0, 0, 1, 1]), 2):
        assert shard.num_halo == 0
        assert len(shard.boundary) == 0
        assert shard.boundary_ptr.tolist() == [0, 0, 0]
        assert len(shard.indices) == 2


def test_11_direction_stays() -> None:
    graph = Graph.from_edges([0, 0, 1], [1, 2, 2], num_nodes=3)
    first, second = build_shards(graph, np.array([0, 0, 1]), 2)
    assert first.num_halo == 0
    assert first.degree.tolist() == [0.0, 1.0]
    assert second.halo.tolist() == [0, 1]
    assert second.degree.tolist() == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_memory_mapped_graphs_and_index_types(tmp_path: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    drawn = random_graph(rng, 30, 100, {"x", "edges"})
    mapped = {}
    for name in ("indptr", "indices", "edge_weight"):
        array = getattr(drawn, name)
        np.save(tmp_path / f"{name}.npy", array.astype(dtype) if name == "indices" else array)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    graph = drawn.with_(**mapped)
    shards = build_shards(graph, rng.integers(0, 3, 30), 3)
    assert all(shard.indices.dtype == dtype for shard in shards)
    assert differences(reassemble(shards), graph) == []


def test_info_is_the_same_in_all_shards_and_knows_classes_that_a_part_lacks() -> None:
    graph = Graph.from_edges([0], [1], num_nodes=3, x=np.ones((3, 2), np.float32), y=["b", "a", "c"], name="abc")
    shards = build_shards(graph, np.array([0, 0, 1]), 2)
    expected = GraphInfo(
        name="abc", num_nodes=3, num_edges=1, num_classes=3, feature_widths=(2,), class_names=("a", "b", "c")
    )
    assert [shard.info for shard in shards] == [expected, expected]


def test_setup_bytes_counts_every_array() -> None:
    graph = Graph.from_edges([0, 1], [1, 0], num_nodes=2, x=np.ones((2, 5), np.float32), y=[0, 1])
    (shard,) = build_shards(graph, np.zeros(2, int), 1)
    layout = 8 * 2 + 0 + 8 * 2 + 8 * 3 + graph.indices.itemsize * 2 + 8 * 2 + 0 + 8 * 2
    assert setup_bytes(shard) == layout + 4 * 10 + 8 * 2


@pytest.mark.parametrize(
    ("assignment", "parts", "message"),
    [
        ([0, 1], 2, "expected 5 integers"),
        ([0.0, 1.0, 0.0, 1.0, 0.0], 2, "expected 5 integers"),
        ([0, 1, 2, 0, 0], 2, "node 2 is in part 2, expected 0..1"),
        ([0, -1, 0, 0, 0], 2, "node 1 is in part -1"),
        ([0, 0, 0, 0, 0], 0, "at least 1 part"),
    ],
)
def test_assignments_that_do_not_fit(loopy_graph: Graph, assignment: list[Any], parts: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_shards(loopy_graph, np.array(assignment), parts)


def test_reassemble_names_what_is_missing(loopy_graph: Graph) -> None:
    shards = build_shards(loopy_graph, np.array([0, 1, 1, 0, 0]), 2)
    with pytest.raises(InputError, match="expected 2 shards, found 1"):
        reassemble(shards[:1])
    with pytest.raises(InputError, match="expected part 0, found part 1"):
        reassemble(shards[::-1])
    with pytest.raises(InputError, match="node 0 is in part 1 and in another"):
        reassemble([shards[0], replace(shards[0], part=1)])
    with pytest.raises(InputError, match="found none"):
        reassemble([])


def _swap(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed[[0, 1]] = changed[[1, 0]]
    return changed


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("inner", lambda a: a + 1),
        ("halo", _swap),
        ("halo", lambda a: a + 100),
        ("indices", lambda a: a + 100),
        ("indptr", lambda a: a[:-1]),
        ("degree", lambda a: a + 1),
        ("boundary", _swap),
        ("boundary", lambda a: a + 100),
        ("boundary_ptr", lambda a: a * 2),
        ("y", lambda a: a[:-1]),
        ("features", lambda a: (a[0][:-1],)),
    ],
)
def test_check_shards_finds_what_is_wrong(field: str, change: Any) -> None:
    rng = np.random.default_rng(1)
    graph = random_graph(rng, 40, 200, {"x", "labels"})
    assignment = rng.integers(0, 2, 40).astype(np.int32)
    shards: list[Shard] = build_shards(graph, assignment, 2)
    check_shards(shards, assignment)
    shards[1] = replace(shards[1], **{field: change(getattr(shards[1], field))})
    with pytest.raises(InputError, match=rf"part [01]: `{field}"):
        check_shards(shards, assignment)


def test_row_pointers_of_reassembled_features_do_not_overflow() -> None:
    lengths = np.array([2**30, 0, 2**30 - 1, 1])
    small = row_pointers(lengths[:3], np.dtype(np.int32))
    assert small.dtype == np.int32 and small.tolist() == [0, 2**30, 2**30, 2**31 - 1]
    large = row_pointers(lengths, np.dtype(np.int32))
    assert large.dtype == np.int64 and large.tolist() == [0, 2**30, 2**30, 2**31 - 1, 2**31]
    assert row_pointers(lengths[:1], np.dtype(np.int64)).dtype == np.int64
