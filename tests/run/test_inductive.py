"""Runs whose validation and test nodes are unseen in training: what trainers hold, and what is scored on what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from farflung.errors import InputError
from farflung.graph import Graph, Split, choose_split, load
from farflung.methods.presets import PRESETS
from farflung.nn import graph_adjacency
from farflung.nn.features import features_as_factor
from farflung.partition import Partition, partition
from farflung.run.config import resolve
from farflung.run.saved import SavedRun
from farflung.run.source import prepare
from farflung.run.train import Run, train

SMALL = {"steps": 8, "hidden": 8, "threads": 1, "dtype": "float64", "dropout": 0.0}
METHODS = ["centralised", "random-tma", "super-tma", "psgd-pa", "llcg", "retexo"]


def graph() -> Graph:
    found = load("sbm:nodes=200,classes=3,degree=8,homophily=0.8,features=6,seed=1")
    return choose_split(found.with_(ids=np.array([f"n{v:03d}" for v in range(200)])), "random", 0)


def options(method: str) -> dict[str, object]:
    more = {} if method == "centralised" else {"parts": 3}
    if method == "super-tma":
        more["clusters"] = 12
    return {**SMALL, **more, "method": method, "interval": "2steps"}


def without_unseen(whole: Graph) -> Graph:
    """Validation and test nodes deleted by hand, one edge after the other."""
    nodes = np.flatnonzero(whole.split.train | ~(whole.split.val | whole.split.test))
    place = {int(v): i for i, v in enumerate(nodes)}
    indptr, indices = [0], []
    for v in nodes:
        indices += [place[int(u)] for u in whole.indices[whole.indptr[v] : whole.indptr[v + 1]] if int(u) in place]
        indptr.append(len(indices))
    none = np.zeros(len(nodes), bool)
    return Graph(
        indptr=np.array(indptr, dtype=np.int64),
        indices=np.array(indices, dtype=whole.indices.dtype),
        features=(whole.x[nodes],),
        y=whole.y[nodes],
        class_names=tuple("abc"),
        ids=whole.ids[nodes],
        split=Split(whole.split.train[nodes], none, none),
    )


def weights(run: Run) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in run.model.state_dict().values()])


@pytest.mark.parametrize("method", METHODS)
def test_no_shard_holds_an_unseen_node_or_edge(method: str) -> None:
    whole = graph()
    source = prepare(resolve({"graph": "g", **options(method), "inductive": True}), whole)
    unseen = set(whole.original_ids[whole.split.val | whole.split.test].tolist())
    seen = set(whole.original_ids.tolist()) - unseen
    held, edges = [], 0
    for shard in source.partition.shards:
        held += shard.ids.tolist()
        edges += len(shard.indices)
        assert shard.split is not None and not (shard.split.val | shard.split.test).any()
        assert set(source.seen.original_ids[shard.halo].tolist()) <= seen
        assert shard.info.num_nodes == len(seen)
        for row, name in enumerate(shard.ids):
            v = int(np.flatnonzero(whole.ids == name)[0])
            assert np.array_equal(shard.x[row], whole.x[v]) and shard.y[row] == whole.y[v]
    assert sorted(held) == sorted(seen)
    ends = list(zip(whole.ids[whole.indices], whole.ids[whole.destinations()], strict=True))
    assert edges == sum(u in seen and v in seen for u, v in ends)
    assert source.graph.num_nodes == 200


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_those_of_training_on_what_is_left(method: str) -> None:
    whole = graph()
    inductive = train(whole, inductive=True, **{**options(method), "keep": "last"})
    plain = {**options(method), "keep": "last"}
    if method == "retexo":
        del plain["interval"]  # its trainers validate, each step
    assert np.array_equal(weights(inductive), weights(train(without_unseen(whole), **plain)))
    transductive = train(whole, **plain)
    assert not np.array_equal(weights(inductive), weights(transductive))


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
@pytest.mark.parametrize(("method", "more"), [*((m, {}) for m in METHODS), ("retexo", {"lazy": "weights"})])
def test_scores_are_central_ones_on_the_whole_graph(method: str, encoder: str, more: dict[str, str]) -> None:
    run = train(graph(), inductive=True, encoder=encoder, **options(method), **more)
    whole = graph()
    matrix = graph_adjacency(run.model.aggregation, whole, np.float64)
    logits = run.model.infer(matrix, run.model.prepare(matrix, features_as_factor(whole.x, torch.float64))).numpy()
    for mask in ("val", "test"):
        rows = getattr(whole.split, mask)
        assert run.metrics[mask]["accuracy"] == np.mean(logits[rows].argmax(1) == whole.y[rows])
    best = next(record for record in run.history if record.round == run.metrics["best_round"])
    assert best.val == run.val


@pytest.mark.parametrize("first", ["conv", "mlp"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_lazy_layers_are_scored_with_their_heads_at_each_interval(encoder: str, first: str) -> None:
    """Layer 0 alone with its head, by hand on the whole graph; a layer costs the evaluator its own and those below."""
    run = train(
        graph(),
        inductive=True,
        **{**options("retexo"), "steps": 10, "encoder": encoder, "first": first, "keep": "last"},
    )
    assert [record.val is not None for record in run.history] == [False, True, False, True, True] * 2
    whole, layer = graph(), run.model.layers[0]
    matrix = graph_adjacency(run.model.aggregation, whole, np.float64)
    with torch.no_grad():
        scores = layer.predict(layer.gather(matrix, features_as_factor(whole.x, torch.float64))).numpy()
    rows = whole.split.val
    assert run.history[4].val["accuracy"] == np.mean(scores[rows].argmax(1) == whole.y[rows])
    sizes = [sum(p.numel() for p in one.parameters()) for one in run.model.layers]
    assert run.ledger.by_kind()["evaluation"] == 8 * (3 * sizes[0] + 3 * sum(sizes))
    assert run.ledger.by_kind()["gradients"] == 8 * 3 * 5 * sum(sizes)
    assert run.ledger.by_kind()["weights"] == 8 * 3 * (5 * sum(sizes) + sizes[0])


@pytest.mark.parametrize("lazy", ["gradients", "weights"])
def test_lazy_training_builds_on_the_best_of_each_layer(lazy: str) -> None:
    run = train(graph(), inductive=True, lazy=lazy, lr=0.05, **{**options("retexo"), "steps": 60})
    for phase in ("layer0", "layer1"):
        scored = [record for record in run.history if record.phase == phase and record.val is not None]
        values = [record.val["accuracy"] for record in scored]
        assert [record.best for record in scored] == [v > max(values[:i], default=-1) for i, v in enumerate(values)]
    assert run.metrics["best_round"] == max(record.round for record in run.history if record.best)


def test_patience_counts_what_the_evaluator_scores() -> None:
    run = train(graph(), inductive=True, patience=2, **{**options("retexo"), "steps": 400, "lr": 0.05})
    for phase in ("layer0", "layer1"):
        mine = [record for record in run.history if record.phase == phase]
        scored = [record for record in mine[:-1] if record.val is not None]
        assert mine[-1].stopped and len(mine) < 200
        assert [record.best for record in scored[-2:]] == [False, False]


@pytest.mark.parametrize("by", ["random", "mincut", "supernode"])
def test_parts_that_came_with_the_graph_are_kept(by: str, tmp_path: Path) -> None:
    whole = graph()
    parts = partition(whole, by=by, parts=3, **({"clusters": 12} if by == "supernode" else {}))
    parts.save(tmp_path / "parts")
    for given in (parts, str(tmp_path / "parts")):
        run = train(given, inductive=True, method="random-tma", interval="2steps", **SMALL)
        for shard in run.partition.shards:
            place = np.searchsorted(whole.ids, shard.ids)
            assert (parts.assignment[place] == shard.part).all()
        assert sum(shard.num_inner for shard in run.partition.shards) == np.count_nonzero(whole.split.train)
    again = train(str(tmp_path / "parts"), inductive=True, method="random-tma", interval="2steps", **SMALL)
    assert np.array_equal(weights(run), weights(again))


@pytest.mark.parametrize("as_file", [False, True])
def test_given_parts_are_restricted(as_file: bool, tmp_path: Path) -> None:
    whole = graph()
    region = np.arange(200) % 4
    np.save(tmp_path / "parts.npy", region)
    given = str(tmp_path / "parts.npy") if as_file else "region"
    run = train(
        whole.with_(columns={"region": region}), inductive=True, method="random-tma", by="given", given=given,
        interval="2steps", **SMALL,
    )  # fmt: skip
    for shard in run.partition.shards:
        assert (region[np.searchsorted(whole.ids, shard.ids)] == shard.part).all()


def test_parts_can_be_dealt_anew() -> None:
    run = train(graph(), inductive=True, method="super-tma", redeal=1, clusters=12, parts=3, interval="2steps", **SMALL)
    assert len(run.history) == 4 and run.metrics["test"]["accuracy"] is not None


@pytest.mark.parametrize("features", ["degree", "gaussian:4"])
@pytest.mark.parametrize("normalise", ["none", "row"])
def test_features_of_degrees_count_seen_edges_alone(features: str, normalise: str) -> None:
    config = resolve(
        {"graph": "g", "inductive": True, "features": features, "normalise": normalise, **options("random-tma")}
    )
    source = prepare(config, graph())
    whole, seen = source.graph, source.seen
    place = np.searchsorted(whole.ids, seen.ids)
    column = 0 if features == "degree" else -1
    degree = np.log1p(seen.in_degree())
    assert not np.array_equal(seen.in_degree(), whole.in_degree()[place])
    if normalise == "none":
        assert np.allclose(seen.x[:, column], degree)
        others = np.arange(seen.x.shape[1]) != column % seen.x.shape[1]
        assert np.array_equal(seen.x[:, others], whole.x[place][:, others])
    else:
        assert np.allclose(np.abs(seen.x).sum(axis=1), 1)
    if features == "degree" and normalise == "row":
        assert np.allclose(seen.x[:, 0], degree / (degree + 1))


@pytest.mark.parametrize("method", ["random-tma", "retexo"])
def test_a_saved_run_scores_and_predicts_the_whole_graph(method: str, tmp_path: Path) -> None:
    run = train(graph(), inductive=True, out=tmp_path / "run", **options(method))
    saved = SavedRun.open(tmp_path / "run")
    assert saved.evaluate() == {"val": run.val, "test": run.test}
    found = saved.predict()
    assert found.ids.tolist() == graph().ids.tolist()
    assert np.array_equal(found.probabilities, run.predict().probabilities)
    assert saved.embed().rows.shape == (200, 8)
    assert saved.config.inductive


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "random-tma", "task": "link-prediction"}, "'inductive' is for nodes.*drop it"),
        ({"method": "retexo", "interval": "1s", "time_limit": "9s"}, "gradients are steps: write steps as '10steps'"),
        ({"method": "retexo", "interval": "1s", "time_limit": "9s", "lazy": "weights"}, None),
        ({"method": "retexo", "interval": "5steps"}, None),
        ({"method": "retexo", "aggregation": "median"}, "does nothing with train.lazy=gradients"),
    ],
)
def test_what_goes_with_it(given: dict[str, object], match: str | None) -> None:
    if match is None:
        assert resolve({"graph": "g", "inductive": True, **given}).inductive
        return
    with pytest.raises(InputError, match=match) as error:
        resolve({"graph": "g", "inductive": True, **given})
    assert "\n" not in str(error.value)


def test_patience_needs_something_to_validate_on() -> None:
    whole = graph()
    blind = whole.with_(split=Split(whole.split.train, np.zeros(200, bool), whole.split.test))
    with pytest.raises(InputError, match=r"'train.patience' counts validation scores.*nothing to validate on"):
        train(blind, method="retexo", patience=3, **SMALL)


def test_every_method_for_nodes_takes_the_option() -> None:
    for name, one in PRESETS.items():
        assert one.uses_option("inductive"), name


def test_a_partition_is_one_of_the_seen_nodes() -> None:
    run = train(graph(), inductive=True, method="random-tma", interval="2steps", **SMALL)
    assert isinstance(run.partition, Partition)
    assert len(run.partition.assignment) == np.count_nonzero(graph().split.train)
