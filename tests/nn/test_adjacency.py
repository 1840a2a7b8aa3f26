from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.nn import GCNConv as PygGCN
from torch_geometric.nn import SAGEConv as PygSAGE

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.degrees import degree_without_loops
from farflung.kernels import Product, SparseMatrix, formed
from farflung.nn import graph_adjacency, halo_adjacency, local_adjacency
from farflung.nn.adjacency import adjacency
from farflung.nn.convs import GCNConv, SAGEConv
from farflung.partition import build_shards

KINDS = pytest.mark.parametrize("aggregation", ["mean", "gcn"])


def dense(matrix: SparseMatrix) -> np.ndarray:
    return matrix.to_scipy().toarray()


def features(graph: Graph, width: int = 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((graph.num_nodes, width)))


@KINDS
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_equals_the_loop_over_edges(graph, naive_matrix, aggregation, index):
    matrix = graph_adjacency(aggregation, graph.with_(indices=graph.indices.astype(index)), np.float64)
    np.testing.assert_allclose(dense(matrix), naive_matrix(aggregation, graph), rtol=1e-12, atol=1e-15)
    single = graph_adjacency(aggregation, graph, np.float32)
    assert single.values.dtype == np.float32
    np.testing.assert_array_equal(single.values, matrix.values.astype(np.float32))


def test_an_mlp_has_no_matrix(graph):
    assert graph_adjacency("none", graph, np.float32) is None


def test_rows_of_the_mean_sum_to_one_or_have_no_edges(graph):
    sums = dense(graph_adjacency("mean", graph, np.float64)).sum(axis=1)
    np.testing.assert_allclose(sums, graph.in_degree() > 0, rtol=1e-12)


def same_edge_index(graph: Graph) -> torch.Tensor:
    return torch.from_numpy(np.stack([graph.indices, graph.destinations()]).astype(np.int64))


def test_gcn_equals_pyg(graph):
    loops = graph.indices == graph.destinations()
    if graph.edge_weight is not None:  # PyG keeps the weight of a loop that is there, Farflung's loop weighs 1
        graph = graph.with_(edge_weight=np.where(loops, np.float32(1), graph.edge_weight))
    mine, theirs = GCNConv(5, 3).double(), PygGCN(5, 3).double()
    mine.load_state_dict({"weights.0": theirs.lin.weight.detach().T, "bias": torch.tensor([0.1, -0.2, 0.3])})
    theirs.bias.data = mine.bias.data
    x = torch.from_numpy(graph.x).double()
    weight = None if graph.edge_weight is None else torch.from_numpy(graph.edge_weight).double()
    out = mine.combine(mine.aggregate(graph_adjacency("gcn", graph, np.float64), x))
    torch.testing.assert_close(out, theirs(x, same_edge_index(graph), weight), rtol=1e-10, atol=1e-12)


def test_mean_equals_pyg(graph):
    graph = graph.with_(edge_weight=None)
    mine, theirs = SAGEConv(5, 3).double(), PygSAGE(5, 3).double()
    weights = {"weights.0": theirs.lin_r.weight.T, "weights.1": theirs.lin_l.weight.T, "bias": theirs.lin_l.bias}
    mine.load_state_dict({name: value.detach() for name, value in weights.items()})
    x = torch.from_numpy(graph.x).double()
    out = mine.combine(mine.aggregate(graph_adjacency("mean", graph, np.float64), x))
    torch.testing.assert_close(out, theirs(x, same_edge_index(graph)), rtol=1e-10, atol=1e-12)


@KINDS
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5, 3.0, 1.5, 0.25]])
def test_duplicates_kept_or_summed_give_the_same_output(aggregation, weights):
    ends = [0, 0, 2, 1, 1, 1], [1, 1, 1, 2, 2, 1]
    kept, summed = (
        Graph.from_edges(
            *ends,
            num_nodes=4,
            duplicates=policy,
            x=np.eye(4, dtype=np.float32),
            **({} if weights is None else {"edge_weight": weights}),
        )
        for policy in ("keep", "sum")
    )
    assert (kept.num_edges, summed.num_edges) == (6, 4)
    both = [graph_adjacency(aggregation, graph, np.float64) for graph in (kept, summed)]
    np.testing.assert_allclose(dense(both[0]), dense(both[1]), rtol=1e-12)
    outputs = [matrix @ features(kept) for matrix in both]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-14)


def assignments(graph: Graph) -> list[tuple[np.ndarray, int]]:
    rng = np.random.default_rng(0)
    # The last has an empty part.
    return [(rng.integers(0, parts, graph.num_nodes), parts) for parts in (1, 2, 5)] + [
        (rng.integers(0, 2, graph.num_nodes) * 2, 3)
    ]


@KINDS
def test_halo_rows_of_all_parts_are_the_rows_of_the_graph_to_the_bit(graph, aggregation):
    h = features(graph)
    x = sp.random_array(h.shape, density=0.1, format="csr", rng=np.random.default_rng(1))
    whole = graph_adjacency(aggregation, graph, np.float64)
    for assignment, parts in assignments(graph):
        seen = np.zeros(graph.num_nodes, int)
        for shard in build_shards(graph, assignment, parts):
            matrix, sources = halo_adjacency(aggregation, shard, np.float64), np.r_[shard.inner, shard.halo]
            assert matrix.shape == (shard.num_inner, shard.num_inner + shard.num_halo)
            assert torch.equal(matrix @ h[sources], (whole @ h)[shard.inner])
            part = formed(Product(matrix, SparseMatrix.from_scipy(sp.csr_matrix(x[sources]), np.float64)))
            part = dense(part) if isinstance(part, SparseMatrix) else part.numpy()
            np.testing.assert_array_equal(part, (whole.to_scipy() @ x).toarray()[shard.inner])
            seen[shard.inner] += 1
        assert (seen == 1).all()


