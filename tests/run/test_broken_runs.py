"""Runs that break, and folders that have changed since: what is left, and what is said."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from small_runs import SMALL, blobs

from farflung.errors import AllTrainersLostError, InputError, TrainerError
from farflung.graph import Split
from farflung.methods.base import Round
from farflung.partition import Partition
from farflung.run.config import resolve
from farflung.run.folder import RunFolder, read_json
from farflung.run.progress import MemoryJournal
from farflung.run.saved import SavedRun
from farflung.run.source import fingerprint
from farflung.run.train import execute, train
from farflung.team import Ledger


def test_when_all_trainers_die_the_checkpoint_loads_and_the_result_is_partial(tmp_path):
    config = resolve({"graph": "blobs", "method": "random-tma", "parts": 2, "interval": "1steps", **SMALL})
    with pytest.raises(AllTrainersLostError):
        execute(config, given=blobs(), out=tmp_path / "run", faults="kill:0@3, kill:1@3")
    folder = RunFolder.open(tmp_path / "run")
    metrics = folder.metrics()
    assert metrics["complete"] is False
    assert metrics["test"] is None
    assert metrics["rounds"] == 3
    assert metrics["bytes"]["weights"] > 0
    keeper = folder.read_checkpoint()
    assert keeper.rounds == 3
    assert keeper.best_score == metrics["val"]["accuracy"]
    assert all(torch.isfinite(value).all() for value in keeper.best.values())
    with pytest.raises(InputError, match=r"model.safetensors"):
        SavedRun.open(folder.path)


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), ZeroDivisionError("division by zero")])
def test_a_disk_that_refuses_the_last_files_does_not_hide_what_ended_the_run(ending, tmp_path, monkeypatch):
    class Breaking(MemoryJournal):
        def round(self, record: Round) -> None:
            raise ending

    def full(*_):
        raise OSError(28, "No space left on device")

    out = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(type(ending)) as error:
        patch.setattr("farflung.run.folder.save_file", full)
        train(blobs(), out=out, journal=Breaking(), **SMALL)
    assert error.value is ending
    (note,) = ending.__notes__
    assert "No space left on device" in note
    assert "\n" not in note
    assert read_json(out / "metrics.json")["complete"] is False
    assert Ledger.load(out / "ledger.parquet").total() > 0


def test_odd_parts_are_told_before_training():
    masks = np.zeros((3, 60), dtype=bool)
    masks[0, :20], masks[1, 20:30], masks[2, 30:] = True, True, True
    graph = blobs(split=Split(*masks))
    told: list[str] = []

    class Late(MemoryJournal):
        def round(self, record: Round) -> None:
            assert told

    assignment = np.repeat([0, 1, 3], 20)
    parts = Partition.of(graph, assignment.astype(np.int32), 4)
    config = resolve({"graph": "blobs", "method": "random-tma", "interval": "2steps", **SMALL})
    execute(config, given=parts, warn=told.append, journal=lambda *_: nullcontext(Late()))
    assert len(told) == 2
    assert "part 2 has no nodes" in told[0]
    assert "all training labels are in part 0" in told[1]


def test_a_run_that_breaks_in_its_first_round_still_has_a_loadable_checkpoint(tmp_path):
    config = resolve({"graph": "blobs", **SMALL})
    with pytest.raises(TrainerError, match="trainer 1"):
        execute(config, given=blobs(), out=tmp_path / "run", faults="raise:1@0")
    assert RunFolder.open(tmp_path / "run").read_checkpoint().last


def test_a_fault_for_a_trainer_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="kill:7@0"):
        execute(resolve({"graph": "blobs", **SMALL}), given=blobs(), faults="kill:7@0")


def test_a_changed_graph_is_noticed_on_evaluation(tmp_path):
    from farflung.graph.store import save_graph

    save_graph(blobs(), tmp_path / "g.npz")
    run = train(str(tmp_path / "g.npz"), out=tmp_path / "run", **SMALL)
    assert SavedRun.open(run.folder).evaluate()["test"] == run.test
    save_graph(blobs(62), tmp_path / "g.npz")
    with pytest.raises(InputError, match="have changed"):
        SavedRun.open(run.folder)


def test_the_fingerprint_is_of_the_data_alone():
    graph = blobs()
    assert fingerprint(graph) == fingerprint(graph.with_(name="other", notes=("x",)))
    x = graph.x.copy()
    x[3, 1] += 1
    assert fingerprint(graph) != fingerprint(graph.with_(features=(x,)))
    assert fingerprint(graph) != fingerprint(graph.with_(y=None))
    assert fingerprint(graph) != fingerprint(graph.with_(ids=np.arange(60) + 1))


def test_rounds_weights_and_history_of_a_broken_lazy_run_agree(tmp_path):
    options = {"graph": "given", "method": "retexo", "parts": 2, "layers": 1, "hidden": 4, "dropout": 0.0}
    config = resolve({**options, "keep": "last", "steps": 20})
    with pytest.raises(AllTrainersLostError):
        execute(config, given=blobs(), out=tmp_path / "run", faults="kill:0@5,kill:1@5")
    folder = RunFolder.open(tmp_path / "run")
    kept = folder.read_checkpoint()
    straight = execute(config.replace(steps=kept.rounds), given=blobs())
    assert kept.rounds == (folder.path / "history.jsonl").read_text().count("\n") == 4
    assert all(torch.equal(kept.last[name], value) for name, value in straight.model.state_dict().items())


@pytest.mark.parametrize(("before", "after"), [("hidden: 4", "hidden: 5"), ("seed: 0", "seed: 1")])
def test_a_changed_configuration_is_not_evaluated(tmp_path, before, after):
    train(blobs(), method="centralised", hidden=4, steps=2, out=tmp_path / "run")
    assert SavedRun.open(tmp_path / "run").evaluate()
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(InputError, match=r"config\.yaml is not what the model was trained with"):
        SavedRun.open(tmp_path / "run")
