"""Reading `.npz`, the round trip of our own format, PyG both ways (pitfalls 1, 8, 10)."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

from farflung.errors import InputError
from farflung.graph import (
    Graph,
    Split,
    differences,
    from_edges,
    from_pyg,
    is_symmetric,
    load,
    read_npz,
    save_graph,
    to_pyg,
)


def random_split(n: int, seed: int) -> Split:
    part = np.random.default_rng(seed).integers(0, 4, n)
    return Split(part == 0, part == 1, part == 2)


def rich_graph() -> Graph:
    """Every field of `Graph` is set: two node types, dense and CSR features, string ids, loops, duplicates."""
    rng = np.random.default_rng(0)
    n, e = 12, 40
    node_type = rng.integers(0, 2, n)
    counts = np.bincount(node_type)
    return from_edges(
        rng.integers(0, n, e).astype(str),
        rng.integers(0, n, e).astype(str),
        nodes=np.arange(n).astype(str)[::-1],
        features=(rng.random((counts[0], 3)).astype(np.float16), sp.random(counts[1], 5, 0.4, "csr", rng=rng)),
        y=np.array(["x", "y", "z"])[rng.integers(0, 3, n)],
        split=random_split(n, 1),
        public_splits=(random_split(n, 2), random_split(n, 3)),
        node_type=node_type,
        edge_type=rng.integers(0, 3, e),
        edge_weight=rng.random(e),
        edge_attr=rng.random((e, 2)),
        node_type_names=("paper", "author"),
        edge_type_names=("a", "b", "c"),
        columns={"region": rng.integers(0, 3, n), "city": np.array(["é", "b"])[rng.integers(0, 2, n)]},
        edge_columns={"split": rng.integers(0, 3, e).astype(np.uint8)},
        name="rich",
        notes=("made up",),
    )


def test_our_own_file_round_trips_every_field(tmp_path: Path, path_graph: Graph, loopy_graph: Graph) -> None:
    multilabel = from_edges([0], [1], num_nodes=3, y=[[0, 1], [1, 1], [0, 0]], x=sp.csr_matrix(np.eye(3)))
    empty = from_edges([], [], num_nodes=2)
    int64 = path_graph.with_(indices=path_graph.indices.astype(np.int64), ids=np.array([5, 3, 9, 1]))
    for graph in (rich_graph(), path_graph, loopy_graph, multilabel, empty, int64):
        save_graph(graph, tmp_path / "graph.npz")
        assert differences(load(tmp_path / "graph.npz"), graph) == []
    assert [p.name for p in tmp_path.iterdir()] == ["graph.npz"]


def test_our_own_file_refuses_another_version_and_a_broken_one(tmp_path: Path, path_graph: Graph) -> None:
    path = tmp_path / "graph.npz"
    with pytest.raises(InputError, match=r"must end in .npz"):
        save_graph(path_graph, tmp_path / "graph")
    save_graph(path_graph, path)
    arrays = dict(np.load(path))
    meta = json.loads(str(arrays["meta"]))
    np.savez(path, **arrays | {"meta": np.array(json.dumps(meta | {"version": 99}))})
    with pytest.raises(InputError, match="version 99"):
        load(path)
    np.savez(path, **arrays | {"edge_index": arrays["edge_index"][:, ::-1]})
    with pytest.raises(InputError, match="not in order"):
        load(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(InputError, match=r"not a .npz file"):
        load(path)


def write(path: Path, **arrays: Any) -> Path:
    fields = {"edge_index": np.array([[0, 1], [1, 2]], np.int32), "num_nodes": np.int64(4)} | arrays
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})
    return path


def test_an_undirected_graph_stored_once_says_so_and_is_made_symmetric_when_asked(tmp_path: Path) -> None:
    meta = np.array(json.dumps({"name": "once", "edges_stored": "once (undirected)"}))
    path = write(tmp_path / "g.npz", meta=meta, symmetric=np.bool_(False))
    graph = load(path)
    assert graph.name == "once" and graph.num_edges == 2 and any("--symmetric" in note for note in graph.notes)
    both = load(path, symmetric=True)
    assert is_symmetric(both) and both.notes == ("made symmetric: 2 reverse edges added",)


def test_public_masks_and_columns(tmp_path: Path) -> None:
    three = np.zeros((3, 2, 4), np.uint8)
    three[0, :, 0] = three[1, :, 1] = three[2, 0, 2] = three[2, 1, 3] = 1
    arrays = dict(zip(("train_masks", "val_masks", "test_masks"), three, strict=True))
    single = {name[:-1]: value[0] for name, value in arrays.items()}
    region = {"region": np.array([0, 1, 1, 0], np.int8), "region_names": np.array(["DE", "FR"])}
    graph = load(write(tmp_path / "g.npz", **arrays, **single, **region, edge_split=np.array([0, 2], np.uint8)))
    assert [s.test.tolist() for s in graph.public_splits] == three[2].astype(bool).tolist()
    assert graph.split is None
    assert graph.columns["region"].tolist() == [0, 1, 1, 0] and "column region: 0 DE, 1 FR" in graph.notes
    assert graph.edge_columns["split"].tolist() == [0, 2]
    assert len(load(write(tmp_path / "h.npz", **single)).public_splits) == 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"num_nodes": None}, "array `num_nodes` is missing"),
        ({"edge_index": None}, "array `edge_index` is missing"),
        ({"num_nodes": np.int64(2)}, "expected node rows 0 to 1, found 2 at row 1"),
        ({"edge_index": np.zeros((2, 2))}, r"`edge_index` must be integers \[2, E\], found float64"),
        ({"x": np.ones((3, 2), np.float32)}, "`x` needs a row per node: expected 4, found 3"),
        ({"train_mask": np.zeros(4, bool)}, "array `val_mask` is missing"),
        ({"meta": np.array("{")}, "`meta` is not JSON"),
        ({"num_nodes": np.array(["many"])}, "do not fit the schema"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"g.npz'.*{message}") as caught:
        load(write(tmp_path / "g.npz", **arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["graph.pkl", "graph.pt", "graph.npz"])
def test_pitfall_8_a_pickle_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"edge_index": [[0], [1]]}))
    with pytest.raises(InputError, match=r"pickle.*save_graph"):
        load(path)


def test_pitfall_8_object_arrays_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "g.npz", y=np.array([0, None, 1, 1], dtype=object))
    with pytest.raises(InputError, match="array `y` holds pickled Python objects and is refused"):
        load(path)


def test_bipartite_graphs_share_one_id_space(tmp_path: Path) -> None:
    sizes = {"num_nodes": None, "num_users": np.int64(2), "num_items": np.int64(3)}
    graph = load(write(tmp_path / "b.npz", **sizes))
    assert graph.num_nodes == 5 and graph.node_type.tolist() == [0, 0, 1, 1, 1]
    assert graph.indices.tolist() == [0, 1] and graph.destinations().tolist() == [3, 4]
    assert graph.features == (None, None) and graph.node_type_names == ("user", "item")
    wrong = write(tmp_path / "w.npz", **sizes | {"num_users": np.int64(1)})
    with pytest.raises(InputError, match="expected user rows 0 to 0, found 1 at edge 1"):
        load(wrong)


README = {
    "actor": (7600, 26659, 932, 5, 10),
    "aifb_rgcn": (2835, 20338, 0, 4, 1),
    "amazon_book": (70679 + 24915, 846434, None, 0, 0),
    "amazon_computers": (13752, 287209, 767, 10, 0),
    "blogcatalog_attr": (5196, 343486, 8189, 6, 0),
    "blogcatalog_multilabel": (10312, 667966, 0, 39, 0),
    "ca_astroph": (18772, 396160, 0, 0, 0),
    "chameleon_filtered": (890, 8854, 2325, 5, 10),
    "citeseer": (3327, 9104, 3703, 6, 1),
    "coauthor_cs": (18333, 163788, 6805, 15, 0),
    "cora": (2708, 10556, 1433, 7, 1),
    "cora_ml": (2995, 8416, 2879, 7, 0),
    "facebook_page_page": (22470, 171002, 4714, 4, 0),
    "fb15k237": (14541, 310116, 0, 0, 0),
    "hetero_dblp": (4057 + 14328 + 20 + 7723, 19645 + 14328 + 85810, None, 4, 4),
    "kg_kinship": (104, 10686, 0, 0, 0),
    "kg_umls": (135, 6529, 0, 0, 0),
    "lastfm_asia_structure": (7624, 27806, 0, 18, 0),
    "minesweeper": (10000, 39402, 7, 2, 10),
    "pubmed": (19717, 88648, 500, 3, 1),
    "tolokers": (11758, 519000, 10, 2, 10),
    "twitch_regions": (36890, 492575, 3170, 2, 0),
    "wn18rr": (40943, 93003, 0, 0, 0),
}
"""Nodes, edges, features (None: several node types), classes, public splits: as the data's README has them."""


