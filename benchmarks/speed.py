"""Speed of the two inner loops, as ratios within one run.

1. A full-batch GraphSAGE epoch (128 -> 256 -> 40: forward, backward, Adam) on an `sbm` graph with 100k nodes and 3M
   edges, against PyG's `GraphSAGE` on `edge_index`; beside it the time of its dense products alone and of its bytes.
2. A lazy training step (weights in, gradient out, server step) against the same Linear-LayerNorm-ReLU-head stack in
   plain PyTorch on the same rows.

Each repetition runs both sides in turn; the ratio quoted is the median over repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from farflung.graph import Graph
from farflung.graph.datasets import load
from farflung.graph.splits import choose_split
from farflung.methods.aggregate import summed
from farflung.methods.lazy_trainer import LazyTrainer
from farflung.nn import ModelConfig, build_encoder, flat, graph_adjacency
from farflung.nn.optim import OptimConfig, adam
from farflung.partition import partition
from farflung.team import Message, WallClock
from farflung.trainer import TrainerSpec


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turn(sides: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each side, all sides in turn, after one call of each that is not counted."""
    for function in sides.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, function in sides.items():
            seconds[name].append(timed(function))
    return seconds


def ratio(seconds: dict[str, list[float]], above: str, below: str) -> float:
    """Median over repetitions of the ratio of two sides that ran in turn."""
    return statistics.median(a / b for a, b in zip(seconds[above], seconds[below], strict=True))


def epoch(graph: Graph, repetitions: int) -> dict[str, float]:
    """Our full-batch epoch against PyG's, its dense products and its bytes."""
    from torch_geometric.nn import GraphSAGE

    x = torch.from_numpy(np.asarray(graph.x))
    y = torch.from_numpy(np.asarray(graph.y))
    edge_index = torch.from_numpy(np.stack([graph.indices, graph.destinations()]).astype(np.int64))
    config = ModelConfig(encoder="sage", hidden=256, norm="none", dropout=0.0)
    ours = build_encoder(config, 128, 40, heads=False, seed=0, dtype=torch.float32)
    matrix = graph_adjacency("mean", graph, np.float32)
    gathered = ours.prepare(matrix, x)
    theirs = GraphSAGE(128, 256, num_layers=2, out_channels=40)
    our_adam = adam(OptimConfig(weight_decay=0), ours.layers)
    their_adam = torch.optim.Adam(theirs.parameters(), lr=0.003, fused=True)

    def our_epoch() -> None:
        our_adam.zero_grad()
        torch.nn.functional.cross_entropy(ours(matrix, gathered), y).backward()
        our_adam.step()

    def their_epoch() -> None:
        their_adam.zero_grad()
        torch.nn.functional.cross_entropy(theirs(x, edge_index), y).backward()
        their_adam.step()

    n = graph.num_nodes
    inner, outer = torch.randn(n, 256), torch.randn(n, 80)
    first, second = torch.randn(256, 256), torch.randn(256, 80)

    def dense_products() -> None:
        # [X, AX] W_0; its weight gradient; H W_1 for both halves; its weight gradient and its input gradient.
        torch.mm(inner, first)
        torch.mm(inner.t(), inner)
        torch.mm(inner, second)
        torch.mm(inner.t(), outer)
        torch.mm(outer, second.t())

    big = torch.randn(50_000_000)

    def copy() -> None:
        big.clone()

    seconds = in_turn(
        {"ours": our_epoch, "pyg": their_epoch, "dense products": dense_products, "copy": copy}, repetitions
    )
    bandwidth = 2 * big.nbytes / statistics.median(seconds["copy"])
    gathers = 2 * graph.num_edges * (40 * 4 + 8)  # the hidden layer's 40 columns, forward and backward
    return {
        "epoch_s": statistics.median(seconds["ours"]),
        "pyg_s": statistics.median(seconds["pyg"]),
        "pyg_over_ours": ratio(seconds, "pyg", "ours"),
        "ours_over_dense_products": ratio(seconds, "ours", "dense products"),
        "dense_products_s": statistics.median(seconds["dense products"]),
        "gather_bytes_at_copy_bandwidth_s": gathers / bandwidth,
    }


def lazy_step(graph: Graph, repetitions: int, steps: int = 20) -> dict[str, float]:
    """A lazy training step against the same stack in plain PyTorch, on the training rows of one trainer."""
    graph = choose_split(graph, "random:0.6/0.2/0.2", seed=0)
    spec = TrainerSpec(
        target="farflung.methods.lazy_trainer:LazyTrainer",
        model=ModelConfig(encoder="sage", hidden=256, dropout=0.3),
        optim=OptimConfig(),
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        multilabel=False,
        heads=True,
        seed=0,
        dtype="float32",
    )
    shard = partition(graph, by="random", parts=1).shards[0]
    trainer = LazyTrainer(shard, spec, WallClock())
    trainer.handle(Message("halo", {"layer": 0}))
    layer = spec.build_model().layers[0]
    optimiser = adam(spec.optim, [layer])
    rows = [np.asarray(part) for part in trainer.train_gathered]
    count = len(rows[0])

    def our_steps() -> None:
        for t in range(steps):
            message = Message(
                "gradient",
                {"layer": 0, "round": t, "of": count, "score": False, "keep": False},
                {"weights": flat.pack(layer)},
            )
            reply = trainer.handle(message)
            flat.set_gradients(layer, summed([reply.arrays["gradients"]]))
            optimiser.step()

    width = sum(part.shape[1] for part in rows)
    stack = nn.Sequential(
        nn.Dropout(0.3), nn.Linear(width, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, graph.num_classes)
    )
    inputs = torch.from_numpy(np.concatenate(rows, axis=1))
    targets = trainer.train_targets
    stack_adam = torch.optim.Adam(stack.parameters(), lr=0.003, fused=True)

    def stack_steps() -> None:
        for _ in range(steps):
            stack_adam.zero_grad()
            torch.nn.functional.cross_entropy(stack(inputs), targets).backward()
            stack_adam.step()

    seconds = in_turn({"ours": our_steps, "stack": stack_steps}, repetitions)
    return {
        "rows": count,
        "lazy_step_s": statistics.median(seconds["ours"]) / steps,
        "stack_step_s": statistics.median(seconds["stack"]) / steps,
        "lazy_over_stack": ratio(seconds, "ours", "stack"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=3_000_000, help="directed edges")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    degree = options.edges / options.nodes
    graph = load(f"sbm:nodes={options.nodes},classes=40,degree={degree:g},homophily=0.7,features=128,seed=0")
    result = {
        "threads": torch.get_num_threads(),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "epoch": epoch(graph, options.repetitions),
        "lazy_step": lazy_step(graph, options.repetitions),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
