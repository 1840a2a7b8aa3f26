"""PyG's own models, handed in, trained by several methods, handed back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import farflung
from farflung.errors import InputError
from farflung.graph.pyg import to_pyg
from farflung.nn.pyg_model import describe
from farflung.run.saved import SavedRun

SBM = "sbm:nodes=120,classes=3,degree=6,homophily=0.9,features=8,seed=1"
F, C = 8, 3

MODELS = {
    "GraphSAGE": lambda: pyg.GraphSAGE(F, 16, 2, C, dropout=0.1, aggr="max"),
    "GCN": lambda: pyg.GCN(F, 16, 2, C, norm="LayerNorm", norm_kwargs={"mode": "node"}, act="elu"),
    "GAT": lambda: pyg.GAT(F, 16, 2, C, heads=4, v2=True, act_first=True),
    "GIN": lambda: pyg.GIN(F, 16, 3, C, train_eps=True),
}


def own_logits(model: torch.nn.Module, graph: farflung.Graph) -> np.ndarray:
    data = to_pyg(graph)
    with torch.no_grad():
        return model.eval()(data.x.to(next(model.parameters()).dtype), data.edge_index).numpy()


@pytest.mark.parametrize("method", ["random-tma", "retexo", "synchronous", "centralised"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_trained_and_handed_back(kind: str, method: str) -> None:
    graph = farflung.load(SBM)
    torch.manual_seed(0)
    model = MODELS[kind]().double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = farflung.train(graph, model=model, method=method, dtype="float64", steps=20, threads=1)
    assert type(model) is getattr(pyg, kind)
    assert any((model.state_dict()[name] != value).any() for name, value in before.items())
    probabilities = torch.softmax(torch.from_numpy(own_logits(model, graph)), dim=1).numpy()
    assert np.abs(run.predict().probabilities - probabilities).max() <= 1e-9
    fresh = run.module()
    assert type(fresh) is type(model) and np.abs(own_logits(fresh, graph) - own_logits(model, graph)).max() == 0


def test_training_begins_with_the_model_s_own_weights() -> None:
    torch.manual_seed(0)
    model = MODELS["GraphSAGE"]()
    start = own_logits(model, farflung.load(SBM))
    run = farflung.train(SBM, model=model, method="random-tma", steps=1, lr=1e-9, weight_decay=0.0, threads=1)
    assert np.abs(own_logits(run.module(), farflung.load(SBM)) - start).max() < 1e-5


def test_its_run_folder_repeats_and_opens_elsewhere(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    run = farflung.train(SBM, model=MODELS["GAT"](), method="retexo", steps=6, threads=1, out=tmp_path / "run")
    command = [sys.executable, "-m", "farflung"]
    again = [
        *command,
        "train",
        "--config",
        str(tmp_path / "run" / "config.yaml"),
        "--out",
        str(tmp_path / "again"),
        "-q",
    ]
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    code = (
        "import sys, numpy as np; from farflung.run.saved import SavedRun\n"
        "np.save(sys.argv[2], SavedRun.open(sys.argv[1]).predict().probabilities)"
    )
    for name in ("run", "again"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name), str(tmp_path / f"{name}.npy")], check=True)
        assert (np.load(tmp_path / f"{name}.npy") == run.predict().probabilities).all()
    assert SavedRun.open(tmp_path / "again").config.initial == str((tmp_path / "run" / "initial.safetensors").resolve())


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: pyg.GCN(F, 16, 2, C, norm="batch_norm"), "BatchNorm"),
        (lambda: pyg.GIN(F, 16, 2, C, norm="BatchNorm"), "BatchNorm"),
        (lambda: pyg.GCN(F, 16, 2, C, norm="GraphNorm"), "GraphNorm"),
        (lambda: pyg.GCN(F, 16, 2, C, norm="LayerNorm"), "LayerNorm with mode='graph'"),
        (lambda: pyg.GraphSAGE(F, 16, 2, C, jk="cat"), r"jumping knowledge \(jk='cat'\)"),
        (lambda: pyg.GraphSAGE(F, 16, 2, C, act="prelu"), "PReLU has weights that all layers share"),
        (lambda: pyg.GCN(F, 16, 2, C, improved=True), "improved=True"),
        (lambda: torch.nn.Linear(F, C), "a model of class Linear cannot be trained in parts"),
        (lambda: pyg.GraphSAGE(F + 1, 16, 2, C), r"do not fit the model: .* has shape \(16, 9\), expected \(16, 8\)"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_by_name(model, match) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=match):
        farflung.train(SBM, model=model(), method="retexo", steps=2)


def test_weights_do_not_matter_to_the_description() -> None:
    for made in MODELS.values():
        assert describe(made()) == describe(made())
    assert describe(MODELS["GAT"]())["conv"] == {"act": "ReLU", "act_first": True, "v2": True, "heads": 4}


def test_a_run_s_weights_are_a_start_for_another(tmp_path) -> None:  # type: ignore[no-untyped-def]
    first = farflung.train(SBM, method="random-tma", hidden=8, steps=10, threads=1, out=tmp_path / "first")
    second = farflung.train(
        SBM, method="random-tma", hidden=8, steps=1, lr=1e-9, weight_decay=0.0, threads=1,
        initial=str(tmp_path / "first" / "model.safetensors"),
    )  # fmt: skip
    for name, value in first.model.state_dict().items():
        assert (second.model.state_dict()[name] - value).abs().max() < 1e-6
    with pytest.raises(InputError, match="do not fit the model"):
        farflung.train(
            SBM, hidden=9, steps=1, initial=str(tmp_path / "first" / "model.safetensors"), method="random-tma"
        )
