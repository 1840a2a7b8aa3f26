"""Lazy training of links: against a plain loop, what crosses between parts, bytes, failures, and how well it learns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from rig import Rig, blocks, rig, tangled
from test_bytes import boundaries, training_kinds
from test_link_training import LINKS, dense_mean

from farflung.errors import AllTrainersLostError
from farflung.graph import Graph
from farflung.graph.links import training_pairs
from farflung.nn import ModelConfig, flat
from farflung.nn.decoders import LinkModel
from farflung.nn.model import build_link_model, first_layers
from farflung.run.evaluator import LinkEvaluator
from farflung.seeding import generator
from farflung.tasks import ranking
from farflung.tasks.link_prediction import score_links


def made(graph: Graph | None = None, **options: object) -> Rig:
    links = {**LINKS, "mask_targets": False, **options.pop("links", {})}  # type: ignore[dict-item]
    options = {"encoder": "sage", "steps": 12, "interval": 3, "dtype": "float64", "keep": "last", **options}
    return rig(graph or blocks(), "lazy", links=links, **options)


def gathered(encoder: str, h: torch.Tensor, matrix: torch.Tensor) -> list[torch.Tensor]:
    return [h, matrix @ h] if encoder == "sage" else [matrix @ h]


def gcn_matrix(graph: Graph) -> torch.Tensor:
    """D^-1/2 (A + I) D^-1/2 with loops replaced; edge by edge."""
    n = graph.num_nodes
    matrix = torch.eye(n, dtype=torch.float64)
    degree = torch.ones(n, dtype=torch.float64)
    for v in range(n):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            weight = 1.0 if graph.edge_weight is None else float(graph.edge_weight[e])
            if graph.indices[e] != v:
                matrix[v, int(graph.indices[e])] += weight
                degree[v] += weight
    return matrix / torch.sqrt(torch.outer(degree, degree))


def plain_loop(
    graph: Graph, encoder: str, directed: bool, steps: int, batch: int | None, residual: bool, each: int
) -> tuple[np.ndarray, list[float]]:
    """Layer after layer with dense algebra on one graph, each with its decoder; the draws are those documented."""
    config = ModelConfig(encoder=encoder, hidden=16, dropout=0.0, residual=residual)  # type: ignore[arg-type]
    model: LinkModel = build_link_model(config, "mlp", graph.num_features, 1, 0, torch.float64, True)
    source, destination = training_pairs(graph.indptr, graph.indices, directed)
    matrix = dense_mean(graph, set()) if encoder == "sage" else gcn_matrix(graph)
    h = torch.from_numpy(np.asarray(graph.x, dtype=np.float64))
    losses = []

    def output(layer, h: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        operands = gathered(encoder, h, matrix)
        out = sum(a @ w for a, w in zip(operands, layer.conv.weights, strict=True)) + layer.conv.bias
        if layer.norm is not None:
            out = layer.activation(layer.norm(out))
        if residual:
            out = out + (h if layer.skip.weight is None else h @ layer.skip.weight)
        return out

    decoders = [model.heads[0], model.decoder]
    for number, (layer, decoder) in enumerate(zip(model.encoder.layers, decoders, strict=True)):
        adam = torch.optim.Adam([*layer.parameters(), *decoder.parameters()], lr=0.01, weight_decay=5e-4)
        for round in range(number * steps, (number + 1) * steps):
            u, v = source, destination
            if batch is not None:
                rows = generator(0, "rows", number, round, 0, 0)
                chosen = np.sort(rows.choice(len(source), size=batch, replace=False, shuffle=False))
                u, v = source[chosen], destination[chosen]
            rng = generator(0, "negatives", number, round, 0, 0)
            if not directed:
                turned = rng.random(len(u)) < 0.5
                u, v = np.where(turned, v, u), np.where(turned, u, v)
            w = rng.integers(graph.num_nodes, size=len(u) * each)
            z = output(layer, h)
            scores = decoder(z[np.append(u, np.repeat(u, each))], z[np.append(v, w)])
            truth = torch.cat([torch.ones(len(u)), torch.zeros(len(w))]).double()
            adam.zero_grad()
            loss = F.binary_cross_entropy_with_logits(scores, truth)
            loss.backward()
            adam.step()
            losses.append(loss.item())
        h = output(layer, h).detach()
    return flat.pack(model), losses


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("batch", [None, 40])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_one_trainer_is_a_plain_loop(encoder: str, directed: bool, batch: int | None, residual: bool) -> None:
    one = made(
        tangled() if directed else blocks(90), parts=1, encoder=encoder, residual=residual, sample={"batch": batch},
        links={"per_positive": 2},
    ).train()  # fmt: skip
    assert one.evaluator.links.directed is directed
    weights, losses = plain_loop(one.graph, encoder, directed, 6, batch, residual, 2)
    assert np.allclose([record.loss for record in one.history], losses, rtol=0, atol=1e-9)
    assert np.abs(one.vector() - weights).max() <= 1e-9


@pytest.mark.parametrize("graph", [blocks, tangled])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_every_pair_is_learned_once_by_the_owner_of_its_destination(parts: int, graph) -> None:  # type: ignore[no-untyped-def]
    one = made(graph(), parts=parts)
    directed = one.evaluator.links.directed
    found = []
    for trainer in one.team._trainers.values():
        names = np.concatenate([trainer.shard.inner, trainer.shard.halo])
        found += list(zip(names[trainer.source].tolist(), names[trainer.destination].tolist(), strict=True))
        assert (trainer.destination < trainer.shard.num_inner).all()
    source, destination = training_pairs(one.graph.indptr, one.graph.indices, directed)
    assert sorted(found) == sorted(zip(source.tolist(), destination.tolist(), strict=True))
    assert sum(trainer.examples for trainer in one.team._trainers.values()) == len(source)


def test_edges_of_types_are_learned_one_by_one() -> None:
    graph = blocks()
    graph = graph.with_(edge_type=(np.arange(graph.num_edges) % 3).astype(np.int16))
    one = made(graph, parts=3, links={"decoder": "distmult"})
    found = []
    for trainer in one.team._trainers.values():
        names = np.concatenate([trainer.shard.inner, trainer.shard.halo])
        found += list(zip(names[trainer.source], names[trainer.destination], trainer.relation, strict=True))
    training = one.graph
    ends = zip(training.indices, training.destinations(), training.edge_type, strict=True)
    assert sorted(found) == sorted((u, v, t) for u, v, t in ends if u != v)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_the_halo_stands_by_what_its_owners_gathered(encoder: str, residual: bool, sparse: bool) -> None:
    graph = blocks()
    if sparse:
        x = np.asarray(graph.x) * (np.random.default_rng(0).random(graph.x.shape) < 0.1)
        graph = graph.with_(features=(sp.csr_matrix(x.astype(np.float32)),))

    def rows(operands) -> np.ndarray:  # type: ignore[no-untyped-def]
        return np.hstack([o.numpy() if isinstance(o, torch.Tensor) else o.to_scipy().toarray() for o in operands])

    one = made(graph, parts=3, encoder=encoder, residual=residual)
    seen = []

    def look(record) -> None:  # type: ignore[no-untyped-def]
        whole: dict[int, np.ndarray] = {}
        trainers = one.team._trainers.values()
        for trainer in trainers:
            whole |= dict(zip(trainer.shard.inner.tolist(), rows(trainer.gathered), strict=True))
        for trainer in trainers:
            held = rows(trainer.pair_gathered)
            names = np.concatenate([trainer.shard.inner, trainer.shard.halo])
            assert held.shape[0] == len(names) > trainer.shard.num_inner
            assert len(trainer.usable) == trainer.examples
            for name, row in zip(names.tolist(), held, strict=True):
                assert np.abs(row - whole[name]).max() <= 1e-12
        seen.append(record.phase)

    one.diary.after = look
    one.train()
    assert set(seen) == {"layer0", "layer1"}


@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_embedded_is_central(parts: int) -> None:
    one = made(parts=parts).train()
    h = one.evaluator._inference.embed(one.evaluator.model.encoder, 1)
    one.evaluator.model.load_state_dict(one.keeper.last)
    h = one.evaluator._inference.embed(one.evaluator.model.encoder, 1).numpy()
    for trainer in one.team._trainers.values():
        assert np.abs(trainer.embeddings[1] - h[trainer.shard.inner]).max() <= 1e-9


def decoder_size(d: int) -> int:
    return d * d + d + 1 + d + 1


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("lazy", ["gradients", "weights"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_bytes_are_the_formula(encoder: str, layers: int, lazy: str, wire: str) -> None:
    one = made(
        encoder=encoder, layers=layers, hidden=8, dtype="float32", wire=wire, lazy=lazy, steps=6 * layers,
        links={"val_pairs": 5},
    ).train()  # fmt: skip
    pairs = boundaries(one.graph, one.partition.assignment)
    b = sum(len(nodes) for nodes in pairs.values())
    widths = [one.graph.num_features] + [8] * layers
    each = [4 * d if wire == "float32" else d + 8 for d in widths]
    matrices = 2 if encoder == "sage" else 1
    P = [matrices * d * 8 + 8 + (16 if i < layers - 1 else 0) + decoder_size(8) for i, d in enumerate(widths[:-1])]
    rounds, W = 6 if lazy == "gradients" else 2, 3
    kinds = training_kinds(one)
    assert kinds["features"] == 2 * b * each[0]
    assert kinds["embeddings"] == 2 * b * sum(each[1:-1])
    down = 4 * W * rounds * sum(P)
    assert kinds["weights"] == down * (2 if lazy == "weights" else 1) + 4 * W * sum(P[:-1])
    assert kinds.get("gradients", 0) == (down if lazy == "gradients" else 0)
    lower = [p - decoder_size(8) for p in P]
    scored = sum(2 * 4 * (sum(lower[:i]) + P[i]) for i in range(layers))
    assert one.ledger.total("evaluation") == scored
    assert one.ledger.total("metrics") == 0


def test_layers_that_gather_nothing_send_nothing_and_learn_inner_pairs() -> None:
    one = made(encoder="mlp").train()
    assert set(training_kinds(one)) == {"weights", "gradients"}
    for trainer in one.team._trainers.values():
        assert (trainer.source < trainer.shard.num_inner).all() and trainer.examples > 0


@pytest.mark.parametrize("lazy", ["gradients", "weights"])
def test_a_layer_is_scored_by_its_own_decoder(lazy: str) -> None:
    """By hand: embeddings of the first layer alone, ranked by the temporary decoder."""
    one = made(lazy=lazy)
    evaluator = one.evaluator
    assert isinstance(evaluator, LinkEvaluator)
    kept: list[dict[str, float | None]] = []

    def score(record) -> None:  # type: ignore[no-untyped-def]
        model = evaluator.model
        model.load_state_dict(one.keeper.last)
        depth = 1 + int(record.phase[-1])
        h = evaluator._inference.embed(model.encoder, depth)
        decoder = model.heads[0] if depth == 1 else model.decoder
        kept.append(ranking.finish(score_links(decoder, h, evaluator.links.val, 100)))

    one.diary.after = score
    one.train()
    due = [record.val is not None for record in one.history]
    assert due == ([False, False, True] * 4 if lazy == "gradients" else [True] * 4)
    for record, expected in zip(one.history, kept, strict=True):
        assert record.val is None or dict(record.val) == pytest.approx(expected, abs=1e-12)


def test_lower_layers_run_again_when_their_weights_change() -> None:
    one = made()
    evaluator = one.evaluator
    found = []
    for scale in (1.0, 1.0, 3.0):
        model = one.setting.model
        with torch.no_grad():
            model.encoder.layers[0].conv.weights[0] *= scale
        found.append(evaluator.validate(flat.pack(first_layers(model, 2)), 2))
        assert found[-1] == pytest.approx(evaluator.validate(flat.pack(model)), abs=1e-12)
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("decoder", ["mlp", "dot", "distmult"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_it_learns_from_pairs_across_parts(encoder: str, decoder: str) -> None:
    options = {
        "encoder": encoder, "dtype": "float32", "steps": 160, "interval": 10, "lr": 0.02, "keep": "best", "parts": 4,
        "links": {"decoder": decoder},
    }  # fmt: skip
    runs = [made(**options).train() for _ in range(2)]
    assert np.array_equal(runs[0].vector(), runs[1].vector()), "a run repeats to the bit"
    assert runs[0].history[-1].loss < runs[0].history[0].loss
    assert runs[0].keeper.best_score > 0.22, "a random order of 21 gives 0.17"


def test_it_comes_close_to_training_at_one_place() -> None:
    """Homophilous blocks: what layers learn apart ranks about as well as what they learn together."""
    links = {**LINKS, "mask_targets": False}
    options = {"encoder": "sage", "steps": 600, "interval": 20, "lr": 0.003, "links": links}

    def mrr(run: Rig) -> float:
        found = run.evaluator.metrics(run.keeper.best, "val", "test")
        return float(np.mean([found[mask]["mrr"] for mask in ("val", "test")]))

    central = mrr(rig(blocks(600), "centralised", **options).train())
    apart = mrr(rig(blocks(600), "lazy", parts=4, **options).train())
    assert central > 0.25, "a random order of 21 gives 0.17"
    assert apart > 0.9 * central


def test_sparse_features_train_as_dense_ones() -> None:
    graph = blocks()
    for density in (0.05, 1.0):
        x = np.asarray(graph.x) * (np.random.default_rng(1).random(graph.x.shape) < density)
        x = x.astype(np.float32)
        one, other = (made(graph.with_(features=(f,))).train() for f in (x, sp.csr_matrix(x)))
        assert np.abs(one.vector() - other.vector()).max() <= 1e-9


@pytest.mark.parametrize("wire", ["float16", "int8"])
@pytest.mark.parametrize("sparse", [False, True])
def test_fewer_bytes_on_the_wire_train_nearly_the_same(wire: str, sparse: bool) -> None:
    graph = blocks()
    if sparse:
        graph = graph.with_(features=(sp.csr_matrix(np.asarray(graph.x)),))
    one, exact = made(graph, wire=wire, steps=40).train(), made(graph, steps=40).train()
    assert not np.array_equal(one.vector(), exact.vector())
    assert one.history[-1].loss == pytest.approx(exact.history[-1].loss, abs=0.02)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("lazy", ["gradients", "weights"])
@pytest.mark.parametrize(
    "faults",
    [
        "kill:1@0",
        "kill:1@1",
        "kill:1@1-2",
        "kill:1@0-1",
        "kill:1@2-3,kill:0@3-4",
        "nan:1@0",
        "nan:1@1",
        "delay:1@0=inf",
        "delay:1@1=inf",
    ],
)
def test_failures_are_survived_and_named(faults: str, lazy: str, keep: str) -> None:
    steps, interval = (12, 3) if lazy == "gradients" else (24, 2)
    one = made(faults=faults, lazy=lazy, deadline=50.0, keep=keep, steps=steps, interval=interval).train()
    assert np.isfinite(one.vector("last")).all() and np.isfinite(one.vector("best")).all()
    assert any(1 in record.absent for record in one.history)
    assert len(one.history) == 12 and one.history[-1].loss is not None
    if faults not in ("kill:1@0", "kill:1@1"):
        assert not one.history[-1].absent
        trainers = one.team._trainers
        for trainer in trainers.values():
            assert len(trainer.usable) == trainer.examples, "every pair has both ends again"
            n = trainer.shard.num_inner
            sums = trainer.halo_sums
            for owner, rows in sums.rows.items():
                exact = trainers[owner].summed[1][trainers[owner].shard.boundary_for(trainer.shard.part)]
                assert np.abs(rows - exact).max() <= 1e-12
            assert trainer.pair_gathered[0].shape[0] == n + trainer.shard.num_halo


def test_pairs_of_a_dead_owner_are_left_out() -> None:
    one = made(faults="kill:1@0").train()
    for trainer in one.team._trainers.values():
        away = trainer.shard.halo_of(1)
        n = trainer.shard.num_inner
        lost = (trainer.source >= n + away.start) & (trainer.source < n + away.stop)
        assert lost.any() and trainer.usable.tolist() == np.flatnonzero(~lost).tolist()


def test_when_all_die_the_run_ends_at_once() -> None:
    with pytest.raises(AllTrainersLostError, match="gradient, round 2"):
        made(faults=", ".join(f"kill:{k}@2" for k in range(3))).train()


def test_a_part_without_pairs_weighs_nothing() -> None:
    graph = blocks()
    assignment = np.ones(graph.num_nodes, dtype=np.int32)
    empty = made(graph, parts=2, assignment=assignment).train()
    alone = made(graph, parts=2, assignment=1 - assignment).train()
    assert empty.team._trainers[0].examples == alone.team._trainers[1].examples == 0
    assert all(record.steps == {0: 1, 1: 1} for record in empty.history)
    assert np.abs(alone.vector() - made(graph, parts=1).train().vector()).max() <= 1e-9
    assert np.isfinite(empty.vector()).all()


def test_patience_counts_evaluations() -> None:
    one = made(steps=400, interval=2, patience=2, lr=0.05, keep="best").train()
    for phase in ("layer0", "layer1"):
        mine = [record for record in one.history if record.phase == phase]
        scored = [record for record in mine[:-1] if record.val is not None]
        assert mine[-1].stopped and len(mine) < 200
        assert [record.best for record in scored[-2:]] == [False, False]
