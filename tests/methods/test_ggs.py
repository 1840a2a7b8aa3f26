"""Global graph sampling: its samples are those of the whole graph, and its steps those of a plain loop over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from rig import Rig, blocks, rig, tangled

from farflung.errors import InputError
from farflung.graph import Graph, Split, load
from farflung.kernels.sampling import Block, NeighbourSampler
from farflung.methods.ggs import partition_book
from farflung.methods.ggs_trainer import _WARM, GGSTrainer
from farflung.methods.remote_blocks import Book
from farflung.nn.blocks import Neighbourhoods, embed
from farflung.nn.features import features_as_factor
from farflung.nn.model import encoder_of
from farflung.partition import Partition
from farflung.seeding import derive
from farflung.tasks.batches import Batches
from farflung.tasks.node_classification import NodeClassification

CUTS = [(1, "random"), (2, "random"), (5, "random"), (2, "mincut"), (5, "mincut")]
SAMPLES = [{"fanouts": "3,2", "batch": 5}, {"fanouts": "2,4", "batch": 7, "replace": True}, {"batch": 6}]


def trainers(run: Rig) -> list[GGSTrainer]:
    return [run.team._trainers[k] for k in range(run.team.size)]  # type: ignore[misc]


def plain(graph: Graph, encoder: str) -> tuple[np.ndarray, np.ndarray]:
    """The graph that an encoder samples: for gcn without loops, edge by edge."""
    rows = [[int(u) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]] for v in range(graph.num_nodes)]
    if encoder == "gcn":
        rows = [[u for u in row if u != v] for v, row in enumerate(rows)]
    return np.cumsum([0] + [len(row) for row in rows]), np.array([u for row in rows for u in row], dtype=np.int32)


def sampled(run: Rig, encoder: str, part: int, step: int, targets) -> list[Block]:  # type: ignore[no-untyped-def]
    """What a sampler of the whole graph draws for a trainer's step."""
    sampler = NeighbourSampler(*plain(run.graph, encoder))
    if targets.hidden is not None:
        sampler.hide(*targets.hidden)
    sample = run.team._spec.sample
    key = derive(run.team._spec.seed, "sample", part, step)
    return sampler.blocks(targets.nodes, sample.fanouts or [None, None], key, sample.replace)


@pytest.mark.parametrize("links", [None, {"eval_negatives": 20}])
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_blocks_are_those_of_the_whole_graph(encoder: str, sample: dict, links: dict | None) -> None:
    for graph in (tangled(), blocks(90)):
        for parts, by in CUTS:
            run = rig(
                graph, "ggs", parts=parts, by=by, encoder=encoder, steps=4, interval=3, sample=sample, links=links
            ).train()
            seen = 0
            for k, trainer in enumerate(trainers(run)):
                assert [step for step, _, _ in trainer.seen] == list(range(4))
                for step, targets, found in trainer.seen:
                    for one, other in zip(found, sampled(run, encoder, k, step, targets), strict=True):
                        assert np.array_equal(one.nodes, other.nodes)
                        assert np.array_equal(one.indptr, other.indptr)
                        assert np.array_equal(one.indices, other.indices)
                        seen += len(one.indices)
            assert seen > 50


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_all_neighbours_of_all_seeds_are_central_training(encoder: str) -> None:
    for graph in (tangled(), blocks()):
        options = {"encoder": encoder, "dtype": "float64", "steps": 20, "keep": "last"}
        central = rig(graph, "centralised", interval=20, **options).train()
        for parts, by in CUTS:
            run = rig(graph, "ggs", parts=parts, by=by, interval=6, **options).train()
            assert np.abs(run.vector() - central.vector()).max() <= 1e-9
            assert abs(run.history[-1].loss - central.history[-1].loss) <= 1e-9
            assert [record.steps for record in run.history] == [
                {k: n if trainer.seeds.examples else 0 for k, trainer in enumerate(trainers(run))} for n in (6, 6, 6, 2)
            ]
        start = rig(graph, "ggs", encoder=encoder, dtype="float64").setting.model.state_dict()
        assert np.abs(run.vector() - torch.cat([v.reshape(-1) for v in start.values()]).numpy()).max() > 0.05


