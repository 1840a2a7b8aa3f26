"""TMA on links: against a plain loop, remote negatives, failures, and metrics that do not depend on the parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from rig import blocks, flat_vector, rig, tangled

from farflung.errors import InputError
from farflung.graph.links import training_pairs
from farflung.nn import ModelConfig, flat
from farflung.nn.decoders import LinkModel
from farflung.nn.model import build_link_model
from farflung.run.evaluator import LinkEvaluator
from farflung.seeding import generator
from farflung.tasks import ranking
from farflung.tasks.link_prediction import score_links
from farflung.team import Message
from farflung.team.rows import sound

LINKS = {"eval_negatives": 20}
SAMPLE = {"fanouts": "4,4", "batch": 64}


def dense_mean(graph, hidden: set[tuple[int, int]]) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Mean over in-neighbours as a dense matrix, without the edges `hidden`; edge by edge."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    for v in range(graph.num_nodes):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            if (int(graph.indices[e]), v) not in hidden:
                matrix[v, int(graph.indices[e])] += 1.0 if graph.edge_weight is None else float(graph.edge_weight[e])
        if matrix[v].sum() > 0:
            matrix[v] /= matrix[v].sum()
    return matrix


def plain_loop(graph, directed: bool, steps: int, batch: int, mask: bool) -> np.ndarray:  # type: ignore[no-untyped-def]
    """SAGE and the MLP decoder trained on one graph with dense algebra; the draws are those of the documentation."""
    config = ModelConfig(encoder="sage", hidden=16, dropout=0.0)
    model: LinkModel = build_link_model(config, "mlp", graph.num_features, 1, 0, torch.float64)
    source, destination = training_pairs(graph.indptr, graph.indices, directed)
    x = torch.from_numpy(np.asarray(graph.x, dtype=np.float64))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    per_epoch = -(-len(source) // batch)
    for step in range(steps):
        order = generator(0, "batches", 0, step // per_epoch).permutation(len(source))
        chosen = order[step % per_epoch * batch :][:batch]
        u, v = source[chosen], destination[chosen]
        rng = generator(0, "negatives", 0, step)
        if not directed:
            turned = rng.random(len(chosen)) < 0.5
            u, v = np.where(turned, v, u), np.where(turned, u, v)
        w = rng.integers(graph.num_nodes, size=len(chosen))
        pairs = set(zip(u.tolist(), v.tolist(), strict=True)) | set(zip(v.tolist(), u.tolist(), strict=True))
        matrix = dense_mean(graph, pairs if mask else set())
        h = x
        for layer in model.encoder.layers:
            root, neighbour = layer.conv.weights
            h = h @ root + matrix @ h @ neighbour + layer.conv.bias
            if layer.norm is not None:
                h = layer.activation(layer.norm(h))
        scores = model.decoder(h[np.append(u, u)], h[np.append(v, w)])
        truth = torch.cat([torch.ones(len(u)), torch.zeros(len(u))]).double()
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(scores, truth).backward()
        optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("directed", [False, True])
def test_one_trainer_is_a_plain_loop(directed: bool, mask: bool) -> None:
    graph = tangled() if directed else blocks(90)
    one = rig(
        graph,
        "tma",
        parts=1,
        encoder="sage",
        dtype="float64",
        links={**LINKS, "mask_targets": mask},
        sample={"batch": 40},
        steps=7,
        interval=3,
    )
    assert one.evaluator.links.directed is directed
    one.train()
    assert np.allclose(one.vector(), plain_loop(one.graph, directed, 7, 40, mask), rtol=0, atol=1e-9)


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat", "mlp"])
@pytest.mark.parametrize("decoder", ["mlp", "dot", "distmult"])
def test_sampled_training_repeats_and_learns(encoder: str, decoder: str) -> None:
    steps = 240 if encoder == "gat" else 60  # attention learns more slowly
    options = {"encoder": encoder, "links": {**LINKS, "decoder": decoder}, "sample": SAMPLE, "steps": steps, "lr": 0.02}
    runs = [rig(blocks(), "tma", interval=20, **options).train() for _ in range(2)]
    assert np.array_equal(runs[0].vector(), runs[1].vector())
    assert runs[0].history[-1].loss < runs[0].history[0].loss
    assert runs[0].keeper.best_score > 0.22, "a random order of 21 gives 0.17"


def test_sparse_features_train_as_dense_ones() -> None:
    graph = blocks()
    sparse = graph.with_(features=(sp.csr_matrix(np.asarray(graph.x)),))
    options = {"encoder": "sage", "dtype": "float64", "links": LINKS, "sample": SAMPLE, "steps": 10, "interval": 5}
    one, other = (rig(g, "tma", **options).train() for g in (graph, sparse))
    assert np.allclose(one.vector(), other.vector(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_remote_negatives_are_fetched_metered_and_used(sparse: bool) -> None:
    graph = blocks()
    if sparse:
        graph = graph.with_(features=(sp.csr_matrix(np.asarray(graph.x)),))
    options = {"encoder": "sage", "sample": SAMPLE, "steps": 15, "interval": 5}
    local = rig(graph, "tma", links=LINKS, **options).train()
    pool = 32
    remote = rig(graph, "tma", links={**LINKS, "negatives": "global", "pool": pool}, **options).train()
    assert not np.array_equal(local.vector(), remote.vector())
    rows = remote.ledger.table()
    sent = rows["kind"] == "negatives"
    assert set(rows["phase"][sent]) == {"negatives"}
    assert (rows["sender"][sent] >= 0).all(), "trainer to trainer"
    if not sparse:
        each = 8 + 4 * graph.num_features
        assert rows["bytes"][sent].sum() == 3 * 3 * pool * each, "rounds, trainers, rows: an id up, features back"
    objective = remote.team._trainers[0].objective
    drawn = objective._draw(30_000, np.random.default_rng(0))
    inner = remote.team._trainers[0].shard.num_inner
    share = np.count_nonzero(drawn < inner) / len(drawn)
    assert abs(share - inner / graph.num_nodes) < 0.02, "own nodes come up as often as among all nodes"
    assert drawn.max() == inner + pool - 1


def test_remote_rows_are_those_of_their_owners() -> None:
    graph = blocks()
    one = rig(graph, "tma", links={**LINKS, "negatives": "global", "pool": 16}, encoder="sage", steps=5, interval=5)
    one.train()
    features = {row.tobytes() for row in np.asarray(graph.x, dtype=np.float32)}
    for k, trainer in one.team._trainers.items():
        own = {row.tobytes() for row in np.asarray(trainer.shard.x)}
        rows = trainer.objective._neighbourhoods.x[trainer.shard.num_inner :].numpy()
        assert len(rows) == 16
        found = {row.tobytes() for row in rows}
        assert found <= features - own, f"trainer {k} holds rows that are not remote"


@pytest.mark.parametrize("negatives", ["local", "global"])
@pytest.mark.parametrize("faults", ["kill:1@0", "kill:1@1", "kill:1@1-2", "nan:1@1", "delay:1@1=inf", "slow:1@1=100x"])
def test_failures_are_survived_and_named(faults: str, negatives: str) -> None:
    one = rig(
        blocks(),
        "tma",
        links={**LINKS, "negatives": negatives, "pool": 8},
        encoder="sage",
        sample=SAMPLE,
        steps=20,
        interval=5,
        deadline=5.0,
        faults=faults,
    ).train()
    assert np.isfinite(one.vector()).all()
    assert any(1 in record.absent for record in one.history)
    assert one.history[-1].loss is not None
    if faults in ("kill:1@1-2", "nan:1@1"):
        assert not one.history[-1].absent
        assert all(np.array_equal(m.arrays["weights"], one.vector()) for m in one.reveal()), "back with old weights"


def test_a_part_without_edges_weighs_nothing() -> None:
    """Five nodes whose edges all leave the part: no pair to learn from, and no say in the mean."""
    graph = blocks()
    assignment = np.ones(graph.num_nodes, dtype=np.int32)
    alone = [0]
    for v in range(1, graph.num_nodes):
        if len(alone) < 5 and not set(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]) & set(alone):
            alone.append(v)
    assignment[alone] = 0
    one = rig(graph, "tma", parts=2, assignment=assignment, links=LINKS, encoder="sage", steps=6, interval=3).train()
    assert [dict(record.steps) for record in one.history] == [{0: 0, 1: 3}, {0: 0, 1: 3}]
    assert one.keeper.best_score is not None


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat", "mlp"])
def test_metrics_do_not_depend_on_the_number_of_parts(encoder: str) -> None:
    """Test links dealt to 2, 3 or 5 owners, each scoring its own in chunks of another size: one MRR."""
    one = rig(blocks(), "tma", encoder=encoder, links=LINKS, sample=SAMPLE, steps=10, interval=5).train()
    evaluator = one.evaluator
    assert isinstance(evaluator, LinkEvaluator)
    weights = one.keeper.last
    whole = evaluator.metrics(weights, "test")["test"]
    h, test = torch.from_numpy(evaluator.embeddings(weights)), evaluator.links.test
    for parts in (2, 3, 5):
        owner = np.arange(test.count) % parts
        states = []
        for k in range(parts):
            mine = np.flatnonzero(owner == k)
            links = type(test)(test.source[mine], test.destination[mine], test.negatives[mine], None)
            states.append(score_links(evaluator.model.decoder, h, links, chunk=21 * (k + 1)))
        merged = ranking.finish(ranking.merge(states))
        assert merged == pytest.approx(whole, abs=1e-4)


def test_embeddings_in_chunks_give_the_same_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from farflung.nn import inference

    one = rig(blocks(), "tma", encoder="sage", links=LINKS, sample=SAMPLE, steps=10, interval=5).train()
    whole = one.evaluator.metrics(one.keeper.last, "val", "test")
    plain = inference.Inference.__init__
    for chunk in (17, 100):
        monkeypatch.setattr(
            inference.Inference, "__init__", lambda self, a, g, d, chunk=chunk: plain(self, a, g, d, chunk)
        )
        again = rig(blocks(), "tma", encoder="sage", links=LINKS)
        assert len(again.evaluator._inference.chunks) >= 3
        found = again.evaluator.metrics(one.keeper.last, "val", "test")
        for mask in ("val", "test"):
            assert found[mask] == pytest.approx(whole[mask], abs=1e-4)


def test_weights_that_are_not_finite_score_nothing() -> None:
    one = rig(blocks(), "tma", encoder="sage", links=LINKS)
    vector = np.full(sum(p.numel() for p in one.setting.model.parameters()), np.nan, dtype=np.float32)
    assert one.evaluator.validate(vector) == dict.fromkeys(ranking.names())


def test_a_split_without_validation_links_trains_and_keeps_the_last() -> None:
    from farflung.run.train import train

    run = train(
        blocks(), method="random-tma", task="link-prediction", parts=2, steps=4, interval="2steps", batch=32,
        hidden=8, split="random:0.9/0/0.1", threads=1, **{"links.eval_negatives": 5},
    )  # fmt: skip
    assert set(run.val.values()) == {None}
    assert run.test["mrr"] is not None
    assert run.metrics["best_round"] is None
    assert run.metrics["links"]["negatives"] == 5


def test_scores_that_overflow_end_no_run() -> None:
    """Embeddings that are finite, with products that are not: such a round has no score."""
    one = rig(blocks(), "tma", encoder="sage", links={**LINKS, "decoder": "dot"})
    vector = flat_vector(one.setting.model.state_dict()) * np.float32(1e15)
    assert np.isfinite(one.evaluator.embeddings(flat.unpack(one.evaluator.model, vector))).all()
    assert one.evaluator.validate(vector) == dict.fromkeys(ranking.names())


def test_links_have_no_training_score() -> None:
    one = rig(blocks(), "tma", encoder="sage", links=LINKS)
    with pytest.raises(InputError, match="no set 'train' to score: choose from val, test"):
        one.evaluator.metrics(one.setting.model.state_dict(), "train")


@pytest.mark.parametrize("rows", [[0, 1], [-1], [10**6], list(range(9))])
@pytest.mark.parametrize("negatives", ["local", "global"])
def test_features_go_out_only_as_the_options_say(negatives: str, rows: list[int]) -> None:
    one = rig(blocks(), "tma", encoder="sage", links={**LINKS, "negatives": negatives, "pool": 8})
    trainer = one.team._trainers[0]
    trainer.handle(Message("requested", {}, {"negatives/1": np.array(rows)}))
    given = trainer.handle(Message("give")).arrays
    assert list(given) == (["negatives/1"] if negatives == "global" and rows == [0, 1] else [])


@pytest.mark.parametrize(
    "rows",
    [
        np.full((3, 10), np.nan, np.float32),
        np.zeros((3, 9), np.float32),
        sp.csr_matrix((np.ones(2, np.float32), np.array([0, 3]), np.array([0, 1, 2])), shape=(2, 9)),
    ],
)
def test_rows_of_peers_that_cannot_be_are_left_out(rows) -> None:  # type: ignore[no-untyped-def]
    one = rig(blocks(), "tma", encoder="sage", links={**LINKS, "negatives": "global", "pool": 8})
    trainer = one.team._trainers[0]
    assert not sound(rows, 10)
    if isinstance(rows, np.ndarray):
        trainer.handle(Message("take", {}, {"negatives/1": rows}))
        assert trainer.objective._num_remote == 0
    trainer.handle(Message("take", {}, {"negatives/1": np.zeros((3, 10), np.float32)}))
    assert trainer.objective._num_remote == 3


def test_columns_beyond_the_width_are_refused() -> None:
    rows = sp.csr_matrix((2, 4), dtype=np.float32)
    rows.data, rows.indices, rows.indptr = np.ones(1, np.float32), np.array([4], np.int32), np.array([0, 1, 1])
    assert not sound(rows, 4)
    rows.indices = np.array([3], np.int32)
    assert sound(rows, 4)
