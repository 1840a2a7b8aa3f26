"""Synchronous training and BNS-GCN from options to run folders."""

import math

import numpy as np
import pytest
from small_runs import SMALL, blobs

import farflung
from farflung.cli import main
from farflung.errors import InputError, PeerLostError
from farflung.graph.store import save_graph
from farflung.run.config import parse_assignments, preset_yaml, resolve
from farflung.run.folder import RunFolder
from farflung.run.saved import SavedRun
from farflung.run.train import Run, execute

METHODS = pytest.mark.parametrize("method", ["synchronous", "bns"])


def trained(method: str, **options: object) -> Run:
    usual = {**SMALL, "dtype": "float64", "dropout": 0.0, "keep": "last", "split": "random", "interval": "2steps"}
    return farflung.train(blobs(), method=method, **{**usual, **options})


def weights_of(run: Run) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in run.model.state_dict().values()])


VARIANTS = {
    "first-mlp": {"model.first": "mlp"},
    "first-mlp-residual": {"model.first": "mlp", "model.residual": True, "layers": 3},
    "residual": {"model.residual": True, "layers": 3},
    "prelu-no-norm": {"model.activation": "prelu", "model.norm": "none"},
    "elu": {"model.activation": "elu"},
    "clip": {"optim.clip": 0.1, "optim.clip_from": 3},
    "decay-first": {"optim.decay": "first", "optim.weight_decay": 0.1},
}


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_model_trains_as_in_one_place(name, encoder):
    options = {"encoder": encoder, "steps": 12, **VARIANTS[name]}
    central = trained("centralised", **options)
    run = trained("synchronous", parts=3, **options)
    assert np.abs(weights_of(run) - weights_of(central)).max() <= 1e-9
    assert run.val == central.val
    kinds = run.ledger.by_kind()
    if "mlp" in name:  # class scores cross, features never
        assert "features" not in kinds
        halo = sum(shard.num_halo for shard in run.partition.shards)
        gathering = options.get("layers", 2) - 1
        assert kinds["embeddings"] == kinds["embedding-gradients"] == 8 * halo * 2 * gathering * 12
    else:
        assert kinds["features"] > 0


@METHODS
def test_the_presets_say_what_the_methods_are(method):
    config = resolve({"graph": "g", "method": method})
    assert config.train.boundary_rate == (0.1 if method == "bns" else 1)
    assert config.partition.by == "random" and config.partition.parts == 4
    like = resolve({"graph": "g", "method": "retexo"})
    assert (config.model, config.optim, config.train.steps) == (like.model, like.optim, like.train.steps)
    assert ("boundary_rate" in preset_yaml(method)) == (method == "bns")
    assert "sample" not in preset_yaml(method)


def test_bns_with_all_rows_is_synchronous_to_the_bit():
    options = {"dtype": "float32", "dropout": 0.3, "parts": 3, "layers": 3}
    plain, whole = trained("synchronous", **options), trained("bns", boundary_rate=1, **options)
    assert weights_of(plain).tobytes() == weights_of(whole).tobytes()
    assert plain.ledger == whole.ledger
    assert [(r.loss, r.val, r.steps) for r in plain.history] == [(r.loss, r.val, r.steps) for r in whole.history]


