"""Encoders: stacks of layers, each a convolution with norm, activation and, in lazy training, a head of its own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import nn

from farflung.kernels import Product, SparseMatrix
from farflung.nn.config import ModelConfig
from farflung.nn.convs import CONVS, Conv, Gathered, fixed
from farflung.seeding import derive, torch_seed

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),  # no step before it needs its input again
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}


class Layer(nn.Module):
    """Conv -> norm -> activation; the last layer of an encoder is the bare convolution.

    With `head` (lazy training) a hidden layer also has a temporary linear map to the classes.
    """

    def __init__(self, conv: Conv, norm: nn.Module | None, activation: nn.Module | None, head: nn.Module | None):
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.activation = activation
        self.head = head

    def hidden(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """The layer's embedding of the gathered rows, [R, d]. `key` seeds dropout; None: evaluation."""
        h = self.conv.combine(gathered, key)
        if self.norm is not None:
            h = self.norm(h)
        return h if self.activation is None else self.activation(h)

    def predict(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """Class scores of the gathered rows by this layer and its head alone, [R, C]."""
        h = self.hidden(gathered, key)
        return h if self.head is None else self.head(h)


class Encoder(nn.Module):
    """A stack of layers over one aggregation matrix."""

    def __init__(self, config: ModelConfig, num_features: int, num_classes: int, heads: bool) -> None:
        """`num_features`, `num_classes` >= 1; `heads`: hidden layers get heads for lazy training."""
        super().__init__()
        conv = CONVS[config.encoder]
        self.aggregation = conv.aggregation
        widths = [num_features] + [config.hidden] * (config.layers - 1) + [num_classes]
        layers = []
        for i, (before, after) in enumerate(pairwise(widths)):
            last = i == config.layers - 1
            layers.append(
                Layer(
                    conv(before, after, config.dropout),
                    nn.LayerNorm(after) if config.norm == "layer" and not last else None,
                    None if last else ACTIVATIONS[config.activation](),
                    nn.Linear(after, num_classes) if heads and not last else None,
                )
            )
        self.stack = nn.ModuleList(layers)
        self.dropout = config.dropout

    @property
    def layers(self) -> list[Layer]:
        """The layers, first to last."""
        return cast("list[Layer]", list(self.stack))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def prepare(self, matrix: SparseMatrix | None, x: torch.Tensor | SparseMatrix) -> Gathered:
        """What the first layer gathers from constant features `x` [K, F]: done once, used in every step.

        Sparse features without dropout stay an unformed product where that has fewer entries to multiply.
        """
        gathered = self.layers[0].conv.aggregate(matrix, x)
        if self.dropout == 0 and any(_cheaper_unformed(operand) for operand in gathered):
            return gathered
        return fixed(gathered)

    def forward(self, matrix: SparseMatrix | None, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """Class scores [R, C] on a square `matrix` [R, R], from what `prepare` gathered.

        `key` seeds dropout, each layer with a key derived from it; None: evaluation.
        """
        h = self.layers[0].hidden(gathered, layer_key(key, 0))
        for i, layer in enumerate(self.layers[1:], start=1):
            h = layer.hidden(layer.conv.aggregate(matrix, h), layer_key(key, i))
        return h

    @torch.no_grad()
    def infer(self, matrix: SparseMatrix | None, gathered: Gathered) -> torch.Tensor:
        """Exact class scores of every row, layer by layer, without autograd. [R, C]."""
        return self.forward(matrix, gathered)


def layer_key(key: int | None, layer: int) -> int | None:
    """The dropout key of a layer within a step's key."""
    return None if key is None else derive(key, "layer", layer)


def _cheaper_unformed(operand: object) -> bool:
    """Whether `A (X W)` reads fewer entries than `(A X) W`, for a sparse X."""
    if not isinstance(operand, Product) or not isinstance(operand.factor, SparseMatrix):
        return False
    entries_of_row = operand.factor.pattern.indptr[1:] - operand.factor.pattern.indptr[:-1]
    unformed = operand.adjacency.num_entries + operand.factor.num_entries
    return unformed < int(entries_of_row[operand.adjacency.pattern.indices].sum())


def build_encoder(
    config: ModelConfig, num_features: int, num_classes: int, heads: bool, seed: int, dtype: torch.dtype
) -> Encoder:
    """An encoder whose initial weights depend on `seed` alone (drawn in float32, whatever `dtype`)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch_seed(seed, "init"):
            encoder = Encoder(config, num_features, num_classes, heads)
    finally:
        torch.set_default_dtype(before)
    return encoder.to(dtype)
