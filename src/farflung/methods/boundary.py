"""Which rows of each boundary cross the network in a step of BNS-GCN (Wan et al., arXiv 2203.10983).

Legend for shapes: n inner nodes, h halo nodes, b rows of one boundary.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from farflung.partition import Shard
from farflung.seeding import generator


def drawn_rows(rate: float, count: int) -> int:
    """ceil(rate count) for the rate as it is written: 7 of 100 for 0.07, whose float is a little more."""
    return math.ceil(Fraction(repr(rate)) * count)


class Draw:
    """The rows of one trainer's boundaries and halo that cross in a step, the same for all layers.

    Both ends of a boundary draw from the same seed, without replacement, so no ids are sent.
    """

    def __init__(self, shard: Shard, seed: int, rate: float) -> None:
        """`rate`: share of each boundary (> 0, <= 1); 1: all rows, in every step."""
        self._shard, self._seed, self._rate = shard, seed, rate
        self.peers: list[int] = np.flatnonzero(np.diff(shard.boundary_ptr)).tolist()
        """Who has rows of this trainer in the halo."""
        self.owners: list[int] = np.flatnonzero(np.diff(shard.halo_ptr)).tolist()
        """Whose rows are in the halo."""
        self.everything = rate == 1
        self._step = 0
        self._drawn: dict[tuple[int, int], np.ndarray] = {}
        """Of the step, by sender and receiver."""

    def anew(self, step: int) -> None:
        """Draw for a step."""
        self._step = step
        if not self.everything:
            self._drawn.clear()

    def sent(self, peer: int) -> tuple[np.ndarray, float]:
        """Inner nodes whose rows go to `peer` of `peers`, int64, and how many rows of the boundary each stands for."""
        boundary = self._shard.boundary_for(peer)
        drawn = self._rows(self._shard.part, peer, len(boundary))
        return boundary[drawn], len(boundary) / len(drawn)

    def received(self, owner: int) -> np.ndarray:
        """Places in the halo (0..h-1), ascending, whose rows come from `owner`, int64."""
        place = self._shard.halo_of(owner)
        return place.start + self._rows(owner, self._shard.part, place.stop - place.start)

    @property
    def places(self) -> np.ndarray:
        """Places in the halo, ascending, whose rows come from anybody, int64."""
        return np.concatenate([np.empty(0, np.int64), *(self.received(owner) for owner in self.owners)])

    def slices(self) -> dict[int, slice]:
        """Where among `places` those of each owner lie."""
        found, start = {}, 0
        for owner in self.owners:
            found[owner] = slice(start, start + len(self.received(owner)))
            start = found[owner].stop
        return found

    def _rows(self, sender: int, receiver: int, count: int) -> np.ndarray:
        """Which of a boundary's `count` rows are drawn, ascending, int64."""
        pair = sender, receiver
        if pair not in self._drawn:
            if self.everything:
                drawn = np.arange(count)
            else:
                rng = generator(self._seed, "boundary", self._step, *pair)
                drawn = np.sort(rng.choice(count, drawn_rows(self._rate, count), replace=False, shuffle=False))
            self._drawn[pair] = drawn
        return self._drawn[pair]
