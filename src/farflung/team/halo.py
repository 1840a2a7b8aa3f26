"""Rows of the halo: what a trainer sends to those that have its boundary, and what it has got from owners.

Legend for shapes: n inner nodes, h halo nodes, b boundary rows for one peer, d width of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import scipy.sparse as sp

from farflung.graph import FeatureBlock
from farflung.graph.features import stacked
from farflung.partition import Shard
from farflung.team.rows import Wire, from_arrays, senders, sound, to_arrays


def boundary_arrays(
    kind: str, shard: Shard, rows: FeatureBlock, peers: Iterable[int], wire: Wire = "float32"
) -> dict[str, np.ndarray]:
    """Of `rows` [n, d] those that each of `peers` has in its halo, as `kind/peer`; nothing for who has none.

    `wire`: what the numbers are sent as, see `farflung.team.rows`.
    """
    arrays: dict[str, np.ndarray] = {}
    for peer in peers:
        chosen = shard.boundary_for(peer)
        if len(chosen):
            arrays |= to_arrays(f"{kind}/{peer}", rows[chosen], wire)
    return arrays


class Halo:
    """Rows that owners sent for the halo of one shard, [b, d] each."""

    def __init__(self, shard: Shard, width: int) -> None:
        """`width`: d >= 1."""
        self._shard = shard
        self.width = width
        self.rows: dict[int, FeatureBlock] = {}
        """By owner."""

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Rows named `kind/owner[/...]` as a message brings them; those that are no finite numbers are left out."""
        for owner in senders(arrays):
            rows = from_arrays(arrays, owner, self.width)
            place = self._shard.halo_of(owner)
            if sound(rows, self.width) and rows.shape[0] == place.stop - place.start:
                self.rows[owner] = rows

    @property
    def unheard(self) -> list[int]:
        """Owners of halo nodes whose rows have not come."""
        owners = np.flatnonzero(np.diff(self._shard.halo_ptr)).tolist()
        return [owner for owner in owners if owner not in self.rows]

    def below(self, own: FeatureBlock) -> tuple[FeatureBlock, np.ndarray]:
        """The inner nodes' rows [n, d] and the halo's below them, [n + h, d]; and which of these are there, bool.

        What has not come is zero.
        """
        shard = self._shard
        present = np.ones(shard.num_inner + shard.num_halo, dtype=bool)
        blocks = [own]
        for owner in range(shard.num_parts):
            place = shard.halo_of(owner)
            count = place.stop - place.start
            if count and owner in self.rows:
                blocks.append(_like(own, self.rows[owner]))
            elif count:
                blocks.append(_blank(own, count))
                present[shard.num_inner + place.start : shard.num_inner + place.stop] = False
        return stacked(blocks), present


def _like(own: FeatureBlock, rows: FeatureBlock) -> FeatureBlock:
    """Rows that came in another form or in fewer bytes, as what `own` are: sparse or dense, and no less exact."""
    if isinstance(own, np.ndarray):
        rows = rows if isinstance(rows, np.ndarray) else rows.toarray()
    elif isinstance(rows, np.ndarray):
        rows = sp.csr_matrix(rows)
    return rows.astype(np.result_type(own.dtype, rows.dtype), copy=False)


def _blank(like: FeatureBlock, count: int) -> FeatureBlock:
    """`count` rows of zeros beside `like`."""
    if sp.issparse(like):
        return sp.csr_matrix((count, like.shape[1]), dtype=like.dtype)
    return np.zeros((count, like.shape[1]), dtype=like.dtype)
