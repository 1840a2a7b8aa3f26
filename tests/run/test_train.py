"""Training from the library: the run, its folder, and the same run again."""

import json
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from small_runs import PUBLIC, SMALL, blobs

import farflung
from farflung.errors import InputError
from farflung.graph import Split
from farflung.methods.base import Round
from farflung.methods.presets import NODES, PRESETS
from farflung.partition import Partition
from farflung.run.config import read_yaml, resolve
from farflung.run.folder import RunFolder, read_json
from farflung.run.progress import MemoryJournal
from farflung.run.saved import SavedRun
from farflung.run.source import fingerprint
from farflung.run.train import execute, train
from farflung.team import Ledger


def small(method: str) -> dict:
    """Options for a short run of any method."""
    options = dict(PUBLIC)
    if NODES not in PRESETS[method].tasks:
        options |= {"split": "random", "time_limit": None, "clusters": 20, "eval_negatives": 10, "interval": "2steps"}
    if method in ("random-tma", "super-tma", "psgd-pa", "centralised", "gcn-kipf"):
        options["interval"] = "2steps"
    return options


@pytest.mark.parametrize("method", PRESETS)
def test_every_method_trains_and_its_folder_is_complete(method, tmp_path):
    run = train("digits", method=method, out=tmp_path / "run", **small(method))
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.yaml",
        "manifest.json",
        "history.jsonl",
        "ledger.parquet",
        "timeline.parquet",
        "metrics.json",
        "model.safetensors",
        "checkpoint",
    }
    metrics = read_json(run.folder / "metrics.json")
    assert metrics == run.metrics
    assert metrics["test"] == run.test
    links = NODES not in PRESETS[method].tasks
    assert 0 <= metrics["test"]["mrr" if links else "accuracy"] <= 1
    assert metrics["complete"] is True
    assert metrics["rounds"] == len(run.history) == (run.folder / "history.jsonl").read_text().count("\n")
    assert metrics["bytes"]["total"] == sum(v for kind, v in metrics["bytes"].items() if kind != "total")
    assert metrics["training_bytes"] <= metrics["bytes"]["total"]
    assert Ledger.load(run.folder / "ledger.parquet") == run.ledger
    assert metrics["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert metrics["last"].keys() == {"val", "test"}
    manifest = RunFolder.open(run.folder).manifest()
    assert manifest["threads"] == 1
    assert manifest["graph"]["fingerprint"] == fingerprint(farflung.load("digits"))
    assert manifest["partition"]["digest"] == run.partition.digest
    assert (manifest["model"]["num_features"], manifest["model"]["num_classes"]) == (64, 0 if links else 10)
    best = [record.round for record in run.history if record.best]
    assert metrics["best_round"] in best


def test_the_folders_configuration_is_complete_and_runs_again_to_the_bit(tmp_path):
    first = train("digits", method="super-tma", out=tmp_path / "a", parts=3, interval="3steps", **SMALL)
    config = resolve({}, file=read_yaml(tmp_path / "a" / "config.yaml"))
    assert config == first.config
    assert config.split == "random"
    assert config.metric == "accuracy"
    again = execute(config, out=tmp_path / "b")
    assert again.metrics["test"] == first.metrics["test"]
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert again.ledger == first.ledger


def test_another_seed_is_another_run():
    one, two = (train("digits", seed=seed, **SMALL) for seed in (0, 1))
    assert one.partition.digest != two.partition.digest
    assert not np.array_equal(one.graph.split.train, two.graph.split.train)


@pytest.mark.parametrize("method", ["retexo", "super-tma"])
def test_a_fresh_process_predicts_the_same_to_the_bit(method, tmp_path):
    run = train("digits", method=method, out=tmp_path / "run", **small(method))
    script = (
        "import sys, numpy as np; from farflung.run.saved import SavedRun; s = SavedRun.open(sys.argv[1]);"
        "p = s.predict(); np.savez(sys.argv[2], ids=p.ids, p=p.probabilities);"
        "import json; print(json.dumps(s.evaluate()))"
    )
    command = [sys.executable, "-c", script, str(run.folder), str(tmp_path / "p.npz")]
    scores = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert scores == {"val": run.val, "test": run.test}
    here = run.predict()
    with np.load(tmp_path / "p.npz", allow_pickle=False) as there:
        np.testing.assert_array_equal(there["ids"], here.ids)
        np.testing.assert_array_equal(there["p"], here.probabilities)
        assert there["p"].dtype == here.probabilities.dtype


def test_the_saved_model_holds_norms_and_heads(tmp_path):
    run = train("digits", out=tmp_path / "run", **SMALL)
    saved = RunFolder.open(run.folder).weights()
    assert saved.keys() == run.model.state_dict().keys()
    assert any("norm" in name for name in saved)
    assert any("head" in name for name in saved)
    assert all(torch.equal(saved[name], value) for name, value in run.model.state_dict().items())


def test_a_graph_in_memory_is_kept_with_the_run_and_ids_come_back(tmp_path):
    ids = np.array([f"node-{i:02d}" for i in range(60)])
    graph = blobs(class_names=("no", "yes")).with_(ids=ids)
    run = train(graph, out=tmp_path / "run", parts=2, **SMALL)
    assert run.config.graph == str(tmp_path / "run" / "graph.npz")
    saved = SavedRun.open(run.folder)
    assert saved.evaluate() == {"val": run.val, "test": run.test}
    table = saved.predict().table().to_pydict()
    assert table["id"] == ids.tolist()
    assert set(table["label"]) <= {"no", "yes"}
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert again.metrics["test"] == run.metrics["test"]


def test_a_partition_in_memory_is_used_and_kept(tmp_path):
    parts = farflung.cut(blobs(), by="random", parts=3, seed=5)
    run = train(parts, out=tmp_path / "run", **SMALL)
    assert run.partition.digest == parts.digest
    assert (run.config.partition.by, run.config.partition.parts) == ("given", 3)
    assert SavedRun.open(run.folder).evaluate()["test"] == run.test
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert again.metrics["test"] == run.metrics["test"]


def test_a_partition_folder_trains_like_the_graph_that_it_was_cut_from(tmp_path):
    graph = blobs()
    farflung.cut(graph, by="random", parts=4, seed=0).save(tmp_path / "parts")
    whole = train(graph, **SMALL)
    from_parts = train(str(tmp_path / "parts"), **SMALL)
    assert from_parts.partition.digest == whole.partition.digest
    assert from_parts.metrics["test"] == whole.metrics["test"]
    assert all(
        torch.equal(value, from_parts.model.state_dict()[name]) for name, value in whole.model.state_dict().items()
    )


def test_centralised_takes_the_reassembled_graph_of_a_partition_folder(tmp_path):
    graph = blobs()
    farflung.cut(graph, by="random", parts=4).save(tmp_path / "parts")
    options = {**SMALL, "interval": "2steps", "method": "centralised"}
    assert train(str(tmp_path / "parts"), **options).metrics["test"] == train(graph, **options).metrics["test"]


def test_other_parts_than_the_folders_are_an_error(tmp_path):
    farflung.cut(blobs(), parts=2).save(tmp_path / "parts")
    with pytest.raises(InputError, match=r"cut already, into 2 parts.*partition.parts"):
        train(str(tmp_path / "parts"), parts=5, **SMALL)
    assert train(str(tmp_path / "parts"), parts=2, **SMALL).partition.num_parts == 2


def test_a_number_of_parts_set_by_hand_counts_also_where_it_is_the_presets_own(tmp_path):
    farflung.cut(blobs(), parts=4).save(tmp_path / "parts")
    usual = {**SMALL, "method": "random-tma", "interval": "2steps"}
    assert train(str(tmp_path / "parts"), **usual).partition.num_parts == 4
    assert train(str(tmp_path / "parts"), parts="4", by="random", **usual).partition.num_parts == 4
    with pytest.raises(InputError, match=r"cut already, into 4 parts.*partition.parts"):
        train(str(tmp_path / "parts"), parts="3", **usual)


def test_a_chosen_split_of_a_graph_in_memory_stands():
    masks = np.zeros((3, 60), dtype=bool)
    masks[0, :20], masks[1, 20:30], masks[2, 30:] = True, True, True
    run = train(blobs(split=Split(*masks)), **SMALL)
    assert run.config.split is None
    np.testing.assert_array_equal(run.graph.split.test, masks[2])


def test_the_public_split_is_the_default_where_there_is_one():
    masks = np.zeros((3, 60), dtype=bool)
    masks[0, :20], masks[1, 20:30], masks[2, 30:] = True, True, True
    run = train(blobs(public_splits=(Split(*masks),)), **SMALL)
    assert run.config.split == "public"
    np.testing.assert_array_equal(run.graph.split.train, masks[0])


def test_multilabel_trains_and_predicts_a_column_per_class():
    y = np.random.default_rng(1).integers(0, 2, (60, 3)).astype(np.uint8)
    run = train(blobs(y=y), **SMALL)
    assert run.config.metric == "f1_micro"
    assert run.predict().table().column_names == ["id", "0", "1", "2"]


@pytest.mark.parametrize(
    ("graph", "options", "match"),
    [
        (blobs().with_(y=None), {}, "no labels"),
        (blobs().with_(features=(None,)), {}, "no features.*degree"),
        (blobs(), {"metric": "mrr"}, "'metric' cannot be 'mrr': choose from accuracy"),
        (blobs(), {"parts": 99}, "99 parts.*60 nodes"),
        (blobs(), {"split": "random:0/0.5/0.5"}, "no training node"),
        (blobs(), {"split": "public"}, "no public split"),
        ("no-such-graph", {}, "no-such-graph.*digits"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_training(graph, options, match, tmp_path):
    with pytest.raises(InputError, match=match) as error:
        train(graph, out=tmp_path / "run", **{**SMALL, **options})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_features_by_name_train_a_graph_that_has_none():
    bare = blobs().with_(features=(None,))
    assert train(bare, features="degree", **SMALL).graph.num_features == 2
    assert train(bare, features="gaussian:8", **SMALL).graph.num_features == 9


def test_an_existing_run_is_refused_before_training_unless_overwritten(tmp_path):
    train(blobs(), out=tmp_path / "run", **SMALL)
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    seen = MemoryJournal()
    with pytest.raises(InputError, match="not empty"):
        train(blobs(), out=tmp_path / "run", journal=seen, **SMALL)
    assert seen.history == []
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before
    run = train(blobs(), out=tmp_path / "run", journal=seen, overwrite=True, **SMALL)
    assert seen.history == run.history


@pytest.mark.parametrize(
    ("graph", "options"), [("no-such-graph", {}), (blobs(), {"parts": 99}), (blobs(), {"metric": "mrr"})]
)
def test_a_run_that_cannot_begin_leaves_the_one_that_it_was_to_replace(graph, options, tmp_path):
    train(blobs(), out=tmp_path / "run", **SMALL)
    before = contents(tmp_path / "run")
    with pytest.raises(InputError):
        train(graph, out=tmp_path / "run", overwrite=True, **{**SMALL, **options})
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_not_replaced_by_one_that_reads_its_only_graph(tmp_path):
    kept = {"graph.npz": blobs(), "partition": farflung.cut(blobs(), parts=2)}
    for name, given in kept.items():
        out = tmp_path / name
        train(given, out=out, **SMALL)
        before = contents(out)
        config = resolve({}, file=read_yaml(out / "config.yaml"))
        with pytest.raises(InputError, match=rf"{name} lies in run folder .*choose another --out"):
            execute(config, out=out, overwrite=True)
        assert contents(out) == before
    with pytest.raises(InputError, match="partition lies in run folder"):
        train(Partition.open(out / "partition"), out=out, overwrite=True, **SMALL)
    assert contents(out) == before


@pytest.mark.parametrize("threads", [1, None])
def test_threads_are_set_for_the_run_only_and_are_as_many_in_compiled_code(threads):
    def now() -> tuple[int, int]:
        return torch.get_num_threads(), numba.get_num_threads()

    usual, seen = now(), []

    class Spy(MemoryJournal):
        def round(self, record: Round) -> None:
            seen.append(now())

    try:
        torch.set_num_threads(1)
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
        before = now()
        train(blobs(), journal=Spy(), **{**SMALL, "threads": threads})
        assert set(seen) == {(1, 1)}
        assert now() == before
    finally:
        torch.set_num_threads(usual[0])
        numba.set_num_threads(usual[1])


def test_the_configuration_means_the_same_from_any_folder(tmp_path, monkeypatch):
    from farflung.graph.store import save_graph

    monkeypatch.chdir(tmp_path)
    save_graph(blobs(), "g.npz")
    np.save("sides.npy", np.arange(60) % 3)
    run = train("g.npz", out="run", by="given", given="sides.npy", **SMALL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert again.metrics["test"] == run.metrics["test"]
    assert again.partition.digest == run.partition.digest
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test


def test_a_file_that_is_called_like_a_column_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "region").write_text("x")
    graph = blobs().with_(columns={"region": np.arange(60) % 3})
    run = train(graph, by="given", given="region", **SMALL)
    assert run.config.partition.given == "region"
    from farflung.graph.store import save_graph

    save_graph(graph, "g.npz")
    assert train("g.npz", by="given", given="region", **SMALL).partition.digest == run.partition.digest


def test_a_folder_that_is_called_like_a_data_set_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert train("digits", **SMALL).graph.num_nodes == 1797
