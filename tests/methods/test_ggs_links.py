"""Link prediction by global sampling: which edges are learned by whom, against which nodes, and what stays hidden."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig, blocks, rig, tangled
from scipy.stats import chi2
from test_ggs import CUTS, trainers

from farflung.graph import Graph
from farflung.graph.links import training_pairs
from farflung.nn.blocks import Neighbourhoods, embed
from farflung.nn.features import features_as_factor
from farflung.nn.model import encoder_of
from farflung.partition import partition
from farflung.seeding import derive
from farflung.tasks.seeds import LinkSeeds
from farflung.trainer import TrainerSpec

LINKS = {"eval_negatives": 20}
SAMPLE = {"fanouts": "4,4", "batch": 64}


def learned(run: Rig) -> list[list[tuple[int, int]]]:
    """The positives of each trainer."""
    found = []
    for trainer in trainers(run):
        assert isinstance(trainer.seeds, LinkSeeds)
        positives = trainer.seeds._batches._positives
        found.append(list(zip(positives.source.tolist(), positives.destination.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("graph", [blocks, tangled])
def test_every_training_edge_is_learned_once_by_the_owner_of_its_end(graph) -> None:  # type: ignore[no-untyped-def]
    for parts, by in CUTS:
        run = rig(graph(), "ggs", parts=parts, by=by, encoder="sage", links=LINKS)
        pairs = training_pairs(run.graph.indptr, run.graph.indices, run.evaluator.links.directed)
        everything = list(zip(*(side.tolist() for side in pairs), strict=True))
        mine = learned(run)
        assert sorted(edge for edges in mine for edge in edges) == sorted(everything)
        for k, edges in enumerate(mine):
            assert {int(run.partition.assignment[v]) for _, v in edges} <= {k}
        crossing = [e for edges in mine for e in edges if len(set(run.partition.assignment[list(e)])) == 2]
        assert bool(crossing) == (parts > 1)


def plain_loop(run: Rig, steps: int) -> np.ndarray:
    """Sampled training on the whole graph, one trainer's positives after the other; each step hides its edges."""
    graph, model, spec = run.graph, run.team._spec.build_model(), run.team._spec
    encoder = encoder_of(model)
    whole = Neighbourhoods(
        encoder.aggregation,
        graph.indptr,
        graph.indices,
        graph.edge_weight,
        features_as_factor(graph.x, torch.float64),
        2,
        torch.float64,
        spec.sample.fanouts,
    )
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for step in range(steps):
        losses, counts = [], []
        for k, trainer in enumerate(trainers(run)):
            targets = trainer.seeds.draw(step)
            if spec.links.mask_targets:
                whole.hide(*targets.hidden)
            batch = whole.batch(targets.nodes, derive(0, "sample", k, step))
            losses.append(targets.loss(model, embed(encoder, batch, derive(0, "dropout", 0, k, step))) * targets.count)
            counts.append(targets.count)
        adam.zero_grad()
        (sum(losses) / sum(counts)).backward()
        adam.step()
    return torch.cat([value.reshape(-1) for value in model.state_dict().values()]).numpy()


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
def test_steps_are_a_plain_loop_over_the_whole_graph(encoder: str, mask: bool) -> None:
    for graph in (tangled(), blocks(90)):
        for parts, by in CUTS[1:4]:
            run = rig(
                graph,
                "ggs",
                parts=parts,
                by=by,
                encoder=encoder,
                dtype="float64",
                links={**LINKS, "mask_targets": mask},
                sample={"fanouts": "4,3", "batch": 9},
                steps=8,
                interval=8,
                keep="last",
            )
            expected = plain_loop(run, 8)
            assert np.abs(run.train().vector() - expected).max() <= 1e-9


def test_negatives_are_uniform_over_the_whole_graph() -> None:
    """Whatever part draws them; the bound is passed once in a million times."""
    run = rig(blocks(), "ggs", parts=3, encoder="sage", links={**LINKS, "per_positive": 4})
    counts = np.zeros(240)
    for trainer in trainers(run):
        for step in range(100):
            counts += np.bincount(trainer.seeds.draw(step).links.negative, minlength=240)
    expected = counts.sum() / 240
    assert counts.sum() > 100_000
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, 239)


@pytest.mark.parametrize("mask", [True, False])
def test_hidden_edges_are_in_no_block(mask: bool) -> None:
    run = rig(
        blocks(90),
        "ggs",
        parts=4,
        encoder="sage",
        links={**LINKS, "mask_targets": mask},
        sample={"batch": 12},
        steps=12,
        interval=12,
    ).train()
    used = hidden = 0
    for trainer in trainers(run):
        for _, targets, found in trainer.seen:
            links = targets.links
            gone = set(zip(links.source.tolist(), links.destination.tolist(), strict=True))
            gone |= {(v, u) for u, v in gone}
            hidden += len(gone)
            for block in found:
                ends = np.repeat(block.nodes[: block.num_destinations], np.diff(block.indptr))
                used += len(gone & set(zip(block.nodes[block.indices].tolist(), ends.tolist(), strict=True)))
    assert hidden > 200
    assert (used == 0) == mask


@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
@pytest.mark.parametrize("decoder", ["mlp", "dot", "distmult"])
def test_it_learns_and_repeats(encoder: str, decoder: str) -> None:
    options = {"encoder": encoder, "links": {**LINKS, "decoder": decoder}, "sample": SAMPLE, "steps": 60, "lr": 0.02}
    runs = [rig(blocks(), "ggs", interval=20, **options).train() for _ in range(2)]
    assert runs[0].vector().tobytes() == runs[1].vector().tobytes()
    assert runs[0].ledger == runs[1].ledger
    assert runs[0].history[-1].loss < np.log(2), "what a coin would lose"
    assert runs[0].keeper.best_score > 0.22, "a random order of 21 gives 0.17"


def test_every_type_of_an_edge_is_learned_where_the_decoder_tells_them_apart() -> None:
    graph = blocks(90)
    kinds = (np.arange(graph.num_edges) % 3).astype(np.int16)
    graph = graph.with_(edge_type=kinds, edge_type_names=("a", "b", "c"))
    spec_of = rig(graph, "ggs", parts=3, encoder="sage", links={**LINKS, "decoder": "distmult"}).team._spec
    assert isinstance(spec_of, TrainerSpec)
    found = []
    for shard in partition(graph, by="random", parts=3, seed=0).shards:
        positives = LinkSeeds(shard, spec_of)._batches._positives
        found += np.column_stack([positives.source, positives.destination, positives.relation]).tolist()
    assert sorted(found) == sorted(typed_edges(graph, kinds))


def typed_edges(graph: Graph, kinds: np.ndarray) -> list[list[int]]:
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return [edge for edge in np.column_stack([graph.indices, ends, kinds]).tolist() if edge[0] != edge[1]]


def test_a_weight_below_minus_one_that_masking_uncovers_is_named() -> None:
    """GCN's degree without the hidden edge has no root: an error with the node's own id."""
    graph = blocks(90)
    weight = np.ones(graph.num_edges, dtype=np.float32)
    row = slice(int(graph.indptr[7]), int(graph.indptr[8]))
    weight[row] = -2.0
    weight[row.start] = 50.0
    with pytest.raises(Exception, match="the in-edges of node 7 weigh"):
        rig(
            graph.with_(edge_weight=weight),
            "ggs",
            parts=3,
            encoder="gcn",
            links={"eval_negatives": 20},
            sample={"batch": 4},
            steps=200,
            interval=200,
        ).train()
