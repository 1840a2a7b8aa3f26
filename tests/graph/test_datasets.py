"""Graphs by name: digits, blocks, files, downloads as far as they go without a network (pitfalls 39, 40)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from farflung.errors import InputError, MissingExtraError
from farflung.graph import Graph, available, choose_split, differences, is_symmetric, load, save_graph
from farflung.graph import datasets as datasets_module
from farflung.graph.download import cache_dir, cached, read_arrays


def test_digits_are_joined_to_their_ten_nearest(digits: Graph) -> None:
    assert digits.num_nodes == 1797 and digits.num_features == 64 and digits.num_classes == 10
    assert is_symmetric(digits) and digits.public_splits == ()
    assert digits.x.dtype == np.float32 and digits.x.min() >= 0 and digits.x.max() == 1
    assert digits.in_degree().min() >= 10
    assert not (digits.indices == digits.destinations()).any()
    for node in (0, 700, 1796):
        distance = ((digits.x.astype(np.float64) - digits.x[node]) ** 2).sum(axis=1)
        distance[node] = np.inf
        row = digits.indices[digits.indptr[node] : digits.indptr[node + 1]]
        assert set(np.argsort(distance, kind="stable")[:10]) <= set(row.tolist())


def test_blocks_have_what_was_asked_for() -> None:
    graph = load("sbm:nodes=4000,classes=4,degree=12,homophily=0.7,features=16,seed=3")
    assert graph.num_nodes == 4000 and graph.num_edges == 48_000 and graph.num_classes == 4
    assert is_symmetric(graph) and graph.notes == ()
    source, destination = graph.indices, graph.destinations()
    assert abs((graph.y[source] == graph.y[destination]).mean() - 0.7) < 1e-3
    assert np.bincount(graph.y).tolist() == [1000] * 4
    degree = graph.in_degree()
    assert degree.max() > 8 * degree.mean() and np.median(degree) < degree.mean()
    assert graph.x.dtype == np.float32
    centroids = np.stack([graph.x[graph.y == c].mean(axis=0) for c in range(4)])
    nearest = ((graph.x[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
    assert 0.5 < (nearest == graph.y).mean() < 0.95


def test_blocks_repeat_by_seed(tmp_path: Path) -> None:
    name = "sbm:nodes=500,degree=6,features=4,seed=1"
    graph = load(name)
    assert differences(graph, load(graph.name)) == []
    assert len(differences(graph, load(name.replace("seed=1", "seed=2")))) >= 4
    code = f"from farflung.graph import load, save_graph; save_graph(load('{name}'), r'{tmp_path / 'g.npz'}')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert differences(graph, load(tmp_path / "g.npz")) == []


@pytest.mark.parametrize("name", ["sbm", "sbm:features=0", "sbm:classes=1,homophily=1", "sbm:nodes=50,degree=0"])
def test_blocks_at_the_edges(name: str) -> None:
    graph = load(name)
    assert graph.num_edges == {"sbm:nodes=50,degree=0": 0}.get(name, 10_000)
    assert (graph.x is None) == (name == "sbm:features=0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sbm:colour=3", "unknown parameter 'colour'; parameters are nodes, classes, degree, homophily, features"),
        ("sbm:nodes=1e3", "`nodes` must be a whole number, found '1e3'; parameters are"),
        ("sbm:homophily=2", "`homophily` must be 0 to 1, found 2"),
        ("sbm:homophily=nan", "`homophily` must be 0 to 1, found nan"),
        ("sbm:nodes=20,degree=19", "lower `degree`"),
        ("sbm:classes=1", "set homophily=1"),
    ],
)
def test_pitfall_40_wrong_parameters_are_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_pitfall_40_an_unknown_name_lists_what_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARFLUNG_DATA", str(tmp_path))
    (tmp_path / "mine.npz").touch()
    with pytest.raises(InputError, match=r"unknown dataset 'digit'.*digits.*planetoid-cora.*sbm.*mine") as caught:
        load("digit")
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"there is no file 'digit.npz'"):
        load("digit.npz")


def test_files_under_farflung_data_are_found_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path_graph: Graph
) -> None:
    save_graph(path_graph, tmp_path / "mine.npz")
    (tmp_path / "broken.npz").write_text("not a zip file")
    monkeypatch.setenv("FARFLUNG_DATA", str(tmp_path))
    assert differences(load("mine"), path_graph) == []
    infos = {info.name: info for info in available()}
    assert infos["mine"].about == "4 nodes, 4 edges, labels, features"
    assert infos["mine"].where == str(tmp_path / "mine.npz") and infos["broken"].about == "cannot be read"
    for unset in ("", str(tmp_path / "nowhere")):
        monkeypatch.setenv("FARFLUNG_DATA", unset)
        assert "mine" not in {info.name for info in available()}
    assert {"digits", "reddit", "ogbn-products", "ogbl-citation2"} <= {info.name for info in available()}


def test_pitfall_39_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARFLUNG_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ogb", None)
    for name in ("ogbn-products", "ogbl-citation2"):
        with pytest.raises(MissingExtraError, match=r"pip install 'farflung\[ogb\]'"):
            load(name)


def test_a_download_is_kept_in_our_own_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path_graph: Graph
) -> None:
    monkeypatch.setenv("FARFLUNG_CACHE", str(tmp_path / "cache"))
    assert cache_dir() == tmp_path / "cache"
    reads: list[Path] = []

    def read(folder: Path) -> Graph:
        reads.append(folder)
        return path_graph

    first, second = cached("thing", read), cached("thing", read)
    assert reads == [tmp_path / "cache" / "raw"] and first.name == "thing" and differences(first, second) == []

    def fail(folder: Path) -> Graph:
        raise OSError("no route to host")

    with pytest.raises(InputError, match=r"'other' could not be downloaded.*no route to host"):
        cached("other", fail)


def test_downloaded_arrays_are_read_without_running_code(tmp_path: Path) -> None:
    path = tmp_path / "train.pt"
    for protocol in (2, 4):
        torch.save({"source": np.arange(4), "target": torch.arange(4)}, path, pickle_protocol=protocol)
        assert {k: v.tolist() for k, v in read_arrays(path).items()} == {"source": [0, 1, 2, 3], "target": [0, 1, 2, 3]}
    torch.save({"source": Path("harmless")}, path)
    with pytest.raises(InputError, match="not only arrays, and is refused"):
        read_arrays(path)
    path.write_bytes(pickle.dumps(print))
    with pytest.raises(InputError, match="refused"):
        read_arrays(path)


def test_every_listed_graph_has_one_line(digits: Graph) -> None:
    for info in available():
        assert info.about and "\n" not in info.about and info.where
    assert datasets_module.load("digits", symmetric=True).notes == digits.notes
    assert choose_split(digits, "random", 0).split is not None


def test_a_part_of_a_name_is_enough_for_a_hint(monkeypatch):
    monkeypatch.delenv("FARFLUNG_DATA", raising=False)
    with pytest.raises(InputError, match=r"unknown dataset 'cora' \(did you mean 'planetoid-cora'\?\); there are"):
        load("cora")
    with pytest.raises(InputError, match=r"unknown dataset 'zzzz'; there are"):
        load("zzzz")
