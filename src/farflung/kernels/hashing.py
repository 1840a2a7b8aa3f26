"""Random bits as a function of what they are for: no generator state, equal for any number of threads."""

from __future__ import annotations

from numba import njit, uint64


@njit(inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """64 bits that depend on all bits of uint64 `x`: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))
