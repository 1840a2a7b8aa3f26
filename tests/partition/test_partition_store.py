"""Partitions on disk: round trips, memory maps, corruption, folders that are left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph import Graph, Split
from farflung.graph.compare import differences
from farflung.partition import Partition, partition
from farflung.partition.arrays import to_arrays


@pytest.fixture
def rich_graph() -> Graph:
    """60 nodes with everything that a graph can carry, CSR features, string ids and an awkward column name."""
    rng = np.random.default_rng(5)
    dense = rng.random((60, 6)).astype(np.float32) * (rng.random((60, 6)) < 0.3)
    splits = [Split(*(rng.integers(0, 3, 60) == np.arange(3)[:, None])) for _ in range(3)]
    return Graph.from_edges(
        rng.integers(0, 55, 200),
        rng.integers(0, 55, 200),
        num_nodes=60,
        features=(sp.csr_matrix(dense),),
        y=rng.choice(["x", "y", "z"], 60),
        split=splits[0],
        public_splits=tuple(splits[1:]),
        edge_type=rng.integers(0, 2, 200),
        edge_weight=rng.random(200),
        edge_attr=rng.random((200, 2)),
        edge_columns={"since": rng.integers(1990, 2020, 200)},
        columns={"../Région": rng.choice(["north", "süd"], 60), "age": rng.integers(0, 99, 60)},
        name="rich",
        notes=("one", "two"),
    ).with_(ids=np.array([f"n{i:03d}" for i in range(60)]))


@pytest.fixture
def folder(rich_graph: Graph, tmp_path: Path) -> Path:
    path = tmp_path / "parts"
    partition(rich_graph, "supernode", parts=3, seed=4, clusters=12).save(path)
    return path


def test_save_and_open_give_the_graph_back(rich_graph: Graph, folder: Path) -> None:
    made = partition(rich_graph, "supernode", parts=3, seed=4, clusters=12)
    opened = Partition.open(folder)
    assert opened.num_parts == 3
    assert opened.by == "supernode"
    assert opened.digest == made.digest == opened.manifest["digest"]
    assert np.array_equal(opened.assignment, made.assignment)
    assert np.array_equal(opened.clusters, made.clusters)
    assert opened.manifest["seed"] == 4
    assert opened.manifest["options"]["clusters"] == 12
    assert {"python", "numpy", "pymetis", "farflung"} <= set(opened.manifest["tools"])
    opened.verify()
    assert differences(opened.graph(), rich_graph) == []
    assert opened.graph() is opened.graph()
    for before, after in zip(made.shards, opened.shards, strict=True):
        assert before.info == after.info
        ours, theirs = to_arrays(before), to_arrays(after)
        assert list(ours) == list(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_shards_are_memory_mapped_and_opened_one_at_a_time(folder: Path) -> None:
    opened = Partition.open(folder)
    shard = opened.shards[-1]
    assert shard.part == 2
    for name in ("inner", "indices", "degree"):
        array = getattr(shard, name)
        assert isinstance(array, np.memmap), name
        assert not array.flags.writeable
    assert isinstance(shard.x.data, np.memmap)
    assert opened.shards[2] is not shard
    assert [s.part for s in opened.shards[1:]] == [1, 2]
    with pytest.raises(IndexError):
        opened.shards[3]


def test_opening_reads_no_contents(folder: Path) -> None:
    opened = Partition.open(folder)
    path = folder / "part-1" / "degree.npy"
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)
    assert Partition.open(folder).shards[1].num_inner == opened.shards[1].num_inner
    with pytest.raises(InputError, match=r"part-1/degree.npy: its contents differ from the checksum"):
        Partition.open(folder).verify()


def test_only_npy_and_json_and_no_pickle(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".npy", ".json"}
    listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert {entry["file"] for entries in listed.values() for entry in entries} == {
        path.relative_to(folder).as_posix() for path in files if path.suffix == ".npy"
    }
    for path in files:
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)


def test_empty_parts_and_types_survive(tmp_path: Path) -> None:
    graph = Graph.from_edges(
        [0, 1],
        [1, 2],
        num_nodes=4,
        node_type=[0, 1, 1, 0],
        features=(np.ones((2, 3), np.float16), None),
        node_type_names=("a", "b"),
        y=np.array([[0, 1], [1, 1], [0, 0], [1, 0]], np.uint8),
    )
    made = Partition.of(graph, np.array([0, 2, 2, 0]), 4)
    made.save(tmp_path / "p")
    opened = Partition.open(tmp_path / "p")
    opened.verify()
    assert differences(opened.graph(), graph) == []
    assert opened.by == "given"
    assert opened.clusters is None


def _edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**manifest, **changes}), encoding="utf-8")


def _edit_entry(folder: Path, *drop: str, part: str = "part-1", **changes: Any) -> None:
    files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
    files[part][0] = {key: value for key, value in {**files[part][0], **changes}.items() if key not in drop}
    _edit_manifest(folder, files=files)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "part-1" / "indices.npy").unlink(), r"part-1/indices.npy: is missing"),
        (lambda f: _truncate(f / "part-0" / "inner.npy"), r"part-0/inner.npy: has \d+ bytes, expected \d+"),
        (lambda f: _truncate(f / "assignment.npy"), r"assignment.npy: has \d+ bytes"),
        (lambda f: (f / "manifest.json").unlink(), "holds no manifest.json"),
        (lambda f: (f / "manifest.json").write_text("{"), r"manifest.json: cannot be read"),
        (lambda f: (f / "manifest.json").write_text("[]"), "describes no partition"),
        (lambda f: _edit_manifest(f, format=2), "format version 2, this Farflung reads version 1"),
        (lambda f: _edit_manifest(f, files={}), "lacks 'files.partition'"),
        (lambda f: _edit_manifest(f, parts=5), r"lacks 'files.part-3'"),
        (lambda f: _edit_manifest(f, parts="x"), r"manifest.json: `parts`: Input should be a valid integer"),
        (lambda f: _edit_manifest(f, parts=0), r"`parts`: Input should be greater than 0"),
        (lambda f: _edit_manifest(f, files=[]), r"`files`: Input should be an object"),
        (lambda f: _edit_manifest(f, graph={"num_nodes": "many"}), r"`graph.num_nodes`"),
        (lambda f: _edit_manifest(f, part_names=3), r"`part_names`"),
        (lambda f: _edit_entry(f, bytes=None), r"`files.part-1.0.bytes`"),
        (lambda f: _edit_entry(f, shape="x"), r"`files.part-1.0.shape`"),
        (lambda f: _edit_entry(f, "bytes"), r"`files.part-1.0.bytes`: Field required"),
        (lambda f: _edit_entry(f, "name", part="partition"), r"`files.partition.0.name`: Field required"),
        (lambda f: _edit_entry(f, part="partition", name="other"), r"lacks 'files.partition.assignment'"),
        *(
            (lambda f, file=file: _edit_entry(f, file=file), r"`files.part-1.0.file`: '.*' leads out of the folder")
            for file in ("../x.npy", "part-1/../../x.npy", "/etc/x.npy", "C:x.npy", "..\\x.npy", "a\0.npy")
        ),
    ],
)
def test_damaged_folders_are_named(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(InputError, match=message) as caught:
        Partition.open(folder)
    assert "\n" not in str(caught.value)


def test_a_header_that_differs_from_the_manifest(folder: Path) -> None:
    path = folder / "part-0" / "inner.npy"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"'<i8'", b"'<f8'"))
    opened = Partition.open(folder)
    with pytest.raises(InputError, match=r"part-0/inner.npy: holds <f8"):
        opened.shards[0]


def test_verify_sees_shards_that_do_not_belong_together(rich_graph: Graph) -> None:
    first = partition(rich_graph, parts=2, seed=0)
    second = partition(rich_graph, parts=2, seed=1)
    first.verify()
    first.shards = [first.shards[0], second.shards[1]]
    with pytest.raises(InputError, match="part 1: `inner`"):
        first.verify()


def test_a_folder_with_other_files_is_left_alone(rich_graph: Graph, tmp_path: Path) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files and no partition"):
        partition(rich_graph, parts=2).save(mine)
    assert [path.name for path in tmp_path.rglob("*")] == ["thesis", "thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        partition(rich_graph, parts=2).save(mine / "thesis.tex")


def test_an_older_partition_and_an_empty_folder_are_replaced(rich_graph: Graph, folder: Path) -> None:
    opened = Partition.open(folder)
    new = partition(rich_graph, parts=2, seed=9)
    new.save(folder)
    assert not (folder / "part-2").exists()
    assert Partition.open(folder).digest == new.digest
    assert opened.digest != new.digest
    (folder.parent / "empty").mkdir()
    new.save(folder.parent / "empty")
    assert Partition.open(folder.parent / "empty").digest == new.digest
    assert sorted(path.name for path in folder.parent.iterdir()) == ["empty", "parts"]


def test_an_opened_partition_can_be_saved_over_itself(rich_graph: Graph, folder: Path) -> None:
    opened = Partition.open(folder)
    opened.save(folder)
    again = Partition.open(folder)
    again.verify()
    assert differences(again.graph(), rich_graph) == []


def test_a_write_that_fails_leaves_the_old_partition(
    rich_graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Partition.open(folder).digest
    calls = []

    def fail(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        original(*args, **kwargs)

    original = np.save
    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(InputError, match="No space left on device"):
        partition(rich_graph, parts=2).save(folder)
    monkeypatch.undo()
    assert Partition.open(folder).digest == before
    assert [path.name for path in folder.parent.iterdir()] == ["parts"]


def test_a_rename_that_fails_puts_the_old_partition_back(
    rich_graph: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Partition.open(folder).digest
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if target == folder and not self.name.endswith("-old"):
            raise OSError(13, "Permission denied")
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InputError, match=r"writing failed \(Permission denied\), nothing was changed"):
        partition(rich_graph, parts=2).save(folder)
    monkeypatch.undo()
    assert Partition.open(folder).digest == before
    assert [path.name for path in folder.parent.iterdir()] == ["parts"]


@pytest.mark.parametrize("file", ["part-1/y.npy", "part-0/features.0.data.npy", "part-2/degree.npy", "clusters.npy"])
def test_a_file_with_other_values_is_found_before_the_graph_is_used(folder: Path, file: str) -> None:
    array = np.load(folder / file)
    np.save(folder / file, array[::-1])
    opened = Partition.open(folder)
    with pytest.raises(InputError, match=rf"{file}: its contents differ from the checksum") as caught:
        opened.graph()
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=rf"{file}: its contents differ"):
        opened.save(folder.parent / "copy")


def test_a_digest_that_is_not_the_assignment_s_is_found_before_the_graph_is_used(folder: Path) -> None:
    _edit_manifest(folder, digest="0" * 64)
    with pytest.raises(InputError, match=r"manifest.json: `digest` is not that of the assignment"):
        Partition.open(folder).graph()


def test_shards_that_do_not_fit_are_found_though_their_checksums_hold(rich_graph: Graph, folder: Path) -> None:
    made = partition(rich_graph, "supernode", parts=3, seed=4, clusters=12)
    made.shards[1].indices[0] += 1000
    made.save(folder)
    with pytest.raises(InputError, match="part 1: `indices` holds values outside"):
        Partition.open(folder).graph()


def test_features_that_are_not_finite_are_found_on_import(tmp_path: Path, path_graph: Graph) -> None:
    x = path_graph.x.copy()
    x[2, 1] = np.nan
    partition(path_graph.with_(features=(x,)), parts=2).save(tmp_path / "p")
    with pytest.raises(InputError, match="`x` must be finite, found nan at row 2, column 1"):
        Partition.open(tmp_path / "p").graph()


def test_the_folder_has_the_usual_mode_and_the_umask_is_left_alone(
    rich_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "usual").mkdir()
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to the whole process"))
    partition(rich_graph, parts=2).save(tmp_path / "p")
    assert (tmp_path / "p").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "usual"]