@KINDS
def test_local_rows_are_those_of_the_graph_without_the_rest(graph, naive_matrix, aggregation):
    for assignment, parts in assignments(graph):
        for part, shard in enumerate(build_shards(graph, assignment, parts)):
            inner = np.flatnonzero(assignment == part)
            edges = np.isin(graph.indices, inner) & np.isin(graph.destinations(), inner)
            alone = Graph.from_edges(
                np.searchsorted(inner, graph.indices[edges]),
                np.searchsorted(inner, graph.destinations()[edges]),
                num_nodes=len(inner),
                **({} if graph.edge_weight is None else {"edge_weight": graph.edge_weight[edges]}),
            )
            matrix = dense(local_adjacency(aggregation, shard, np.float64))
            np.testing.assert_allclose(matrix, naive_matrix(aggregation, alone), rtol=1e-12, atol=1e-15)


@KINDS
def test_sources_that_are_not_present_are_left_out(graph, naive_matrix, aggregation):
    assignment = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
    for part, shard in enumerate(build_shards(graph, assignment, 3)):
        gone = (part + 1) % 3
        sources = np.r_[shard.inner, shard.halo]
        matrix = halo_adjacency(aggregation, shard, np.float64, present=assignment[sources] != gone)
        expected = naive_matrix(aggregation, graph, present=assignment != gone)[shard.inner]
        np.testing.assert_allclose(dense(matrix), expected[:, sources], rtol=1e-12, atol=1e-15)
        untold = halo_adjacency(aggregation, shard, np.float64, present=np.ones(len(sources), bool))
        np.testing.assert_array_equal(untold.values, halo_adjacency(aggregation, shard, np.float64).values)


def looped(aggregation: str, graph: Graph, present: np.ndarray | None) -> tuple[list[int], list[int], list[float]]:
    """Starts, columns and values by loops in float64, each sum in the order of the edges."""
    weight = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight.astype(np.float64)
    there = np.ones(graph.num_nodes, bool) if present is None else present
    rows = [range(start, stop) for start, stop in pairwise(graph.indptr.tolist())]
    scale = [1 / np.sqrt(sum(weight[e] for e in row if graph.indices[e] != v) + 1.0) for v, row in enumerate(rows)]
    starts, columns, values = [0], [], []
    for v, row in enumerate(rows):
        kept = [e for e in row if there[graph.indices[e]]]
        if aggregation == "gcn":
            kept = [e for e in kept if graph.indices[e] != v]
            columns.append(v)
            values.append(scale[v] * scale[v])
            values += [weight[e] * scale[v] * scale[graph.indices[e]] for e in kept]
        else:
            total = sum(weight[e] for e in kept)
            values += [weight[e] / (total or 1.0) for e in kept]
        columns += [graph.indices[e] for e in kept]
        starts.append(len(columns))
    return starts, columns, values


@KINDS
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_entries_are_those_of_a_loop_to_the_bit(graph, aggregation, index, dtype):
    graph = graph.with_(indices=graph.indices.astype(index))
    degree = degree_without_loops(graph.indptr, graph.indices, graph.edge_weight)
    some = np.random.default_rng(0).random(graph.num_nodes) < 0.6
    for present in (None, some, np.ones_like(some), np.zeros_like(some)):
        matrix = adjacency(aggregation, graph.indptr, graph.indices, degree, graph.edge_weight, dtype, present)
        starts, columns, values = looped(aggregation, graph, present)
        assert (matrix.pattern.indices.dtype, matrix.values.dtype) == (index, dtype)
        assert matrix.pattern.indptr.tolist() == starts
        assert matrix.pattern.indices.tolist() == columns
        np.testing.assert_array_equal(matrix.values, np.array(values, dtype=np.float64).astype(dtype))


def test_weights_that_cancel_are_left_as_they_are():
    indptr, indices, weight = np.array([0, 2]), np.array([0, 0], np.int32), np.array([2.0, -2.0], np.float32)
    matrix = adjacency("mean", indptr, indices, np.zeros(1), weight, np.float32)
    assert matrix.values.tolist() == [2.0, -2.0]


def test_a_mean_over_all_edges_shares_the_columns_of_the_graph(graph):
    matrix = graph_adjacency("mean", graph, np.float32)
    assert np.shares_memory(matrix.pattern.indices, graph.indices) or not graph.num_edges


@KINDS
def test_edges_of_a_row_stay_in_the_order_of_the_graph(graph, aggregation):
    matrix = graph_adjacency(aggregation, graph, np.float64)
    for row, (start, stop) in enumerate(pairwise(matrix.pattern.indptr)):
        found = matrix.pattern.indices[start:stop].tolist()
        edges = graph.indices[graph.indptr[row] : graph.indptr[row + 1]].tolist()
        assert found == (edges if aggregation == "mean" else [row, *(u for u in edges if u != row)])


@pytest.mark.parametrize("weight", [-1.0, -3.0])
def test_weights_that_leave_gcn_without_a_degree_are_refused(weight):
    graph = Graph.from_edges([0], [1], num_nodes=2, edge_weight=[1.0])
    graph = graph.with_(edge_weight=np.array([weight], np.float32))
    with pytest.raises(InputError, match="node 1"):
        graph_adjacency("gcn", graph, np.float64)
