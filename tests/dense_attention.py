"""Graph attention by its formula on dense matrices: what the kernel and the layers are checked against."""

from __future__ import annotations

import torch


def attention(conv, counts: torch.Tensor, h: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """A GATConv's output [R, out] of `h` [K, F]; `counts` [R, K]: how often an edge is there, loops among them.

    The first R of the K sources are the destinations.
    """
    rows = (h @ conv.weights[0]).reshape(len(h), *conv.source.shape)
    as_source, as_destination = (rows * conv.source).sum(2), (rows * conv.destination).sum(2)[: len(counts)]
    scores = as_destination[:, None] + as_source[None]
    scores = torch.where(scores > 0, scores, 0.2 * scores)  # [R, K, H]
    there = counts.to(h.dtype).unsqueeze(2)
    top = torch.where(there > 0, scores, -torch.inf).amax(dim=1, keepdim=True) if len(h) else 0
    shares = torch.where(there > 0, there * torch.exp(scores - top), 0)
    out = torch.einsum("rkh,khd->rhd", shares / shares.sum(dim=1, keepdim=True), rows)
    return (out.mean(dim=1) if conv.average else out.flatten(1)) + conv.bias
