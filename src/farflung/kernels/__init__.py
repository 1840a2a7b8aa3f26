"""The few hot loops: sparse times dense with a cached transpose, attention, dropout without a mask, the order of
products."""

from farflung.kernels.attention import attend
from farflung.kernels.dropout import dropout
from farflung.kernels.operand import Neighbours, Operand, Product, dropped, formed, rows, times
from farflung.kernels.sparse import Pattern, SparseMatrix

__all__ = [
    "Neighbours",
    "Operand",
    "Pattern",
    "Product",
    "SparseMatrix",
    "attend",
    "dropout",
    "dropped",
    "formed",
    "rows",
    "times",
]
