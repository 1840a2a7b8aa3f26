"""Graph attention (Velickovic et al., arXiv 1710.10903), forward and backward, equal to the bit for any thread count.

For each destination a softmax over its in-edges of `leaky_relu(s_i + t_j)`, and the sum of the sources' rows with
these weights, head by head. Every sum is made by one thread in the order of the entries. The backward pass goes over
the cached transpose once, and reads a destination's gradient for each entry.
What flows back to a destination's own score is split off in the forward pass, as the part of the sum in which the
slope is the low one: with `low` that part of the output, and `low_share` the sum of its weights, the gradient of s_i is
`(SLOPE - 1) (<g, low> - low_share <g, out>)`.

Legend for shapes: R destinations, K sources, z entries, H heads, D width of a head.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange

from farflung.kernels.sparse import Pattern

SLOPE = 0.2
"""Of the leaky ReLU below zero."""


def attend(product: torch.Tensor, pattern: Pattern, own: np.ndarray, heads: int, average: bool) -> torch.Tensor:
    """Each destination's sum of its sources' rows by attention; differentiable in `product`.

    Args:
        product: [K, H D + 2 H]: a source's row, head by head, its scores t as a source, its scores s as a destination.
        pattern: the in-edges, [R, K]. An edge that is there twice counts twice; a row without any gives zeros.
        own: int64 [R], which of the sources each destination is.
        heads: H >= 1.
        average: whether the heads' outputs are averaged.

    Returns:
        [R, D] where heads are averaged, else side by side, [R, H D].
    """
    return _Attend.apply(product, pattern, own, heads, average)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, product, pattern, own, heads, average):  # type: ignore[no-untyped-def]
        training = ctx.needs_input_grad[0]
        values = product.detach().contiguous().numpy()
        num_rows, columns = pattern.shape[0], values.shape[1] - 2 * heads
        scores, first = values, columns
        if len(pattern.indices) >= len(values):  # worth a copy that stays in cache
            scores, first = np.ascontiguousarray(values[:, columns:]), 0
        out = np.empty((num_rows, columns), values.dtype)
        sums = np.empty((num_rows, 2 * heads), values.dtype)
        low = np.empty((num_rows if training else 0, columns), values.dtype)
        weights = np.empty((len(pattern.indices) if training else 0, heads), values.dtype)
        _forward(pattern.blocks, pattern.indptr, pattern.indices, own, values, scores, first, out, low, sums, weights)
        result = torch.from_numpy(out)
        if training:
            ctx.pattern, ctx.own, ctx.heads, ctx.average = pattern, own, heads, average
            ctx.arrays = low, sums, weights
            ctx.save_for_backward(product, result)
        return result.view(num_rows, heads, columns // heads).mean(dim=1) if average else result

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        product, out = ctx.saved_tensors
        low, sums, weights = ctx.arrays
        heads, columns = ctx.heads, out.shape[1]
        grad = (grad / heads if ctx.average else grad).contiguous().numpy()
        values = product.detach().contiguous().numpy()
        facts = np.empty((len(ctx.own), 3 * heads), values.dtype)
        own_grad = np.empty((len(ctx.own), heads), values.dtype)
        _facts(grad, out.numpy(), low, sums, values, ctx.own, facts, own_grad)
        back, places = ctx.pattern.transpose
        result = np.empty_like(values)
        _backward(back.blocks, back.indptr, back.indices, places, grad, values, facts, weights, heads, result)
        _scatter(own_grad, ctx.own, result[:, columns + heads :])
        return torch.from_numpy(result), None, None, None, None


@njit(parallel=True, cache=True)
def _forward(blocks, indptr, indices, own, values, scores, first, out, low, sums, weights):  # type: ignore[no-untyped-def]
    """Fill `out`, `low` [R, H D] and `sums` [R, 2 H]: the weights' sum and the share of those with the low slope.

    `scores`: t in the columns from `first` on, then s. `weights` [z, H]: the numerators of the softmax. Empty `low` and
    `weights` are left out.
    """
    heads = sums.shape[1] // 2
    width = out.shape[1] // heads
    slope, zero, one = out.dtype.type(SLOPE), out.dtype.type(0), out.dtype.type(1)
    for b in prange(len(blocks) - 1):
        rows = np.empty((2 * heads, width), out.dtype)
        top, total = np.empty(heads, out.dtype), np.empty((2, heads), out.dtype)
        for i in range(blocks[b], blocks[b + 1]):
            mine = scores[own[i], first + heads : first + 2 * heads]
            rows[:] = zero
            total[:] = zero
            top[:] = -np.inf
            for e in range(indptr[i], indptr[i + 1]):
                other = scores[indices[e], first : first + heads]
                for h in range(heads):
                    top[h] = max(top[h], other[h])
            for h in range(heads):
                x = mine[h] + top[h]
                top[h] = x if x > 0 else x * slope
            for e in range(indptr[i], indptr[i + 1]):
                other, row = scores[indices[e], first : first + heads], values[indices[e]]
                for h in range(heads):
                    x = mine[h] + other[h]
                    kind = 0 if x > 0 else 1
                    weight = math.exp((x if x > 0 else x * slope) - top[h])
                    total[kind, h] += weight
                    if len(weights):
                        weights[e, h] = weight
                    part, head = rows[kind * heads + h], row[h * width : (h + 1) * width]
                    for d in range(width):
                        part[d] += weight * head[d]
            for h in range(heads):
                whole = total[0, h] + total[1, h]
                scale = one / whole if whole != 0 else zero
                sums[i, h] = scale
                sums[i, heads + h] = total[1, h] * scale
                head = out[i, h * width : (h + 1) * width]
                for d in range(width):
                    head[d] = (rows[h, d] + rows[heads + h, d]) * scale
                if len(low):
                    head = low[i, h * width : (h + 1) * width]
                    for d in range(width):
                        head[d] = rows[heads + h, d] * scale


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract"})
def _facts(grad, out, low, sums, values, own, facts, own_grad):  # type: ignore[no-untyped-def]
    """Fill `facts` [R, 3 H], what the entries of a destination share: s_i, the softmax's scale, <g, out>; and the
    gradient of s_i, `own_grad` [R, H]. `grad` [R, H D], or [R, D]: one for all heads."""
    columns, heads = out.shape[1], own_grad.shape[1]
    width = columns // heads
    shared = 0 if grad.shape[1] < columns else 1
    drop = out.dtype.type(SLOPE - 1)
    for i in prange(len(own)):
        for h in range(heads):
            start = h * width
            g = grad[i, start * shared : start * shared + width]
            all_of_it, low_of_it = out[i, start : start + width], low[i, start : start + width]
            whole, part = out.dtype.type(0), out.dtype.type(0)
            for d in range(width):
                whole += g[d] * all_of_it[d]
                part += g[d] * low_of_it[d]
            facts[i, h] = values[own[i], columns + heads + h]
            facts[i, heads + h] = sums[i, h]
            facts[i, 2 * heads + h] = whole
            own_grad[i, h] = drop * (part - whole * sums[i, heads + h])


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract"})
def _backward(blocks, indptr, indices, places, grad, values, facts, weights, heads, result):  # type: ignore[no-untyped-def]
    """Fill `result` [K, H D + 2 H] but for the last H columns, which are set to zero, over the transposed pattern."""
    columns = values.shape[1] - 2 * heads
    width = columns // heads
    shared = 0 if grad.shape[1] < columns else 1
    slope, zero = values.dtype.type(SLOPE), values.dtype.type(0)
    for b in prange(len(blocks) - 1):
        for j in range(blocks[b], blocks[b + 1]):
            row, acc = values[j], result[j]
            acc[:] = zero
            for e in range(indptr[j], indptr[j + 1]):
                i = indices[e]
                fact, weight, gradient = facts[i], weights[places[e]], grad[i]
                for h in range(heads):
                    share = weight[h] * fact[heads + h]
                    start, dot = h * width, zero
                    g = gradient[start * shared : start * shared + width]
                    head, part = row[start : start + width], acc[start : start + width]
                    for d in range(width):
                        dot += g[d] * head[d]
                        part[d] += share * g[d]
                    change = share * (dot - fact[2 * heads + h])
                    acc[columns + h] += change if fact[h] + row[columns + h] > 0 else change * slope


@njit(cache=True)
def _scatter(rows, places, out):  # type: ignore[no-untyped-def]
    """Add each of `rows` [R, H] to the row of `out` that `places` names."""
    for i in range(len(places)):
        for h in range(rows.shape[1]):
            out[places[i], h] += rows[i, h]


def warm_up(dtype: torch.dtype) -> None:
    """Compile what training needs, so that no clock counts it."""
    product = torch.zeros(1, 3, dtype=dtype, requires_grad=True)
    edges = Pattern(np.array([0, 1]), np.zeros(1, np.int32), 1)
    attend(product, edges, np.zeros(1, np.int64), 1, False).sum().backward()
