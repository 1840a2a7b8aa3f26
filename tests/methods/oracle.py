"""Lazy training as one plain loop over the whole graph, dense and slow; trainers may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from rig import Rig, flat_vector

from dense_attention import attention
from farflung.graph import Graph
from farflung.nn import ModelConfig, build_encoder

Parts = Callable[[int], Sequence[int]]


def dense_matrix(encoder: str, graph: Graph, part: np.ndarray, missing: Sequence[int] = ()) -> torch.Tensor:
    """The aggregation matrix [N, N], edge by edge; for gat how often each edge is there.

    Rows of parts in `missing` do not reach other parts.
    """
    n = graph.num_nodes
    matrix = np.zeros((n, n))
    degree = np.zeros(n)
    for v in range(n):
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            u = graph.indices[e]
            w = 1.0 if graph.edge_weight is None or encoder == "gat" else float(graph.edge_weight[e])
            degree[v] += w if u != v else 0
            if (encoder == "sage" or u != v) and (part[u] == part[v] or part[u] not in missing):
                matrix[v, u] += w
    if encoder == "gat":
        matrix += np.eye(n)
    elif encoder == "gcn":
        matrix = (matrix + np.eye(n)) / np.sqrt(np.outer(degree + 1, degree + 1))
    else:
        total = matrix.sum(axis=1, keepdims=True)
        matrix = matrix / np.where(total == 0, 1, total)
    return torch.from_numpy(matrix)


def lazy_loop(
    run: Rig,
    rounds: Sequence[int],
    answers: Parts | None = None,
    unheard: Callable[[int, int], Sequence[int]] | None = None,
) -> tuple[np.ndarray, list[float | None]]:
    """Train the setting of `run` over again, in float64 and without dropout, and keep the last weights.

    `rounds`: of each layer. `answers(round)`: parts whose gradients count in a round (None: all).
    `unheard(layer, round)`: parts whose rows of that layer's input others do without in a round (None: none).

    Returns the weights and each round's mean loss.
    """
    graph, part = run.graph, run.partition.assignment
    config, optim = run.setting.model, run.setting.optim
    encoder = {"gcn": "gcn", "mean": "sage", "attention": "gat"}[config.aggregation]
    everyone = range(run.partition.num_parts)
    widths = [layer.conv.bias.numel() for layer in config.layers]
    model = build_encoder(
        ModelConfig(encoder=encoder, layers=len(widths), hidden=max(widths[0], 16), dropout=0.0),
        graph.num_features,
        graph.num_classes,
        True,
        0,
        torch.float64,
    )
    x = graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray()
    h = torch.from_numpy(x.astype(np.float64))
    losses: list[float | None] = []
    matrices = {}
    round = 0
    for number, layer in enumerate(model.layers):
        conv = layer.conv
        decay = optim.weight_decay if optim.decay == "all" or number == 0 else 0.0
        adam = torch.optim.Adam(layer.parameters(), lr=optim.lr, weight_decay=decay)
        last = number == len(widths) - 1
        for _ in range(rounds[number]):
            present = everyone if answers is None else answers(round)
            missing = tuple(unheard(number, round)) if unheard is not None else ()
            if missing not in matrices:
                matrices[missing] = dense_matrix(encoder, graph, part, missing)
            rows = np.flatnonzero(graph.split.train & np.isin(part, list(present)))
            round += 1
            if not len(rows):
                losses.append(None)
                continue
            adam.zero_grad()
            out = hidden(layer, conv, h, matrices[missing], last)
            out = out if last else layer.head(out)
            loss = F.cross_entropy(out[rows], torch.from_numpy(graph.y[rows]))
            loss.backward()
            adam.step()
            losses.append(loss.item())
        if not last:
            h = hidden(layer, conv, h, matrices[missing], last).detach()
    return flat_vector(model.state_dict()), losses


def hidden(layer, conv, h, matrix, last: bool) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Conv, norm and ReLU, spelt out."""
    if conv.aggregation == "attention":
        out = attention(conv, matrix, h)
    else:
        gathered = [h, matrix @ h] if len(conv.weights) == 2 else [matrix @ h]
        out = sum(g @ w for g, w in zip(gathered, conv.weights, strict=True)) + conv.bias
    if last:
        return out
    mean, var = out.mean(dim=1, keepdim=True), out.var(dim=1, unbiased=False, keepdim=True)
    return torch.relu((out - mean) / torch.sqrt(var + 1e-5) * layer.norm.weight + layer.norm.bias)
