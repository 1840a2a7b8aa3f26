"""PyG's convolutions as layers: as PyG runs them on the whole graph, and however that is cut."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from rig import rig
from test_lazy import held_logits

from farflung.errors import InputError
from farflung.graph import Graph, choose_split
from farflung.nn import ModelConfig, build_encoder, flat, graph_adjacency
from farflung.nn.config import Facts
from farflung.nn.inference import Inference
from farflung.nn.pyg_check import check_one_hop
from farflung.nn.pyg_conv import PyGConv

CONVS: dict[str, dict[str, object]] = {
    "SAGEConv": {"aggr": "max"},
    "GCNConv": {},
    "GATConv": {},
    "GATv2Conv": {},
    "GINConv": {"train_eps": True},
    "GINEConv": {},
    "PNAConv": {},
    "TransformerConv": {},
    "GraphConv": {},
    "ResGatedGraphConv": {},
    "GeneralConv": {},
    "EdgeConv": {},
}
HIDDEN = {"hidden": 8, "attention_heads": 2, "layers": 2, "dropout": 0.0}


@lru_cache(maxsize=1)
def attributed() -> Graph:
    """Directed edges with weights and attributes, loops, isolated nodes; 40 nodes."""
    rng = np.random.default_rng(3)
    source, destination = rng.integers(0, 34, 120), rng.integers(0, 34, 120)
    pairs = np.unique(np.stack([source, destination]), axis=1)
    graph = Graph.from_edges(
        *pairs,
        num_nodes=40,
        x=rng.normal(size=(40, 7)).astype(np.float32),
        y=np.arange(40) % 3,
        edge_weight=rng.uniform(0.5, 2, pairs.shape[1]).astype(np.float32),
        edge_attr=rng.normal(size=(pairs.shape[1], 4)).astype(np.float32),
        name="attributed",
    )
    return choose_split(graph, "random:0.4/0.3/0.3", 0)


def facts(graph: Graph) -> Facts:
    return Facts(edge_features=4, degrees=tuple(np.bincount(np.diff(graph.indptr)).tolist()))


def built(name: str):  # type: ignore[no-untyped-def]
    config = ModelConfig(encoder=name, conv=CONVS[name], **HIDDEN)  # type: ignore[arg-type]
    return build_encoder(config, 7, 3, False, 0, torch.float64, facts=facts(attributed()))


@pytest.mark.parametrize("name", [name for name in CONVS if name not in ("EdgeConv",)])
def test_it_is_what_pyg_computes_on_the_whole_graph(name: str) -> None:
    graph, encoder = attributed(), built(name)
    matrix = graph_adjacency(encoder.aggregation, graph, np.float64)
    x = torch.from_numpy(graph.x.astype(np.float64))  # type: ignore[union-attr]
    found = encoder.infer(matrix, encoder.prepare(matrix, x))
    rows = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    ends = torch.from_numpy(np.stack([graph.indices.astype(np.int64), rows]))
    given = {"edge_weight": graph.edge_weight, "edge_attr": graph.edge_attr}
    h = x
    with torch.no_grad():
        for layer in encoder.layers:
            takes = layer.conv.takes
            options = {k: torch.from_numpy(v.astype(np.float64)) for k, v in given.items() if k in takes}  # type: ignore[union-attr]
            if name == "GCNConv":
                loops = ends[0] == ends[1]  # ours has loops of weight 1 in place of the graph's
                options = {"edge_weight": options["edge_weight"][~loops]}
                h = layer.conv.conv(h, ends[:, ~loops], **options)
            else:
                h = layer.conv.conv(h, ends, **options)
            for module in (layer.norm, layer.activation):
                h = h if module is None else module(h)
    assert np.ptp(found.numpy()) > 0.01
    assert (found - h).abs().max() <= 1e-9
    chunked = Inference(encoder.aggregation, graph, torch.float64, chunk=7).embed(encoder)
    assert (chunked - found).abs().max() <= 1e-9


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATv2Conv", "GINEConv", "PNAConv"])
def test_lazy_training_does_not_depend_on_the_cut(name: str) -> None:
    model = {"encoder": name, "conv": CONVS[name], **HIDDEN}
    vectors = []
    for parts, by in [(1, "random"), (2, "random"), (5, "random"), (2, "mincut"), (5, "mincut")]:
        run = rig(attributed(), "lazy", parts=parts, by=by, dtype="float64", steps=30, keep="last", model=model,
                  facts=facts(attributed())).train()  # fmt: skip
        assert np.abs(run.logits("last") - held_logits(run, "last")).max() <= 1e-9
        vectors.append(run.vector())
    assert max(np.abs(vector - vectors[0]).max() for vector in vectors[1:]) <= 1e-9


@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATv2Conv", "GINEConv", "PNAConv"])
def test_synchronous_training_is_training_in_one_place(name: str) -> None:
    options = {"dtype": "float64", "steps": 20, "interval": 10, "keep": "last", "facts": facts(attributed())}
    model = {"encoder": name, "conv": CONVS[name], **HIDDEN}
    central = rig(attributed(), "centralised", model=model, **options).train()  # type: ignore[arg-type]
    for parts in (2, 5):
        run = rig(attributed(), "synchronous", parts=parts, model=model, **options).train()  # type: ignore[arg-type]
        assert np.abs(run.vector() - central.vector()).max() <= 1e-9


@pytest.mark.parametrize("method", ["tma", "ggs"])
@pytest.mark.parametrize("name", ["SAGEConv", "GCNConv", "GATv2Conv", "GINEConv"])
def test_sampled_training(name: str, method: str) -> None:
    model = {"encoder": name, "conv": CONVS[name], **HIDDEN, "dropout": 0.2}
    runs = [
        rig(attributed(), method, parts=2, steps=6, interval=3, model=model, facts=facts(attributed()),
            sample={"fanouts": "3,3", "batch": 4}).train() for _ in range(2)
    ]  # fmt: skip
    assert np.isfinite(runs[0].vector()).all() and (runs[0].vector() == runs[1].vector()).all()
    assert (
        runs[0].vector() != flat.pack(rig(attributed(), method, model=model, facts=facts(attributed())).setting.model)
    ).any()


@pytest.mark.parametrize("name", ["TAGConv", "SGConv", "ChebConv"])
def test_more_than_one_hop_is_refused_by_name(name: str) -> None:
    arguments = {"K": 2}
    conv = PyGConv(getattr(pyg, name)(7, 3, **arguments), 7, 3)
    with pytest.raises(InputError, match=rf"{name} looks further than one hop"):
        check_one_hop(conv, Facts(), torch.float32)


@pytest.mark.parametrize("name", list(CONVS))
def test_one_hop_is_enough_for_the_others(name: str) -> None:
    if name == "EdgeConv":
        conv = PyGConv(pyg.EdgeConv(torch.nn.Linear(14, 3)), 7, 3)
        check_one_hop(conv.double(), Facts(), torch.float64)
        return
    for layer in built(name).layers:
        check_one_hop(layer.conv, Facts(edge_features=4), torch.float64)


@pytest.mark.parametrize(
    ("name", "conv", "match"),
    [
        ("SAGEConf", {}, r"unknown encoder 'SAGEConf' \(did you mean 'SAGEConv'\?\): choose from gcn, sage"),
        ("BatchNorm", {}, "unknown encoder 'BatchNorm'"),
        ("SAGEConv", {"agr": "max"}, r"option 'model.conv': SAGEConv cannot be made with \{'agr': 'max'\}"),
        ("GCNConv", {"improved": True}, "GCNConv with improved=True"),
        ("GCNConv", {"cached": True}, "GCNConv with cached=True"),
        ("GINEConv", {}, "GINEConv needs edge attributes"),
        ("GATConv", {"heads": 3}, "attention heads|cannot"),
    ],
)
def test_what_cannot_be_is_refused(name: str, conv: dict[str, object], match: str) -> None:
    with pytest.raises((InputError, ValueError), match=match):
        config = ModelConfig(encoder=name, conv=conv, hidden=8, attention_heads=3 if "heads" in conv else 2)
        build_encoder(config, 7, 3, False, 0, torch.float32)
