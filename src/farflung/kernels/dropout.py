"""Dropout whose mask is a hash of (key, position): no generator state, no stored mask, equal for any thread count."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange, uint32, uint64

_CHUNK = 1 << 15


@njit(inline="always")
def _hash(x):  # type: ignore[no-untyped-def]
    """A 32-bit finaliser with low bias (the constants of Chris Wellons' `lowbias32`)."""
    x = uint32(x ^ (x >> uint32(16)))
    x = uint32(x * uint32(0x7FEB352D))
    x = uint32(x ^ (x >> uint32(15)))
    x = uint32(x * uint32(0x846CA68B))
    return uint32(x ^ (x >> uint32(16)))


@njit(parallel=True, cache=True)
def _drop(values, out, threshold, scale, key):  # type: ignore[no-untyped-def]
    total = len(values)
    zero = out.dtype.type(0)
    for chunk in prange((total + _CHUNK - 1) // _CHUNK):
        # Every chunk has a key of its own, so that positions beyond 2^32 do not repeat the mask.
        mixed = uint64(key) + uint64(chunk) * uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        low = uint32(mixed >> uint64(32))
        start = chunk * _CHUNK
        for i in range(min(_CHUNK, total - start)):
            kept = _hash(uint32(uint32(i) * uint32(0x9E3779B1)) ^ low) >= threshold
            out[start + i] = values[start + i] * scale if kept else zero


def drop(values: np.ndarray, share: float, key: int) -> np.ndarray:
    """`values` (any shape) with a `share` of them zero and the rest scaled by 1 / (1 - share)."""
    out = np.empty(values.shape, dtype=values.dtype)
    threshold = np.uint32(min(round(share * 2**32), 2**32 - 1))
    scale = values.dtype.type(1 / (1 - share))
    _drop(values.reshape(-1), out.reshape(-1), threshold, scale, np.uint64(key))
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, share, key):  # type: ignore[no-untyped-def]
        ctx.share, ctx.key = share, key
        return torch.from_numpy(drop(values.detach().contiguous().numpy(), share, key))

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return torch.from_numpy(drop(grad.contiguous().numpy(), ctx.share, ctx.key)), None, None


def dropout(values: torch.Tensor, share: float, key: int) -> torch.Tensor:
    """Differentiable `drop`: the backward pass draws the same mask from the same `key`."""
    return _Dropout.apply(values, share, key)
