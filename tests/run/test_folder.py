"""The run folder: refused before training, written whole or not at all."""

import os
import stat

import pytest
import torch

from farflung.errors import FarflungError, InputError
from farflung.files import write_atomic
from farflung.methods.base import Keeper
from farflung.run import folder as module
from farflung.run.config import resolve
from farflung.run.folder import RunFolder, read_json, read_weights, write_json, write_weights
from farflung.team import Ledger


def test_create_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    folder = RunFolder.create(tmp_path / "a" / "b")
    assert list(folder.path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"not empty.*--overwrite"):
        RunFolder.create(tmp_path)


def test_overwrite_removes_an_earlier_run_and_nothing_else(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(resolve({"graph": "digits"}))
    folder.write_checkpoint(Keeper("accuracy", last={"w": torch.ones(2)}))
    (folder.path / "mine.txt").write_text("keep me")
    RunFolder.create(folder.path, overwrite=True)
    assert [path.name for path in folder.path.iterdir()] == ["mine.txt"]


def test_a_check_removes_nothing(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(resolve({"graph": "digits"}))
    with pytest.raises(InputError, match="not empty"):
        RunFolder.check(folder.path)
    checked = RunFolder.check(folder.path, overwrite=True)
    assert [path.name for path in folder.path.iterdir()] == ["config.yaml"]
    checked.claim(overwrite=True)
    assert [path.name for path in folder.path.iterdir()] == [".running"]
    checked.release()
    assert list(folder.path.iterdir()) == []


def test_a_folder_is_one_run_s(tmp_path):
    first, second = RunFolder.check(tmp_path / "run"), RunFolder.check(tmp_path / "run")
    first.claim()
    with pytest.raises(InputError, match="another run is writing"):
        second.claim()
    first.release()
    second.claim()


def test_overwrite_spares_a_folder_that_holds_no_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="no run to overwrite"):
        RunFolder.create(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_a_file_in_the_way_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written") as error:
        RunFolder.create(tmp_path / "file" / "run")
    assert "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder.create(tmp_path / "run")


def test_a_write_that_breaks_off_leaves_the_old_content_and_no_litter(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"a": 1})

    def half(temporary):
        temporary.write_text("{")
        raise OSError(28, "No space left on device")

    with pytest.raises(FarflungError, match=r"No space left on device.*make room"):
        write_atomic(path, half)
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_leaves(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        write_json(tmp_path / "m.json", {})
        write_weights(tmp_path / "w.safetensors", {"w": torch.ones(2)})
        Ledger().save(tmp_path / "l.parquet")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {mode}


def test_a_ledger_that_cannot_be_saved_is_one_sentence_and_leaves_no_litter(tmp_path, monkeypatch):
    def half(_table, path, **_):
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    path = tmp_path / "ledger.parquet"
    Ledger().save(path)
    before = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(FarflungError, match=r"ledger.parquet cannot be written"):
        patch.setattr("pyarrow.parquet.write_table", half)
        Ledger().save(path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("ledger.parquet", before)]


def test_numbers_that_json_lacks_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "m.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_weights_come_back_to_the_bit_also_views_and_shared_ones(tmp_path):
    base = torch.randn(4, 3, dtype=torch.float64)
    weights = {"a": base, "b": base.T, "c": base[1], "d": torch.tensor(3)}
    write_weights(tmp_path / "w.safetensors", weights)
    back = read_weights(tmp_path / "w.safetensors")
    assert back.keys() == weights.keys()
    for name, value in weights.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


def test_damaged_files_are_named(tmp_path):
    for name, read in (("w.safetensors", read_weights), ("m.json", read_json)):
        path = tmp_path / name
        with pytest.raises(InputError, match=name):
            read(path)
        path.write_bytes(b"\x80garbage")
        with pytest.raises(InputError, match=name):
            read(path)


def test_a_checkpoint_comes_back_and_an_interrupted_one_leaves_the_one_before(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path / "run")
    first = Keeper("accuracy")
    first.offer(0, {"w": torch.tensor([1.0, 2.0])}, {"accuracy": 0.5})
    first.offer(1, {"w": torch.tensor([3.0, 4.0])}, {"accuracy": 0.4})
    first.rounds = 2
    folder.write_checkpoint(first)
    back = folder.read_checkpoint()
    assert (back.metric, back.best_score, back.best_round, back.rounds) == ("accuracy", 0.5, 0, 2)
    assert torch.equal(back.best["w"], torch.tensor([1.0, 2.0]))
    assert torch.equal(back.last["w"], torch.tensor([3.0, 4.0]))

    first.rounds = 3
    first.last = {"w": torch.tensor([9.0, 9.0])}

    def full(*_):
        raise FarflungError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", full)
        with pytest.raises(FarflungError, match="disk full"):
            folder.write_checkpoint(first)
    assert torch.equal(folder.read_checkpoint().last["w"], torch.tensor([3.0, 4.0]))

    folder.write_checkpoint(first)
    assert torch.equal(folder.read_checkpoint().last["w"], torch.tensor([9.0, 9.0]))
    assert sorted(p.name for p in (folder.path / "checkpoint").iterdir()) == ["round-3.safetensors", "state.json"]


def test_open_refuses_what_is_no_run_folder_or_a_later_format(tmp_path):
    with pytest.raises(InputError, match="no run folder"):
        RunFolder.open(tmp_path)
    folder = RunFolder.create(tmp_path / "run")
    folder.write_config(resolve({"graph": "digits"}))
    folder.write_manifest({})
    assert RunFolder.open(folder.path).config() == resolve({"graph": "digits"})
    write_json(folder.path / "manifest.json", {"format_version": 99})
    with pytest.raises(InputError, match=r"99.*upgrade"):
        RunFolder.open(folder.path)
