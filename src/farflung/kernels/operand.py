"""The left factor of a linear map: a dense tensor, a sparse matrix, or a product with a graph not formed yet.

A layer computes `A h W`. Which product to form first depends on the widths, on whether `h` is sparse and on whether
dropout must act on `A h`: that choice is made here, once, for every layer and method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, overload

import numpy as np
import torch

from farflung.kernels.dropout import drop, dropout
from farflung.kernels.sparse import Pattern, SparseMatrix

DENSE_FROM = 0.25
"""A sparse product with at least this share of entries is kept dense: a dense multiplication is then faster."""


@dataclass(frozen=True, eq=False)
class Product:
    """`adjacency @ factor`, not formed: `adjacency` [R, K], `factor` [K, F]."""

    adjacency: SparseMatrix
    factor: torch.Tensor | SparseMatrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.adjacency.shape[0], int(self.factor.shape[1])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """In-edges of R destinations and the rows of their K sources, not aggregated: where weights depend on the rows."""

    edges: SparseMatrix
    """[R, K]."""
    factor: torch.Tensor | SparseMatrix
    """[K, F]."""
    own: np.ndarray
    """int64 [R]: which of the sources each destination is."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.edges.shape[0], int(self.factor.shape[1])


Operand: TypeAlias = torch.Tensor | SparseMatrix | Product | Neighbours


@overload
def formed(operand: torch.Tensor | SparseMatrix | Product) -> torch.Tensor | SparseMatrix: ...
@overload
def formed(operand: Operand) -> torch.Tensor | SparseMatrix | Neighbours: ...
def formed(operand: Operand) -> torch.Tensor | SparseMatrix | Neighbours:
    """The operand as a plain factor: products are multiplied out, and what is sparse stays so while that is faster.

    Neighbours cannot be formed without weights; the rows of their sources are.
    """
    if isinstance(operand, torch.Tensor):
        return operand
    if isinstance(operand, Neighbours):
        return Neighbours(operand.edges, formed(operand.factor), operand.own)
    if isinstance(operand, Product):
        if isinstance(operand.factor, torch.Tensor):
            return operand.adjacency @ operand.factor
        operand = _product(operand.adjacency, operand.factor)
    return torch.from_numpy(operand.to_scipy().toarray()) if operand.density >= DENSE_FROM else operand


def _product(left: SparseMatrix, right: SparseMatrix) -> SparseMatrix:
    product = left.to_scipy() @ right.to_scipy()
    product.sort_indices()
    return SparseMatrix.from_scipy(product, right.values.dtype)


def dropped(operand: Operand, share: float, key: int | None) -> Operand:
    """The operand with dropout on its entries. `key` None (evaluation) or `share` 0: the operand itself.

    Dropout acts on the product, so an unformed one is formed; on a sparse matrix it acts on the stored entries
    (a dropped zero is a zero), and of neighbours on the sources' rows.
    """
    if key is None or share == 0:
        return operand
    operand = formed(operand)
    if isinstance(operand, Neighbours):
        factor = dropped(operand.factor, share, key)
        assert isinstance(factor, torch.Tensor | SparseMatrix)
        return Neighbours(operand.edges, factor, operand.own)
    if isinstance(operand, SparseMatrix):
        return SparseMatrix(operand.pattern, drop(operand.values, share, key))
    return dropout(operand, share, key)


def times(operand: Operand, weight: torch.Tensor) -> torch.Tensor:
    """`operand @ weight` with `weight` [F, O]; an unformed product takes the cheaper order. [R, O].

    Raises TypeError for neighbours: only a convolution knows how to aggregate them.
    """
    if isinstance(operand, Neighbours):
        raise TypeError("neighbours are not aggregated yet, nothing can be multiplied")
    if not isinstance(operand, Product):
        return operand @ weight
    narrower = weight.shape[1] < operand.shape[1]
    if narrower or isinstance(operand.factor, SparseMatrix):
        return operand.adjacency @ (operand.factor @ weight)
    return (operand.adjacency @ operand.factor) @ weight


def referenced(operand: Neighbours) -> Neighbours:
    """Neighbours without the sources that are neither in an edge nor a destination."""
    edges, factor, own = operand.edges, operand.factor, operand.own
    indices = edges.pattern.indices
    used = np.zeros(factor.shape[0], dtype=bool)
    used[indices] = True
    used[own] = True
    kept = np.flatnonzero(used)
    if len(kept) == len(used):
        return operand
    place = np.cumsum(used) - 1
    pattern = Pattern(edges.pattern.indptr, place[indices].astype(indices.dtype), len(kept))
    part = rows(factor, kept)
    assert isinstance(part, torch.Tensor | SparseMatrix)
    return Neighbours(SparseMatrix(pattern, edges.values, edges.attr), part, place[own])


def rows(operand: Operand, index: np.ndarray) -> Operand:
    """The rows `index` (int64) of the operand; of neighbours with only those sources that these rows refer to."""
    if isinstance(operand, Product):
        return Product(operand.adjacency.rows(index), operand.factor)
    if isinstance(operand, Neighbours):
        return referenced(Neighbours(operand.edges.rows(index), operand.factor, operand.own[index]))
    if isinstance(operand, SparseMatrix):
        return operand.rows(index)
    return operand[torch.from_numpy(index)]