@pytest.mark.parametrize("name", README)
def test_every_real_graph_has_the_counts_of_its_readme(name: str, data_dir: Path, tmp_path: Path) -> None:
    path = data_dir / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"{name} is not among the data")
    nodes, edges, features, classes, splits = README[name]
    graph = read_npz(path)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes) == (nodes, edges, classes)
    assert len(graph.public_splits) == splits
    assert graph.name == name
    if features is not None:
        assert graph.num_features == features
    if name in ("cora", "hetero_dblp", "fb15k237", "amazon_book"):
        save_graph(graph, tmp_path / "g.npz")
        assert differences(load(tmp_path / "g.npz"), graph) == []


def test_facts_about_single_real_graphs(data_dir: Path) -> None:
    cora = read_npz(data_dir / "cora.npz")
    split = cora.public_splits[0]
    assert [int(m.sum()) for m in (split.train, split.val, split.test)] == [140, 500, 1000]
    assert is_symmetric(cora) and not is_symmetric(read_npz(data_dir / "cora_ml.npz"))
    assert read_npz(data_dir / "amazon_computers.npz", symmetric=True).num_edges == 491_722
    facebook = read_npz(data_dir / "facebook_page_page.npz", symmetric=True)
    assert facebook.num_edges == 2 * 170_823 + 179 and "179 self-loops kept" in facebook.notes
    assert np.bincount(read_npz(data_dir / "fb15k237.npz").edge_columns["split"]).tolist() == [272115, 17535, 20466]
    dblp = read_npz(data_dir / "hetero_dblp.npz")
    assert [b if b is None else b.shape for b in dblp.features] == [(4057, 334), (14328, 4231), None, (7723, 50)]
    assert np.bincount(dblp.y[dblp.y >= 0]).tolist() == [1197, 745, 1109, 1006]
    assert [int(s.train.sum()) for s in dblp.public_splits] == [80, 80, 160, 240]
    ends = dblp.node_type[np.stack([dblp.indices, dblp.destinations()])]
    assert {tuple(e) for e in np.unique(ends.T, axis=0).tolist()} == {(1, 0), (1, 2), (1, 3)}


