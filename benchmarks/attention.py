"""Speed of graph attention, as ratios within one run.

A full-batch GAT epoch (forward and backward, 128 -> 8 heads of 32 -> 8 heads of 40, averaged) on an `sbm` graph with
100k nodes and 3M edges, against two of PyG's `GATConv` with the same weights on `edge_index`; beside it what bounds it
from below: its dense products alone, and the bytes that it gathers at the bandwidth of a copy.

Sides run in turn; a ratio is one of medians. PyG keeps a row of 256 or 320 numbers for each edge: 21 GB at the peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from farflung.graph import Graph, load
from farflung.nn import Encoder, ModelConfig, build_encoder, graph_adjacency

HEADS, FEATURES, HIDDEN, CLASSES = 8, 128, 256, 40


def sbm(nodes: int, edges: int) -> Graph:
    degree = edges / nodes
    return load(f"sbm:nodes={nodes},classes={CLASSES},degree={degree:g},homophily=0.7,features={FEATURES},seed=0")


def in_turn(sides: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median seconds of each side, all sides in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, function in sides.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def our_epoch(model: Encoder, graph: Graph) -> Callable[[], torch.Tensor]:
    """Forward and backward; returns the loss."""
    matrix = graph_adjacency("attention", graph, np.float32)
    gathered = model.prepare(matrix, torch.from_numpy(np.asarray(graph.x)))
    y = torch.from_numpy(np.asarray(graph.y))

    def epoch() -> torch.Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(matrix, gathered), y)
        loss.backward()
        return loss.detach()

    return epoch


def their_epoch(model: Encoder, graph: Graph) -> Callable[[], torch.Tensor]:
    """The same by PyG, from the same weights."""
    from torch_geometric.nn import GATConv

    convs = [GATConv(FEATURES, HIDDEN // HEADS, HEADS), GATConv(HIDDEN, CLASSES, HEADS, concat=False)]
    for theirs, layer in zip(convs, model.layers, strict=True):
        ours = layer.conv
        theirs.lin.weight.data = ours.weights[0].detach().T.clone()
        theirs.att_src.data, theirs.att_dst.data = ours.source.detach()[None], ours.destination.detach()[None]
    x, y = torch.from_numpy(np.asarray(graph.x)), torch.from_numpy(np.asarray(graph.y))
    edge_index = torch.from_numpy(np.stack([graph.indices, graph.destinations()]).astype(np.int64))

    def epoch() -> torch.Tensor:
        for conv in convs:
            conv.zero_grad()
        loss = F.cross_entropy(convs[1](F.elu(convs[0](x, edge_index)), edge_index), y)
        loss.backward()
        return loss.detach()

    return epoch


def dense_products(nodes: int) -> Callable[[], object]:
    """X [W, W v, W u] and its weight gradient; the same of the second layer, and its input gradient."""
    x, h = torch.randn(nodes, FEATURES), torch.randn(nodes, HIDDEN)
    first, second = torch.randn(nodes, HIDDEN + 2 * HEADS), torch.randn(nodes, HEADS * (CLASSES + 2))
    w, v = torch.randn(FEATURES, first.shape[1]), torch.randn(HIDDEN, second.shape[1])

    def products() -> None:
        torch.mm(x, w)
        torch.mm(x.t(), first)
        torch.mm(h, v)
        torch.mm(h.t(), second)
        torch.mm(second, v.t())

    return products


def gathered_bytes(entries: int) -> int:
    """Of an epoch: for each entry the source's row forward, the destination's gradient backward; weights and scores."""
    forward, backward = HIDDEN + HEADS * CLASSES, HIDDEN + CLASSES
    small = 2 * (2 * 2 * HEADS + HEADS + 3 * HEADS + HEADS)
    return entries * (4 * (forward + backward + small) + 2 * (4 + 4 + 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=3_000_000, help="directed edges")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    config = ModelConfig(
        encoder="gat", hidden=HIDDEN, attention_heads=HEADS, norm="none", activation="elu", dropout=0.0
    )
    model = build_encoder(config, FEATURES, CLASSES, heads=False, seed=0, dtype=torch.float32)
    small = sbm(2000, 20_000)
    losses = our_epoch(model, small)(), their_epoch(model, small)()  # compiles what is to be compiled
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
    graph = sbm(options.nodes, options.edges)
    ours, theirs = our_epoch(model, graph), their_epoch(model, graph)
    big = torch.randn(50_000_000)
    ours()  # builds the transpose
    sides = {"farflung": ours, "pyg": theirs, "dense products": dense_products(graph.num_nodes), "copy": big.clone}
    seconds = in_turn(sides, options.repetitions)
    gathers = gathered_bytes(graph.num_edges + graph.num_nodes) * seconds["copy"] / (2 * big.nbytes)
    limit = seconds["dense products"] + gathers
    result = {
        "threads": torch.get_num_threads(),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "epoch_s": seconds["farflung"],
        "pyg_s": seconds["pyg"],
        "pyg_over_ours": seconds["pyg"] / seconds["farflung"],
        "dense_products_s": seconds["dense products"],
        "gathers_at_copy_bandwidth_s": gathers,
        "ours_over_limit": seconds["farflung"] / limit,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
