"""Speed of mini-batches, as ratios within one run.

1. Sampling with fan-outs 10 and 25 for 1,024 seeds on an `sbm` graph with 30M edges, on one core, against a bare gather
   of as many random entries from an int32 array with a place per node.
2. A sampled GraphSAGE step (128 -> 256 -> 40, 1,024 seeds: sampling, matrices, forward, backward, Adam) on an `sbm`
   graph with 200k nodes and 6M edges, against PyG's `GraphSAGE` on the same samples as `edge_index`, with and without
   `trim_to_layer`. Theirs counts neither sampling nor the gathering of features, which ours does.
3. Where our step's time goes (`forward` holds the aggregation of features where they lie, which is also given alone,
   as is a gather that copies them), beside its dense products alone and its bytes at the bandwidth of a copy.

Each repetition runs all sides in turn; the ratio quoted is the median over repetitions. Set THP_MEM_ALLOC_ENABLE=1
outside to give both sides huge pages for big tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import numba
import numpy as np
import torch

from farflung.graph import load
from farflung.kernels import Pattern, SparseMatrix
from farflung.kernels.sampling import Block, NeighbourSampler
from farflung.nn import ModelConfig, build_encoder
from farflung.nn.blocks import Batch, Neighbourhoods, embed
from farflung.nn.features import features_as_factor
from farflung.nn.optim import OptimConfig, adam

FANOUTS = (10, 25)
WIDTHS = (128, 256, 40)
BATCHES = 4
"""Batches that the repetitions go through, so that no cache holds all of one."""


def timed(function: Callable[[int], object], repetition: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function(repetition)
    return time.perf_counter() - start


def in_turn(sides: dict[str, Callable[[int], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each side, all sides in turn, after one call of each that is not counted."""
    for function in sides.values():
        function(0)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for repetition in range(1, repetitions + 1):
        for name, function in sides.items():
            seconds[name].append(timed(function, repetition))
    return seconds


def ratio(seconds: dict[str, list[float]], above: str, below: str) -> float:
    """Median over repetitions of the ratio of two sides that ran in turn."""
    return statistics.median(a / b for a, b in zip(seconds[above], seconds[below], strict=True))


@numba.njit
def gather(values, index, out):  # type: ignore[no-untyped-def]
    for i in range(len(index)):
        out[i] = values[index[i]]


def sampling(nodes: int, edges: int, seeds: int, repetitions: int) -> dict[str, float]:
    """Sampled edges per second on one core, and the time of a bare gather."""
    graph = load(f"sbm:nodes={nodes},classes=40,degree={edges / nodes:g},homophily=0.7,features=0,seed=0")
    sampler = NeighbourSampler(graph.indptr, graph.indices)
    rng = np.random.default_rng(0)
    chosen = [rng.choice(nodes, seeds, replace=False) for _ in range(repetitions + 1)]
    counts = [sum(len(block.edges) for block in sampler.blocks(s, FANOUTS, key)) for key, s in enumerate(chosen)]
    values = rng.integers(0, nodes, nodes).astype(np.int32)
    index = [rng.integers(0, nodes, count) for count in counts]
    out = np.empty(max(counts), np.int32)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        seconds = in_turn(
            {
                "ours": lambda r: sampler.blocks(chosen[r], FANOUTS, r),
                "gather": lambda r: gather(values, index[r], out),
            },
            repetitions,
        )
    finally:
        numba.set_num_threads(before)
    return {
        "graph_edges": graph.num_edges,
        "sampled_edges": statistics.median(counts[1:]),
        "sampled_edges_per_s": statistics.median(c / s for c, s in zip(counts[1:], seconds["ours"], strict=True)),
        "ours_over_gather": ratio(seconds, "ours", "gather"),
        "graph_bytes": graph.indptr.nbytes + graph.indices.nbytes,
        # Labels, and for hidden edges a count and a start per node.
        "state_bytes": 3 * 4 * nodes,
    }


def pyg_inputs(blocks: list[Block], x: torch.Tensor) -> dict[str, object]:
    """The same sample as PyG's loader gives it: edges hop by hop, each node expanded once, features gathered."""
    outer, inner = blocks
    hops = []
    for block, known in ((inner, 0), (outer, inner.num_destinations)):
        destinations = np.repeat(np.arange(block.num_destinations), np.diff(block.indptr))
        hops.append(np.stack([block.indices, destinations])[:, destinations >= known])
    sizes = [inner.num_destinations, len(inner.nodes), len(outer.nodes)]
    return {
        "x": x[torch.from_numpy(outer.nodes)],
        "edge_index": torch.from_numpy(np.concatenate(hops, axis=1).astype(np.int64)),
        "num_sampled_nodes_per_hop": [sizes[0], sizes[1] - sizes[0], sizes[2] - sizes[1]],
        "num_sampled_edges_per_hop": [hop.shape[1] for hop in hops],
    }


