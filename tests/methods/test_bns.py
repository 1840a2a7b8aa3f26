"""BNS-GCN against a loop over the whole graph with the same draws, its draws, and the columns that it drops."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracle import dense_matrix, hidden
from rig import Rig, blocks, flat_vector, rig, tangled
from test_bytes import boundaries

from farflung.kernels import Pattern, SparseMatrix
from farflung.methods.boundary import Draw, drawn_rows
from farflung.seeding import generator

SEED = 0
CUTS = [(tangled, "random", 4), (blocks, "mincut", 3), (blocks, "random", 2)]


def factors(run: Rig, step: int, rate: float) -> torch.Tensor:
    """[N, N]: what the row of a source counts at a destination: 1 within a part, else b / n where drawn, else 0."""
    part = run.partition.assignment
    found = torch.from_numpy((part[:, None] == part[None, :]).astype(np.float64))
    for (i, j), nodes in boundaries(run.graph, part).items():
        b = len(nodes)
        n = int(np.ceil(Fraction(str(rate)) * b))
        drawn = generator(SEED, "boundary", step, i, j).choice(b, n, replace=False, shuffle=False)
        for u in np.sort(list(nodes))[drawn]:
            found[torch.from_numpy(part == j), int(u)] = b / n
    return found


def bns_loop(run: Rig, steps: int, rate: float) -> tuple[np.ndarray, list[float]]:
    """The weights after some steps of BNS-GCN over the whole graph, dense, and the losses."""
    graph, optim = run.graph, run.setting.optim
    encoder = "sage" if run.setting.model.aggregation == "mean" else "gcn"  # type: ignore[union-attr]
    model = rig(
        graph, "centralised", encoder=encoder, layers=len(run.setting.model.layers), dtype="float64"
    ).setting.model
    matrix = dense_matrix(encoder, graph, run.partition.assignment)
    adam = torch.optim.Adam(model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
    rows = np.flatnonzero(graph.split.train)  # type: ignore[union-attr]
    losses = []
    for step in range(steps):
        h, last = torch.from_numpy(graph.x.astype(np.float64)), len(model.layers) - 1  # type: ignore[union-attr]
        sampled = matrix * factors(run, step, rate)
        for number, layer in enumerate(model.layers):
            h = hidden(layer, layer.conv, h, sampled if number else matrix, number == last)
        loss = F.cross_entropy(h[rows], torch.from_numpy(graph.y[rows]))  # type: ignore[index]
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return flat_vector(model.state_dict()), losses


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.07, 1.0])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
@pytest.mark.parametrize(
    ("graph", "by", "parts"), [(tangled, "random", 4), (blocks, "mincut", 3), (blocks, "random", 2)]
)
def test_it_is_the_loop_with_the_same_draws(graph, by: str, parts: int, encoder: str, layers: int, rate: float) -> None:  # type: ignore[no-untyped-def]
    run = rig(
        graph(), "synchronous", by=by, parts=parts, encoder=encoder, layers=layers, boundary_rate=rate, steps=6,
        interval=1, dtype="float64", keep="last", seed=SEED,
    ).train()  # fmt: skip
    weights, losses = bns_loop(run, 6, rate)
    assert np.abs(run.vector() - weights).max() <= 1e-9
    assert [record.loss for record in run.history] == pytest.approx(losses, abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "count", "drawn"),
    [(0.07, 100, 7), (0.1, 30, 3), (0.1, 31, 4), (0.1, 1, 1), (1e-9, 5, 1), (1.0, 5, 5), (0.29, 100, 29), (0.5, 0, 0)],
)
def test_the_number_of_rows_is_rounded_up_from_the_rate_as_written(rate: float, count: int, drawn: int) -> None:
    assert drawn_rows(rate, count) == drawn


def test_draws_are_without_replacement_new_in_each_step_and_equal_at_both_ends() -> None:
    shards = rig(blocks(), "synchronous", parts=3).partition.shards
    seen = []
    draws = [Draw(shard, 5, 0.3) for shard in shards]
    for step in range(40):
        for draw in draws:
            draw.anew(step)
        for i, shard in enumerate(shards):
            for j in draws[i].peers:
                sent, scale = draws[i].sent(j)
                received = draws[j].received(i)
                assert np.array_equal(shard.inner[sent], shards[j].halo[received])
                assert len(set(sent.tolist())) == len(sent) == drawn_rows(0.3, len(shard.boundary_for(j)))
                assert scale == len(shard.boundary_for(j)) / len(sent)
        assert (np.diff(draws[0].places) > 0).all()
        seen.append(draws[0].places.tobytes())
    assert len(set(seen)) == 40
    everything = Draw(shards[0], 5, 1.0)
    assert np.array_equal(everything.places, np.arange(shards[0].num_halo))


def test_each_row_is_drawn_as_often_as_the_others() -> None:
    shard = rig(blocks(), "synchronous", parts=3).partition.shards[0]
    draw, hits, steps = Draw(shard, 1, 0.2), np.zeros(shard.num_halo), 3000
    for step in range(steps):
        draw.anew(step)
        hits[draw.places] += 1
    for owner in draw.owners:
        place = shard.halo_of(owner)
        share = drawn_rows(0.2, place.stop - place.start) / (place.stop - place.start)
        sd = np.sqrt(share * (1 - share) / steps)
        assert np.abs(hits[place] / steps - share).max() <= 5 * sd


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_columns_of_a_matrix(index: type) -> None:
    rng = np.random.default_rng(0)
    indptr = np.array([0, 4, 4, 9, 12])
    indices, values = rng.integers(0, 7, 12).astype(index), rng.normal(size=12)
    attr = rng.normal(size=(12, 2))
    matrix = SparseMatrix(Pattern(indptr, indices, 7), values, attr)
    for chosen in (np.array([0, 2, 3, 6]), np.arange(7), np.empty(0, np.int64), np.array([5])):
        part = matrix.columns(chosen)
        entries = [(i, e) for i in range(4) for e in range(indptr[i], indptr[i + 1]) if indices[e] in chosen]
        assert part.shape == (4, len(chosen))
        assert np.array_equal(part.to_scipy().toarray(), matrix.to_scipy().toarray()[:, chosen])
        assert np.array_equal(part.values, values[[e for _, e in entries]])
        assert part.attr is not None and np.array_equal(part.attr, attr[[e for _, e in entries]])
        assert part.pattern.indices.dtype == matrix.pattern.indices.dtype


@pytest.mark.parametrize("aggregation", ["attention", "edges"])
def test_what_was_not_drawn_is_left_out_where_rows_are_not_summed(aggregation: str) -> None:
    """Nothing stands for the missing rows: entries of the drawn ones are those of a graph that has no others."""
    from farflung.nn import halo_adjacency

    run = rig(tangled(), "synchronous", parts=3, boundary_rate=0.4, dtype="float64")
    for number in range(3):
        trainer = run.team._trainers[number]
        trainer.draw.anew(7)  # type: ignore[attr-defined]
        shard, places = trainer.shard, trainer.draw.places  # type: ignore[attr-defined]
        present = np.zeros(shard.num_inner + shard.num_halo, dtype=bool)
        present[: shard.num_inner] = True
        present[shard.num_inner + places] = True
        alone = halo_adjacency(aggregation, shard, np.float64, present)  # type: ignore[arg-type]
        assert alone is not None
        found = trainer._matrix(aggregation)  # type: ignore[attr-defined]
        assert np.array_equal(found.to_scipy().toarray(), alone.to_scipy().toarray()[:, present])
        assert 0 < len(places) < shard.num_halo