def data_with_everything() -> Data:
    torch.manual_seed(0)
    n, e = 7, 15
    part = torch.randint(0, 4, (n, 3))
    return Data(
        x=torch.rand(n, 4),
        edge_index=torch.randint(0, n, (2, e)),
        y=torch.randint(0, 3, (n,)),
        edge_attr=torch.rand(e, 2),
        edge_weight=torch.rand(e),
        edge_type=torch.randint(0, 2, (e,)),
        edge_split=torch.randint(0, 3, (e,)),
        train_mask=part == 0,
        val_mask=part == 1,
        test_mask=part == 2,
        region=torch.randint(0, 2, (n,)),
        num_nodes=n,
    )


def test_pyg_to_graph_and_back_is_the_same_data() -> None:
    data = data_with_everything()
    back = to_pyg(from_pyg(data))
    order = np.lexsort([data.edge_type, data.edge_index[0], data.edge_index[1]])
    assert set(back.keys()) == set(data.keys())
    for key, value in data:
        if key != "num_nodes":
            expected = value[:, order] if key == "edge_index" else value[order] if key.startswith("edge_") else value
            assert torch.equal(back[key].to(value.dtype), expected), key


def test_graph_to_pyg_and_back_is_the_same_graph(path_graph: Graph) -> None:
    graph = path_graph.with_(
        split=None,
        public_splits=(path_graph.split,),
        features=(sp.csr_matrix(path_graph.x),),
        ids=np.array(["d", "a", "c", "b"]),
        class_names=("no", "yes"),
    )
    assert differences(from_pyg(to_pyg(graph), name="path"), graph) == ["notes"]
    chosen = graph.with_(split=graph.public_splits[0], public_splits=(), ids=np.array([4, 2, 9, 7]))
    again = from_pyg(to_pyg(chosen))
    assert again.ids.tolist() == [4, 2, 9, 7] and np.array_equal(again.public_splits[0].val, chosen.split.val)


def test_pyg_directed_edges_stay_directed() -> None:
    graph = from_pyg(Data(edge_index=torch.tensor([[0, 0], [1, 2]]), num_nodes=4))
    assert graph.indices.tolist() == [0, 0] and graph.destinations().tolist() == [1, 2] and graph.num_nodes == 4


def test_pitfall_1_pyg_without_a_node_count_is_refused() -> None:
    with pytest.raises(InputError, match=r"set `data.num_nodes`"):
        from_pyg(Data(edge_index=torch.tensor([[0], [1]])))


def test_pyg_data_that_is_not_one_edge_table_is_refused() -> None:
    hetero = HeteroData()
    hetero["a"].x, hetero["a", "to", "a"].edge_index = torch.ones(2, 1), torch.tensor([[0], [1]])
    with pytest.raises(InputError, match="to_homogeneous"):
        from_pyg(hetero)
    with pytest.raises(InputError, match="`edge_index` is missing"):
        from_pyg(Data(x=torch.ones(2, 1)))


def test_pyg_sparse_features_and_shapes() -> None:
    dense = torch.eye(3)
    for x in (dense.to_sparse(), dense.to_sparse_csr()):
        graph = from_pyg(Data(x=x, edge_index=torch.tensor([[0], [1]]), y=torch.tensor([[0], [1], [1]])))
        assert sp.issparse(graph.x) and np.array_equal(graph.x.toarray(), dense.numpy())
        assert graph.y.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match="not all of train, val and test"):
        from_pyg(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, train_mask=torch.ones(2, dtype=torch.bool)))
    with pytest.raises(InputError, match="2 node types"):
        to_pyg(rich_graph())


def test_pyg_ids_are_unique() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, original_id=torch.tensor([4, 7, 4]))
    with pytest.raises(InputError, match="`ids` must be unique, found 4 twice, at rows 0 and 2"):
        from_pyg(data)
    data.original_id = torch.tensor([0.5, 1.5, 2.5])
    with pytest.raises(InputError, match="`original_id`: expected integer or string ids, found float32"):
        from_pyg(data)
    data.original_id = torch.tensor([4, 7, 5], dtype=torch.int32)
    assert from_pyg(data).ids.dtype == np.int64
