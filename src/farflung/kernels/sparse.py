"""Sparse matrix times dense matrix, forward and backward, equal to the bit for any number of threads.

Each row of a product is summed by one thread in the order of its entries, so neither the thread count nor the
memory layout changes a bit. The backward pass multiplies by the transpose, which is built once and cached.

Legend for shapes: R rows, K columns, z stored entries, F width of the dense factor.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numba import njit, prange

_BLOCKS = 256


@njit(parallel=True, cache=True)
def _spmm(blocks, indptr, indices, values, dense, out):  # type: ignore[no-untyped-def]
    width = dense.shape[1]
    for b in prange(len(blocks) - 1):
        for i in range(blocks[b], blocks[b + 1]):
            row = out[i]
            for f in range(width):
                row[f] = 0
            for e in range(indptr[i], indptr[i + 1]):
                other = dense[indices[e]]
                value = values[e]
                for f in range(width):
                    row[f] += value * other[f]


@njit(cache=True, nogil=True)
def _entries_of_columns(indptr, indices, place):  # type: ignore[no-untyped-def]
    """Where the rows of a matrix start that keeps the columns with `place` >= 0, int64 [R + 1], and its entries."""
    starts = np.zeros(len(indptr), dtype=np.int64)
    for i in range(len(indptr) - 1):
        count = 0
        for e in range(indptr[i], indptr[i + 1]):
            count += place[indices[e]] >= 0
        starts[i + 1] = starts[i] + count
    entries = np.empty(starts[-1], dtype=np.int64)
    at = 0
    for e in range(indptr[0], indptr[-1]):
        if place[indices[e]] >= 0:
            entries[at] = e
            at += 1
    return starts, entries


class Pattern:
    """Where a sparse matrix has entries: CSR, shared by all matrices that differ only in their values."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, num_columns: int) -> None:
        """`indptr` int64 [R + 1], `indices` int32 or int64 [z] below `num_columns`."""
        self.indptr = np.ascontiguousarray(indptr, dtype=np.int64)
        self.indices = np.ascontiguousarray(indices)
        self.shape = (len(indptr) - 1, int(num_columns))

    @cached_property
    def blocks(self) -> np.ndarray:
        """Row ranges of about equal work, int64: the units that threads take."""
        work = self.indptr + np.arange(len(self.indptr))
        cuts = np.searchsorted(work, np.linspace(0, work[-1], _BLOCKS + 1)[1:-1])
        return np.unique(np.concatenate([[0], cuts, [self.shape[0]]])).astype(np.int64)

    @cached_property
    def transpose(self) -> tuple[Pattern, np.ndarray]:
        """The transposed pattern, and for each of its entries the position of the same entry here, int64 [z]."""
        order = sp.csr_matrix(
            (np.arange(len(self.indices), dtype=np.int64), self.indices, self.indptr), shape=self.shape
        ).tocsc()
        index_type = self.indices.dtype if self.shape[0] < 2**31 else np.dtype(np.int64)
        return Pattern(order.indptr, order.indices.astype(index_type), self.shape[0]), order.data


class SparseMatrix:
    """A constant sparse matrix [R, K]. `matrix @ dense` is differentiable in `dense`."""

    def __init__(
        self, pattern: Pattern, values: np.ndarray, attr: np.ndarray | None = None, first_row: int = 0
    ) -> None:
        """`values` float32 or float64 [z]; `attr` [z, A]: what else there is to each entry, beside the product.

        `first_row`: where the rows are a range of a larger matrix, the number of the first one there.
        """
        self.pattern = pattern
        self.values = np.ascontiguousarray(values)
        self.attr = attr
        self.first_row = first_row

    @classmethod
    def from_scipy(cls, matrix: sp.csr_matrix, dtype: np.dtype | type) -> SparseMatrix:
        """A copy of a SciPy CSR matrix with values of `dtype`."""
        return cls(Pattern(matrix.indptr, matrix.indices, matrix.shape[1]), matrix.data.astype(dtype))

    def to_scipy(self) -> sp.csr_matrix:
        """The same matrix for SciPy; shares memory where SciPy allows."""
        return sp.csr_matrix((self.values, self.pattern.indices, self.pattern.indptr), shape=self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def num_entries(self) -> int:
        return len(self.values)

    @property
    def density(self) -> float:
        """Share of entries that are stored."""
        return self.num_entries / max(1, self.shape[0] * self.shape[1])

    @cached_property
    def transposed(self) -> SparseMatrix:
        pattern, order = self.pattern.transpose
        return SparseMatrix(pattern, self.values[order])

    def rows(self, index: np.ndarray) -> SparseMatrix:
        """The rows `index` (int64) as a matrix of their own."""
        if self.attr is None:
            part = self.to_scipy()[index]
            return SparseMatrix(Pattern(part.indptr, part.indices, self.shape[1]), part.data)
        places = sp.csr_matrix(
            (np.arange(len(self.values)), self.pattern.indices, self.pattern.indptr), shape=self.shape
        )[index]
        pattern = Pattern(places.indptr, places.indices, self.shape[1])
        return SparseMatrix(pattern, self.values[places.data], self.attr[places.data])

    def columns(self, index: np.ndarray) -> SparseMatrix:
        """The columns `index` (int64, ascending) as a matrix of their own; entries of a row keep their order."""
        place = np.full(self.shape[1], -1, dtype=self.pattern.indices.dtype)
        place[index] = np.arange(len(index))
        starts, entries = _entries_of_columns(self.pattern.indptr, self.pattern.indices, place)
        pattern = Pattern(starts, place[self.pattern.indices[entries]], len(index))
        return SparseMatrix(pattern, self.values[entries], None if self.attr is None else self.attr[entries])

    def multiply(self, dense: np.ndarray) -> np.ndarray:
        """Product with a C-contiguous [K, F] of the same dtype, without autograd. [R, F]."""
        out = np.empty((self.shape[0], dense.shape[1]), dtype=dense.dtype)
        _spmm(self.pattern.blocks, self.pattern.indptr, self.pattern.indices, self.values, dense, out)
        return out

    def __matmul__(self, dense: torch.Tensor) -> torch.Tensor:
        if dense.shape[0] != self.shape[1]:
            raise ValueError(f"cannot multiply {self.shape} by {tuple(dense.shape)}")
        return _Multiply.apply(dense, self)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, dense, matrix):  # type: ignore[no-untyped-def]
        ctx.matrix = matrix
        return torch.from_numpy(matrix.multiply(dense.detach().contiguous().numpy()))

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return torch.from_numpy(ctx.matrix.transposed.multiply(grad.contiguous().numpy())), None
