"""Graph convolutions in two halves: an aggregation without parameters, and a map of what it gathered.

`combine(aggregate(A, h))` is the convolution. The halves are apart because lazy training freezes `h`: it aggregates
once per layer and then trains `combine` alone.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from farflung.kernels import Operand, Product, SparseMatrix, dropped, formed, rows, times
from farflung.nn.adjacency import Aggregation
from farflung.seeding import derive

Gathered = tuple[Operand, ...]
"""What a convolution has gathered for its R rows: one operand [R, F] per weight matrix."""

Factor: TypeAlias = torch.Tensor | SparseMatrix
"""Rows that a convolution gathers from, [K, F]."""


class Conv(nn.Module):
    """A convolution `in_features -> out_features`; subclasses say what they gather."""

    aggregation: Aggregation = "none"
    num_operands: int = 1
    reads_own: bool = True
    """Whether a destination's own row is an operand beside what its in-edges bring."""
    linear: bool = True
    """Whether what its in-edges bring is a product with the aggregation matrix."""

    def __init__(self, in_features: int, out_features: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.dropout = dropout
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(in_features, out_features)) for _ in range(self.num_operands)
        )
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset_parameters()

    @property
    def multiplies_first(self) -> bool:
        """Whether it is better to multiply all sources' rows by the weights before anything is gathered from them."""
        return self.aggregation == "none" or self.out_features < self.in_features

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(in_features), as `torch.nn.Linear` (bias included)."""
        bound = 1 / math.sqrt(max(1, self.weights[0].shape[0]))
        for parameter in [*self.weights, self.bias]:
            nn.init.uniform_(parameter, -bound, bound)

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        """Gather for the R rows of `matrix` [R, K] from `h` [K, F]; no parameter takes part.

        `own`: the destinations' own rows [R, F]; None: they are the first R rows of `h`.
        """
        raise NotImplementedError

    def combine(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """Map what was gathered to [R, out]. `key` seeds dropout on it; None: no dropout."""
        out: torch.Tensor = self.bias
        weights = list(self.weights)
        if len(gathered) < len(weights):  # operands side by side, see `fixed`
            weights = [torch.cat(weights)]
        for place, (operand, weight) in enumerate(zip(gathered, weights, strict=True)):
            operand = dropped(operand, self.dropout, None if key is None else derive(key, "operand", place))
            out = (
                torch.addmm(out, operand, weight) if isinstance(operand, torch.Tensor) else out + times(operand, weight)
            )
        return out


class GCNConv(Conv):
    """`D^-1/2 (A + I) D^-1/2 h W + b` (Kipf and Welling, arXiv 1609.02907)."""

    aggregation: Aggregation = "gcn"
    reads_own = False

    def reset_parameters(self) -> None:
        """Glorot weights, zero bias."""
        nn.init.xavier_uniform_(self.weights[0])
        nn.init.zeros_(self.bias)

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        assert matrix is not None
        return (Product(matrix, h),)


class SAGEConv(Conv):
    """`h_i W_1 + mean_j h_j W_2 + b` (GraphSAGE with the mean aggregator, arXiv 1706.02216)."""

    aggregation: Aggregation = "mean"
    num_operands = 2

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        assert matrix is not None
        return (first_rows(h, matrix.shape[0]) if own is None else own, Product(matrix, h))

    def combine(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        own, mean = gathered[0], gathered[-1]
        root, neighbour = self.weights
        narrower = root.shape[1] < root.shape[0]
        if not (narrower and isinstance(mean, Product) and mean.factor is own) or (key is not None and self.dropout):
            return super().combine(gathered, key)
        both = times(own, torch.cat([root, neighbour], dim=1))  # one pass over h instead of two
        out = root.shape[1]
        return both[:, :out] + self.bias + mean.adjacency @ both[:, out:]


class DenseConv(Conv):
    """`h_i W + b`: no neighbours. The layer of an MLP."""

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        if own is not None:
            return (own,)
        return (h if matrix is None else first_rows(h, matrix.shape[0]),)


def first_rows(h: Factor, count: int) -> Factor:
    """The first `count` rows of `h`: the destinations among the sources."""
    if h.shape[0] == count:
        return h
    if isinstance(h, torch.Tensor):
        return h[:count]
    return SparseMatrix.from_scipy(h.to_scipy()[:count], h.values.dtype)


def fixed(gathered: Gathered) -> Gathered:
    """What was gathered from constant inputs, in the form that is fastest to multiply again and again.

    Products are formed, and dense operands stand side by side in one: a single multiplication then serves them all.
    """
    plain = tuple(formed(operand) for operand in gathered)
    if len(plain) > 1 and all(isinstance(operand, torch.Tensor) for operand in plain):
        return (torch.cat([operand for operand in plain if isinstance(operand, torch.Tensor)], dim=1),)
    return plain


def select(gathered: Gathered, index: np.ndarray) -> Gathered:
    """The rows `index` (int64) of what was gathered."""
    return tuple(rows(operand, index) for operand in gathered)


CONVS: dict[str, type[Conv]] = {"gcn": GCNConv, "sage": SAGEConv, "mlp": DenseConv}