def step(nodes: int, edges: int, num_seeds: int, repetitions: int) -> dict[str, object]:
    """Our sampled step against PyG's, its parts, and what bounds it."""
    from torch_geometric.nn import GraphSAGE

    width, hidden, out = WIDTHS
    graph = load(f"sbm:nodes={nodes},classes={out},degree={edges / nodes:g},homophily=0.7,features={width},seed=0")
    assert graph.x is not None and graph.y is not None
    x = features_as_factor(graph.x, torch.float32)
    assert isinstance(x, torch.Tensor)
    y = torch.from_numpy(np.asarray(graph.y)).long()
    inputs = Neighbourhoods("mean", graph.indptr, graph.indices, None, x, 2, torch.float32, FANOUTS)
    sampler = inputs.sampler
    assert sampler is not None
    rng = np.random.default_rng(0)
    seeds = [rng.choice(nodes, num_seeds, replace=False) for _ in range(BATCHES)]
    targets = [y[torch.from_numpy(s)] for s in seeds]
    samples = [sampler.blocks(s, FANOUTS, key) for key, s in enumerate(seeds)]

    config = ModelConfig(encoder="sage", hidden=hidden, norm="none", dropout=0.0)
    ours = build_encoder(config, width, out, heads=False, seed=0, dtype=torch.float32)
    our_adam = adam(OptimConfig(weight_decay=0), ours.layers)
    theirs = GraphSAGE(width, hidden, num_layers=2, out_channels=out)
    their_adam = torch.optim.Adam(theirs.parameters(), lr=0.003, fused=True)
    their_inputs = [pyg_inputs(blocks, x) for blocks in samples]

    parts: dict[str, list[float]] = {}

    def our_step(repetition: int) -> None:
        which = repetition % BATCHES
        marks = [("", time.perf_counter())]
        blocks = sampler.blocks(seeds[which], FANOUTS, which)
        marks.append(("sample", time.perf_counter()))
        batch = Batch([inputs.matrix(block) for block in blocks], x, blocks[0].nodes)
        marks.append(("matrices", time.perf_counter()))
        loss = torch.nn.functional.cross_entropy(embed(ours, batch), targets[which])
        marks.append(("forward", time.perf_counter()))
        our_adam.zero_grad()
        loss.backward()
        marks.append(("backward", time.perf_counter()))
        our_adam.step()
        marks.append(("optimiser", time.perf_counter()))
        if repetition:
            for (_, start), (name, stop) in pairwise(marks):
                parts.setdefault(name, []).append(stop - start)

    def their_step(repetition: int, trimmed: bool) -> None:
        which = repetition % BATCHES
        arguments = their_inputs[which]
        if not trimmed:
            arguments = {name: arguments[name] for name in ("x", "edge_index")}
        loss = torch.nn.functional.cross_entropy(theirs(**arguments)[:num_seeds], targets[which])
        their_adam.zero_grad()
        loss.backward()
        their_adam.step()

    # What a step must read and write, and multiply, at least.
    first, second = samples[0]
    rows, sources = first.num_destinations, torch.from_numpy(first.nodes[first.indices])
    gathered_x = torch.empty(len(sources), width)
    there = SparseMatrix(
        Pattern(first.indptr, first.nodes[first.indices], nodes), np.ones(len(first.edges), dtype=np.float32)
    )
    own, weights = torch.randn(rows, 2 * width), torch.randn(2 * width, hidden)
    inner, outer = torch.randn(num_seeds, 2 * hidden), torch.randn(2 * hidden, out)
    grad_hidden, grad_out = torch.randn(rows, hidden), torch.randn(num_seeds, out)

    def dense_products(repetition: int) -> None:
        torch.mm(own, weights)
        torch.mm(own.t(), grad_hidden)
        torch.mm(inner, outer)
        torch.mm(inner.t(), grad_out)
        torch.mm(grad_out, outer.t())

    big = torch.randn(50_000_000 if nodes >= 200_000 else 1_000_000)
    seconds = in_turn(
        {
            "ours": our_step,
            "trimmed": lambda r: their_step(r, True),
            "untrimmed": lambda r: their_step(r, False),
            "dense products": dense_products,
            "aggregation in place": lambda r: there @ x,
            "gather of features": lambda r: torch.index_select(x, 0, sources, out=gathered_x),
            "copy": lambda r: big.clone(),
        },
        repetitions,
    )
    bandwidth = 2 * big.nbytes / statistics.median(seconds["copy"])
    # Features of neighbours and own ones read, gathered ones written and read twice, the hidden layer written, read by
    # the activation and the next layer, its gradient written, masked and read.
    least = 4 * (width * (len(first.edges) + rows + 2 * 3 * rows) + hidden * rows * 7)
    return {
        "sampled_edges": [len(first.edges), len(second.edges)],
        "rows": [len(first.nodes), rows, num_seeds],
        "ours_s": statistics.median(seconds["ours"]),
        "pyg_trimmed_s": statistics.median(seconds["trimmed"]),
        "pyg_untrimmed_s": statistics.median(seconds["untrimmed"]),
        "pyg_trimmed_over_ours": ratio(seconds, "trimmed", "ours"),
        "pyg_untrimmed_over_ours": ratio(seconds, "untrimmed", "ours"),
        "parts_s": {name: statistics.median(values) for name, values in parts.items()},
        "dense_products_s": statistics.median(seconds["dense products"]),
        "aggregation_of_features_in_place_s": statistics.median(seconds["aggregation in place"]),
        "copying_gather_of_features_s": statistics.median(seconds["gather of features"]),
        "bytes": least,
        "bytes_at_copy_bandwidth_s": least / bandwidth,
        "copy_bandwidth_gb_per_s": bandwidth / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1024, help="seeds per batch")
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="graphs of 10k nodes, to see that the script runs")
    options = parser.parse_args()
    sizes = [(10_000, 300_000)] * 2 if options.small else [(1_000_000, 30_000_000), (200_000, 6_000_000)]
    result = {
        "threads": torch.get_num_threads(),
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE", ""),
        "sampling": sampling(*sizes[0], options.seeds, options.repetitions),
        "step": step(*sizes[1], options.seeds, options.repetitions),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