@pytest.mark.parametrize("links", [None, {"eval_negatives": 20}])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
def test_one_trainer_is_central_training_to_the_bit(encoder: str, links: dict | None) -> None:
    for graph in (tangled(), blocks()):
        for sample in SAMPLES[:2]:
            one, central = (
                rig(
                    graph,
                    method,
                    parts=1,
                    encoder=encoder,
                    dropout=0.3,
                    sample=sample,
                    links=links,
                    clip=0.5,
                    steps=9,
                    interval=4,
                ).train()
                for method in ("ggs", "centralised")
            )
            assert one.vector().tobytes() == central.vector().tobytes()
            assert [r.loss for r in one.history] == [r.loss for r in central.history]
            assert one.ledger.total("neighbours") == one.ledger.total("features") == 0


def plain_loop(run: Rig, steps: int, interval: int, sample: dict) -> np.ndarray:
    """Sampled training over the whole graph, one trainer's seeds after the other, in float64."""
    graph, model, spec = run.graph, run.team._spec.build_model(), run.team._spec
    encoder = encoder_of(model)
    fanouts = spec.sample.fanouts
    neighbourhoods = Neighbourhoods(
        encoder.aggregation,
        graph.indptr,
        graph.indices,
        graph.edge_weight,
        features_as_factor(graph.x, torch.float64),
        2,
        torch.float64,
        fanouts,
        spec.sample.replace,
    )
    task = NodeClassification(graph.num_classes)
    owned = [np.flatnonzero((run.partition.assignment == k) & graph.split.train) for k in range(run.team.size)]
    batches = [Batches(len(nodes), sample["batch"], 0, k) for k, nodes in enumerate(owned)]
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for step in range(steps):
        losses, counts = [], []
        for k, nodes in enumerate(owned):
            if not len(nodes):
                continue
            seeds = nodes[batches[k][step]]
            batch = neighbourhoods.batch(seeds, derive(0, "sample", k, step))
            h = embed(encoder, batch, derive(0, "dropout", step // interval, k, step % interval))
            losses.append(task.loss(h, torch.from_numpy(graph.y[seeds]).long()) * len(seeds))
            counts.append(len(seeds))
        adam.zero_grad()
        (sum(losses) / sum(counts)).backward()
        adam.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).numpy()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
def test_sampled_steps_are_a_plain_loop(encoder: str, sample: dict, dropout: float) -> None:
    for graph in (tangled(), blocks()):
        for parts, by in CUTS[1:4]:
            options = {"parts": parts, "by": by, "encoder": encoder, "dropout": dropout, "dtype": "float64"}
            run = rig(graph, "ggs", sample=sample, steps=10, interval=4, keep="last", **options).train()
            assert np.abs(run.vector() - plain_loop(run, 10, 4, sample)).max() <= 1e-9


@pytest.mark.parametrize("first", ["conv", "mlp"])
def test_three_layers(first: str) -> None:
    """An encoder that begins with an MLP asks for no neighbours in its first layer."""
    options = {"encoder": "sage", "layers": 3, "dtype": "float64", "steps": 8, "interval": 8, "keep": "last"}
    runs = [rig(tangled(), method, parts=3, first=first, **options).train() for method in ("ggs", "centralised")]
    assert np.abs(runs[0].vector() - runs[1].vector()).max() <= 1e-9
    assert len(trainers(runs[0])[0].seen[0][2]) == (3 if first == "conv" else 2)


@pytest.mark.parametrize("kind", [np.float16, np.float32, "csr"])
def test_features_of_all_kinds(kind) -> None:  # type: ignore[no-untyped-def]
    graph = blocks()
    x = np.asarray(graph.x).astype(np.float16) * (np.abs(graph.x) > 1)
    graph = graph.with_(features=(sp.csr_matrix(x.astype(np.float32)) if kind == "csr" else x.astype(kind),))
    options = {"encoder": "sage", "dtype": "float64", "steps": 6, "interval": 6, "keep": "last"}
    runs = [rig(graph, method, parts=3, **options).train() for method in ("ggs", "centralised")]
    assert np.abs(runs[0].vector() - runs[1].vector()).max() <= 1e-9


def test_seeds_of_uneven_parts_come_once_per_epoch_of_their_trainer() -> None:
    """4,097 seeds over 4 trainers in batches of 1,024."""
    graph = load("sbm:nodes=4200,classes=2,degree=3,homophily=0.8,features=2,seed=1")
    train = np.arange(4200) < 4097
    rest = np.flatnonzero(~train)
    split = Split(train, np.isin(np.arange(4200), rest[::2]), np.isin(np.arange(4200), rest[1::2]))
    part = np.minimum(np.arange(4200) // 1024, 3)  # 1024, 1024, 1024 and 1025 seeds
    run = rig(
        graph.with_(split=split),
        "ggs",
        assignment=part,
        parts=4,
        hidden=4,
        encoder="sage",
        sample={"fanouts": "2,2", "batch": 1024},
        steps=6,
        interval=2,
    ).train()
    assert [trainer.seeds.per_epoch for trainer in trainers(run)] == [1, 1, 1, 2]
    for k, trainer in enumerate(trainers(run)):
        mine = np.flatnonzero(train & (part == k))
        drawn = [targets.nodes for _, targets, _ in trainer.seen]
        assert [len(nodes) for nodes in drawn] == ([1024, 1] * 3 if k == 3 else [1024] * 6)
        per_epoch = trainer.seeds.per_epoch
        for epoch in range(6 // per_epoch):
            seeds = np.concatenate(drawn[epoch * per_epoch : (epoch + 1) * per_epoch])
            assert np.array_equal(np.sort(seeds), mine)
    assert [record.steps for record in run.history] == [dict.fromkeys(range(4), 2)] * 3
    assert all(np.isfinite(record.loss) for record in run.history)


def test_labels_in_one_part_alone() -> None:
    """The others own what is around, and weigh nothing."""
    graph = tangled()
    part = np.where(graph.split.train, 0, 1 + np.arange(40) % 2)
    options = {"encoder": "gcn", "dtype": "float64", "steps": 10, "interval": 5, "keep": "last"}
    run = rig(graph, "ggs", assignment=part, parts=3, **options).train()
    central = rig(graph, "centralised", **options).train()
    assert np.abs(run.vector() - central.vector()).max() <= 1e-9
    assert run.history[0].steps == {0: 5, 1: 0, 2: 0}
    assert {pair for pair, size in run.ledger.matrix().items() if min(pair) >= 0 and size} == {
        (0, 1),
        (1, 0),
        (0, 2),
        (2, 0),
    }


def test_without_any_label_the_weights_stay() -> None:
    graph = blocks()
    empty = np.zeros(graph.num_nodes, bool)
    graph = graph.with_(split=Split(empty, graph.split.val, graph.split.test))
    run = rig(graph, "ggs", steps=4, interval=2).train()
    start = rig(graph, "ggs").setting.model.state_dict()
    assert np.array_equal(run.vector(), torch.cat([v.reshape(-1) for v in start.values()]).numpy())
    assert [record.loss for record in run.history] == [None, None]


def test_clipping_begins_with_the_epoch_of_the_slowest() -> None:
    """Two epochs of the part with the most batches, then a limit that all but stops Adam's first moment."""
    graph, sample = blocks(), {"batch": 4}
    part = np.where(np.arange(240) < 40, 1, 0)
    options = {"assignment": part, "parts": 2, "sample": sample, "interval": 1, "keep": "last"}
    per_epoch = -(-int((graph.split.train & (part == 0)).sum()) // 4)
    vectors = {}
    for clip_from in (1, 2):
        for steps in (per_epoch, per_epoch + 1):
            run = rig(graph, "ggs", clip=1e-6, clip_from=clip_from, steps=steps, **options).train()
            vectors[clip_from, steps] = run.vector()
    free = [rig(graph, "ggs", steps=steps, **options).train().vector() for steps in (per_epoch, per_epoch + 1)]
    assert np.array_equal(vectors[2, per_epoch], free[0])
    assert not np.array_equal(vectors[2, per_epoch + 1], free[1])
    assert not np.array_equal(vectors[1, per_epoch], free[0])


def test_the_time_limit_and_intervals_in_seconds() -> None:
    """A step takes 1/8 s on the fixed clock, however many trainers make it."""
    run = rig(blocks(), "ggs", interval="1s", time_limit="2.5s").train()
    assert [record.steps for record in run.history] == [dict.fromkeys(range(3), n) for n in (8, 8, 4)]
    assert run.team.now() == 2.5


def test_the_best_weights_are_kept() -> None:
    run = rig(blocks(), "ggs", steps=30, interval=2, lr=0.05)
    kept: list[np.ndarray] = []
    run.diary.after = lambda _: kept.append(run.vector("last"))
    run.train()
    scores = [record.val["accuracy"] for record in run.history]
    assert run.keeper.best_round == int(np.argmax(scores))
    assert np.array_equal(run.vector("best"), kept[run.keeper.best_round])
    assert max(scores) > 0.6


def test_patience_ends_training_after_rounds_without_a_better_score() -> None:
    whole = rig(blocks(), "ggs", steps=60, interval=2, lr=0.05).train()
    cut = rig(blocks(), "ggs", steps=60, interval=2, lr=0.05, patience=4).train()
    best = [record.round for record in whole.history if record.best]
    ends = next(r for r in range(4, 30) if not set(range(r - 3, r + 1)) & set(best))
    assert len(cut.history) == ends + 1 < 30
    assert cut.history == whole.history[: ends + 1]


def test_the_book_gives_every_node_its_owner_and_its_number_there() -> None:
    owner = partition_book([np.array([1, 4]), np.array([], np.int64), np.array([0, 2, 3])])
    assert owner.dtype == np.uint8 and owner.tolist() == [2, 0, 2, 2, 0]
    book = Book(owner, 3)
    assert book.place.tolist() == [0, 0, 1, 2, 1]
    groups = book.group(np.array([3, 4, 0, 1]))
    assert groups.owners == [0, 2]
    assert groups.positions(0).tolist() == [1, 3] and groups.rows_of(0).tolist() == [1, 0]
    assert groups.positions(2).tolist() == [0, 2] and groups.rows_of(2).tolist() == [2, 0]


@pytest.mark.parametrize("inner", [[[0, 1], [1, 2]], [[0], [2]]])
def test_a_node_in_two_parts_or_none_is_refused(inner: list[list[int]]) -> None:
    with pytest.raises(InputError, match=r"node 1 is in [02] parts, expected 1"):
        partition_book([np.array(one) for one in inner])


@pytest.mark.parametrize("links", [None, {"eval_negatives": 20}])
def test_the_throw_away_step_leaves_nothing_behind(links: dict | None) -> None:
    """It is made once per kind in a process; the run is the same with and without."""
    options = {"encoder": "gcn", "sample": SAMPLES[0], "links": links, "steps": 3, "interval": 3, "dropout": 0.2}
    first = rig(tangled(), "ggs", **options).train()
    assert _WARM
    warm = rig(tangled(), "ggs", **options).train()
    _WARM.clear()
    cold = rig(tangled(), "ggs", **options)
    assert len(_WARM) == 1
    assert all(trainer.turn is None and not trainer.requests and not trainer.concealed for trainer in trainers(cold))
    assert first.vector().tobytes() == warm.vector().tobytes() == cold.train().vector().tobytes()


_DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from rig import blocks, rig
state = hashlib.sha256()
for links in (None, {"eval_negatives": 20}):
    run = rig(blocks(), "ggs", encoder="gcn", steps=4, interval=2, sample={"fanouts": "3,4", "batch": 16}, links=links)
    run.train()
    for k in range(3):
        for _, targets, blocks_of_step in run.team._trainers[k].seen:
            for block in blocks_of_step:
                for array in (targets.nodes, block.nodes, block.indptr, block.indices):
                    state.update(array.tobytes())
print(state.hexdigest(), run.ledger.total())
"""


def test_samples_and_bytes_are_equal_for_1_and_4_threads() -> None:
    found = set()
    for threads in ("1", "4"):
        env = {**os.environ, "NUMBA_NUM_THREADS": threads, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _DIGEST, str(Path(__file__).parent)]
        found.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip())
    assert len(found) == 1 and len(found.pop()) > 64


@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
def test_parts_without_nodes(encoder: str) -> None:
    graph = blocks(40)
    part = np.where(np.arange(40) < 20, 0, 3)
    options = {"encoder": encoder, "dtype": "float64", "steps": 4, "interval": 4, "keep": "last"}
    run = rig(graph, "ggs", assignment=part, parts=5, **options).train()
    central = rig(graph, "centralised", **options).train()
    assert np.abs(run.vector() - central.vector()).max() <= 1e-9
    assert Partition.of(graph, part.astype(np.int32), 5).shards[1].num_inner == 0
