"""Graph attention as a convolution of an encoder."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from farflung.kernels import Neighbours, SparseMatrix, attend, dropped
from farflung.nn.adjacency import Aggregation
from farflung.nn.convs import Conv, Factor, Gathered
from farflung.seeding import derive


class GATConv(Conv):
    """Graph attention (Velickovic et al., arXiv 1710.10903): a node attends to its in-neighbours and to itself.

    With H heads of width D, for each head `sum_j a_ij h_j W` where `a_i` is the softmax over the in-edges of i, a loop
    among them, of `leaky_relu(<h_i W, u> + <h_j W, v>, 0.2)`. The heads stand side by side or are averaged; a bias is
    added. Edge weights have no part in it; an edge that is there twice counts twice. Dropout acts on the sources' rows.
    """

    aggregation: Aggregation = "attention"
    reads_own = False
    linear = False

    def __init__(
        self, in_features: int, out_features: int, dropout: float = 0.0, heads: int = 1, average: bool = False
    ) -> None:
        """`heads` of width `out_features` where they are averaged, else of an equal share of it.

        Raises ValueError where `out_features` cannot be shared.
        """
        super().__init__(in_features, out_features, dropout)
        if not average and out_features % heads:
            raise ValueError(f"{heads} heads cannot share a width of {out_features}")
        width = out_features if average else out_features // heads
        self.heads, self.average = heads, average
        self.weights = nn.ParameterList([nn.Parameter(torch.empty(in_features, heads * width))])
        self.source = nn.Parameter(torch.empty(heads, width))
        """v, of each head."""
        self.destination = nn.Parameter(torch.empty(heads, width))
        """u, of each head."""
        self.reset_parameters()

    @property
    def multiplies_first(self) -> bool:
        """Always: attention is among products."""
        return True

    def reset_parameters(self) -> None:
        """Glorot weights and attention vectors, zero bias."""
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        assert matrix is not None
        pattern = matrix.pattern
        return (
            Neighbours(matrix, h, pattern.indices[pattern.indptr[:-1]].astype(np.int64)),
        )  # a row's first: its loop

    def combine(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        (operand,) = gathered
        operand = dropped(operand, self.dropout, None if key is None else derive(key, "operand", 0))
        assert isinstance(operand, Neighbours)
        product = operand.factor @ self._weight_and_scores()
        return attend(product, operand.edges.pattern, operand.own, self.heads, self.average) + self.bias

    def _weight_and_scores(self) -> torch.Tensor:
        """[W, W v, W u], [F, H D + 2 H]: a row's product with it is all that the row is needed for."""
        weight = self.weights[0]
        by_head = weight.view(self.in_features, self.heads, -1)
        return torch.cat([weight, (by_head * self.source).sum(2), (by_head * self.destination).sum(2)], dim=1)