def test_the_training_bytes_of_bns_are_those_of_the_rows_drawn():
    run = trained("bns", dtype="float32", boundary_rate=0.3, parts=3, layers=3)
    counts = [int(n) for shard in run.partition.shards for n in np.diff(shard.halo_ptr)]
    parameters = run.metrics["parameters"]
    drawn = sum(math.ceil(3 * n / 10) for n in counts)
    expected = 4 * sum(counts) * 4 + 8 * 6 * drawn * (8 + 8) + 8 * 3 * 6 * parameters
    assert run.metrics["training_bytes"] == expected


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "synchronous", "boundary_rate": 0.5}, r"'synchronous' does not use .*'train.boundary_rate'.*bns"),
        ({"method": "retexo", "boundary_rate": 0.5}, r"'retexo' does not use option 'train.boundary_rate'.*bns"),
        ({"boundary_rate": 0}, r"'train.boundary_rate' cannot be '0'.*greater than 0"),
        ({"boundary_rate": 1.5}, r"'train.boundary_rate' cannot be '1.5'.*less than or equal to 1"),
        ({"boundary_rate": "nan"}, r"'train.boundary_rate' cannot be 'nan'"),
        ({"boundary_rate": 0.5, "layers": 1}, r"'train.boundary_rate' does nothing with model.layers=1.*2 or more"),
        ({"boundary_rate": 0.5, "encoder": "mlp"}, r"'train.boundary_rate' does nothing with model.encoder=mlp"),
        ({"patience": 0}, r"'train.patience' cannot be '0'"),
        ({"fanouts": "5,5"}, r"'bns' does not use option 'sample.fanouts'"),
        ({"batch": 64}, r"'bns' does not use option 'sample.batch'"),
        ({"aggregation": "median"}, r"'bns' does not use option 'train.aggregation'"),
        ({"redeal": 2}, r"'bns' does not use option 'train.redeal'"),
        ({"task": "link-prediction"}, r"'bns' cannot do task 'link-prediction'"),
        ({"interval": "1s"}, r"'train.interval' is a time.*train.time_limit"),
    ],
)  # fmt: skip
def test_what_cannot_be_or_does_nothing_is_refused_in_one_line(given, match):
    with pytest.raises(InputError, match=match) as error:
        resolve({"graph": "g", "method": "bns", **given})
    assert "\n" not in str(error.value)


def test_options_are_accepted_as_text():
    given = parse_assignments(["train.boundary_rate=0.25", "train.patience=3", "deadline=5s"])
    config = resolve({"graph": "g", "method": "bns", **given})
    assert (config.train.boundary_rate, config.train.patience, config.train.deadline) == (0.25, 3, 5)


@METHODS
def test_a_run_on_the_command_line_is_saved_and_predicts(method, tmp_path, capsys):
    save_graph(blobs(), tmp_path / "blobs.npz")
    command = ["train", str(tmp_path / "blobs.npz"), "--method", method, "--parts", "3", "--hidden", "8"]
    assert main([*command, "--steps", "6", "--threads", "1", "--out", str(tmp_path / "run")]) == 0
    saved = SavedRun.open(tmp_path / "run")
    metrics = RunFolder.open(tmp_path / "run").metrics()
    assert metrics["complete"] is True and saved.config.method == method
    assert len(saved.predict().classes) == 60
    assert {"features", "embeddings", "embedding-gradients", "gradients", "weights"} <= metrics["bytes"].keys()


@METHODS
def test_a_lost_trainer_leaves_a_checkpoint_and_exit_code_1(method, tmp_path, capsys):
    save_graph(blobs(), tmp_path / "blobs.npz")
    command = [
        "train",
        str(tmp_path / "blobs.npz"),
        "--method",
        method,
        "--parts",
        "3",
        "--hidden",
        "8",
        "--steps",
        "6",
    ]
    options = ["--interval", "1steps", "--faults", "kill:2@3", "--threads", "1", "--out", str(tmp_path / "run")]
    assert main([*command, *options]) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "trainer 2" in said[0] and "round 3" in said[0] and "waiting for" in said[0]
    folder = RunFolder.open(tmp_path / "run")
    assert folder.metrics()["complete"] is False and folder.metrics()["rounds"] == 3
    assert folder.read_checkpoint().rounds == 3


@METHODS
def test_what_is_left_of_a_broken_run_is_what_the_rounds_before_made(method, tmp_path):
    options = {"graph": "blobs", "method": method, "parts": 3, "interval": "1steps", "keep": "last", **SMALL}
    with pytest.raises(PeerLostError):
        execute(resolve(options), given=blobs(), out=tmp_path / "run", faults="kill:0@4")
    whole = execute(resolve({**options, "steps": 4}), given=blobs())
    left = RunFolder.open(tmp_path / "run").read_checkpoint().last
    assert all((left[name] == value).all() for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("method", ["synchronous", "bns", "random-tma", "centralised"])
def test_patience_ends_training(method):
    parts = {} if method == "centralised" else {"parts": 2}
    run = trained(method, steps=4000, patience=4, interval="1steps", **parts)
    best = max(range(len(run.history)), key=lambda r: run.history[r].best * (r + 1))
    assert len(run.history) == best + 5 < 4000
    assert not any(record.best for record in run.history[best + 1 :])
