"""Neighbour sampling for mini-batches (GraphSAGE, arXiv 1706.02216), equal for any number of threads.

Every draw is a hash of (key, hop, destination, number of the draw): no generator state, and neither the order of the
seeds nor the thread count changes a sample, nor who holds which rows of the graph.

Legend for shapes: N nodes, E edges, h hidden edges, R destinations, K >= R sources of a block (the first R are the
destinations), e its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit, prange, uint64

from farflung.kernels.hashing import mix
from farflung.kernels.sparse import Pattern, SparseMatrix
from farflung.seeding import derive

_ALL = np.int64(-1)
_STAMPS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Block:
    """The edges that one layer aggregates over: a bipartite graph in CSR by destination."""

    nodes: np.ndarray
    """int64 [K], the sources' ids in the sampled graph, each once."""
    indptr: np.ndarray
    """int64 [R + 1]."""
    indices: np.ndarray
    """int32 [e], the edges' sources as positions in `nodes`."""
    edges: np.ndarray
    """int64 [e], positions of the edges in the sampled graph's `indices`, ascending in each row but for draws with
    replacement."""

    @property
    def num_destinations(self) -> int:
        return len(self.indptr) - 1


class InEdges:
    """Draws in-edges of nodes, a hop at a time, from one graph, some of whose edges may be hidden for a while.

    Attributes:
        indptr, indices: CSR by destination.
        hidden: int64 [h], positions in `indices` of the hidden edges, ascending.
        hidden_in: int32 [N], number of hidden in-edges of each node.
    """

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, names: np.ndarray | None = None) -> None:
        """CSR by destination: `indptr` int64 [N + 1], `indices` int32 or int64 [E], ascending in each row.

        `names` int64 [N]: what is hashed for each destination; None: its own number. So who holds some rows of a
        graph, and names them as it does, draws for them what would be drawn from the whole of it. (Sources have
        whatever ids stand in `indices`.)

        Raises ValueError where N, or an id, is 2^31 or more.
        """
        self.indptr = np.ascontiguousarray(indptr, dtype=np.int64)
        self.indices = np.ascontiguousarray(indices)
        self.names = np.empty(0, dtype=np.int64) if names is None else np.ascontiguousarray(names, dtype=np.int64)
        num_nodes = len(self.indptr) - 1
        largest = max(num_nodes, int(self.names.max(initial=-1)) + 1)
        if largest >= _STAMPS:
            raise ValueError(f"{largest} nodes are too many to sample from: the limit is {_STAMPS - 1}")
        self.hidden = np.empty(0, dtype=np.int64)
        self.hidden_in = np.zeros(num_nodes, dtype=np.int32)
        self._hidden_from = np.zeros(num_nodes, dtype=np.int32)
        self._bereft = np.empty(0, dtype=np.int64)

    def hide(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """Take the edges source -> destination, all copies of each, out of the graph until the next call.

        `sources`, `destinations` int64 [k]; pairs that are no edge are ignored, and k = 0 brings every edge back.
        Raises ValueError where a destination is no node.
        """
        sources, destinations = np.asarray(sources, dtype=np.int64), np.asarray(destinations, dtype=np.int64)
        self._check(destinations)
        self.hidden_in[self._bereft] = 0
        first, copies = _find(self.indptr, self.indices, sources, destinations)
        found = np.flatnonzero(copies)
        first, place = np.unique(first[found], return_index=True)  # ascending, thus by destination
        copies, self._bereft = copies[found[place]], destinations[found[place]]
        self.hidden = _hide(first, copies, self._bereft, self.hidden_in, self._hidden_from)

    def visible(self, nodes: np.ndarray) -> np.ndarray:
        """How many in-edges of each of `nodes` are not hidden, int64."""
        return self.indptr[nodes + 1] - self.indptr[nodes] - self.hidden_in[nodes]

    def draw(
        self, nodes: np.ndarray, fanout: int | None, key: int, replace: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """In-edges of `nodes` [R]: indptr int64 [R + 1], positions in `indices` int64 [e], the sources int32 [e].

        `nodes` int64, in range; `key`: names the draw of one hop, see `hop_key`; for the rest see
        `NeighbourSampler.blocks`.
        """
        return _sample(
            self.indptr,
            self.indices,
            self.hidden,
            self.hidden_in,
            self._hidden_from,
            nodes,
            self.names,
            _ALL if fanout is None else np.int64(fanout),
            np.uint64(key),
            replace,
        )

    def _check(self, nodes: np.ndarray) -> None:
        _check_nodes(nodes, len(self.hidden_in))


def hop_key(key: int, hop: int) -> int:
    """What names the draws of a hop in the sample named by `key`; hop 0 is the one next to the seeds."""
    return derive(key, "hop", hop)


class Places:
    """Numbers nodes from 0 on as they are first seen, with a table that need not be cleared in between.

    Attributes:
        nodes: int64 [K], those that have a number, in its order.
    """

    def __init__(self, num_nodes: int) -> None:
        """`num_nodes`: nodes are 0 .. N - 1, N below 2^31 - 1."""
        self.nodes = np.empty(0, dtype=np.int64)
        # A node's number is its label less `_base`; lower labels are of earlier turns.
        self._label = np.full(num_nodes, -1, dtype=np.int32)
        self._base = self._next = 0

    def __len__(self) -> int:
        """N."""
        return len(self._label)

    def begin(self, nodes: np.ndarray) -> None:
        """Begin anew with `nodes`, int64 [R]. Raises ValueError where they repeat or are no nodes."""
        _check_nodes(nodes, len(self._label))
        if self._next + len(self._label) > _STAMPS:  # no room for all N below 2^31
            self._label.fill(-1)
            self._next = 0
        self._base = self._next
        self._next += len(nodes)
        if not _label(nodes, self._label, self._base):
            raise ValueError("seeds must be unique")
        self.nodes = nodes

    def number(self, sources: np.ndarray) -> None:
        """Replace ids by numbers in `sources` (int32 [e], nodes), in place; those without one get the next."""
        known = len(self.nodes)
        room = np.empty(min(len(self._label), known + len(sources)), dtype=np.int64)
        room[:known] = self.nodes
        self._next = self._base + len(room)
        count = _relabel(sources, self._label, self._base, room, known)
        self.nodes = room[:count]
        self._next = self._base + count


class NeighbourSampler(InEdges):
    """Draws neighbourhoods from one graph, some of whose edges may be hidden for a while."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray) -> None:
        """As `InEdges`; sources and destinations are numbered alike."""
        super().__init__(indptr, indices)
        self._places = Places(len(self.hidden_in))

    def hide(self, sources: np.ndarray, destinations: np.ndarray) -> None:
        """As `InEdges.hide`; a source too must be a node."""
        self._check(np.asarray(sources))
        super().hide(sources, destinations)

    def blocks(self, seeds: np.ndarray, fanouts: Sequence[int | None], key: int, replace: bool = False) -> list[Block]:
        """The sampled neighbourhood of `seeds`, a block per layer, the first layer's first.

        The destinations of the last block are the seeds; those of any other block are the sources of the next one.

        Args:
            seeds: int64 [R], unique.
            fanouts: in-edges to draw for each destination of a layer, the first layer's first; None: all of them.
            key: names the draw. One key gives one sample.
            replace: without replacement, a node with no more in-edges than the fan-out gives all of them; with
                replacement, a node with any in-edge gives as many as the fan-out.

        Raises:
            ValueError: where seeds repeat or are no nodes, or a fan-out is below 1.
        """
        if any(fanout is not None and fanout < 1 for fanout in fanouts):
            raise ValueError(f"fan-outs must be 1 or more, found {list(fanouts)}")
        places, found = self._places, list[Block]()
        places.begin(np.ascontiguousarray(seeds, dtype=np.int64))
        for hop, fanout in enumerate(reversed(fanouts)):
            indptr, edges, sources = self.draw(places.nodes, fanout, hop_key(key, hop), replace)
            places.number(sources)
            found.append(Block(places.nodes, indptr, sources, edges))
        return found[::-1]


def _check_nodes(nodes: np.ndarray, count: int) -> None:
    if len(nodes) and not 0 <= nodes.min() <= nodes.max() < count:
        raise ValueError(f"nodes must be 0 to {count - 1}, found {nodes.min()} to {nodes.max()}")


@njit(inline="always")
def _below(stream, draw, limit):  # type: ignore[no-untyped-def]
    """Draw number `draw` of a stream, uniform over 0 .. limit - 1."""
    bits = mix(stream + uint64(draw + 1) * uint64(0x9E3779B97F4A7C15)) >> uint64(11)
    return np.int64(np.float64(np.int64(bits)) * 2.0**-53 * np.float64(limit))


@njit
def _choose(out, at, degree, count, stream):  # type: ignore[no-untyped-def]
    """Write a uniform subset of `count` numbers below `degree`, ascending, to `out[at : at + count]`."""
    if count * count >= 8 * degree:
        # Selection sampling (Knuth, TAOCP 3.4.2, algorithm S): a draw per number below `degree`.
        taken, i = 0, 0
        while taken < count:
            out[at + taken] = i
            taken += _below(stream, i, degree - i) < count - taken
            i += 1
        return
    # Floyd (Bentley and Floyd, CACM 30(9), 1987): a draw per number taken, each put in its place.
    for j in range(count):
        last = degree - count + j
        pick = _below(stream, j, last + 1)
        place = at + j
        while place > at and out[place - 1] > pick:
            place -= 1
        if place > at and out[place - 1] == pick:
            out[at + j] = last
            continue
        for i in range(at + j, place, -1):
            out[i] = out[i - 1]
        out[place] = pick


@njit
def _visible(number, start, hidden, first, count):  # type: ignore[no-untyped-def]
    """Position of visible edge `number` of the row that begins at `start`: past the hidden edges before it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if hidden[first + middle] - start - middle <= number:
            low = middle + 1
        else:
            high = middle
    return start + number + low


@njit(parallel=True, cache=True)
def _sample(indptr, indices, hidden, hidden_in, hidden_from, nodes, names, fanout, key, replace):  # type: ignore[no-untyped-def]
    """In-edges of `nodes` [R]: indptr [R + 1], positions in `indices` [e], and the sources themselves, int32 [e]."""
    num_rows = len(nodes)
    any_hidden = len(hidden) > 0
    starts = np.empty(num_rows, dtype=np.int64)
    degrees = np.empty(num_rows, dtype=np.int64)
    out_indptr = np.empty(num_rows + 1, dtype=np.int64)
    out_indptr[0] = 0
    for i in prange(num_rows):
        v = nodes[i]
        starts[i] = indptr[v]
        degree = indptr[v + 1] - indptr[v]
        if any_hidden:
            degree -= hidden_in[v]
        degrees[i] = degree
        count = degree
        if fanout >= 0 and (degree > fanout or (replace and degree > 0)):
            count = fanout
        out_indptr[i + 1] = count
    for i in range(num_rows):
        out_indptr[i + 1] += out_indptr[i]
    edges = np.empty(out_indptr[num_rows], dtype=np.int64)
    for i in prange(num_rows):
        at, count, degree = out_indptr[i], out_indptr[i + 1] - out_indptr[i], degrees[i]
        v = nodes[i]
        name = names[v] if len(names) > 0 else v
        stream = mix(key ^ mix(uint64(name) + uint64(0x9E3779B97F4A7C15)))
        if replace and fanout >= 0:
            for j in range(count):
                edges[at + j] = _below(stream, j, degree)
        elif count < degree:
            _choose(edges, at, degree, count, stream)
        else:
            for j in range(count):
                edges[at + j] = j
        if any_hidden and hidden_in[v] > 0:
            for j in range(count):
                edges[at + j] = _visible(edges[at + j], starts[i], hidden, hidden_from[v], hidden_in[v])
        else:
            for j in range(count):
                edges[at + j] += starts[i]
    sources = np.empty(len(edges), dtype=np.int32)
    for e in prange(len(edges)):
        sources[e] = indices[edges[e]]
    return out_indptr, edges, sources


@njit(cache=True)
def _label(nodes, label, stamp):  # type: ignore[no-untyped-def]
    """Label `nodes` by their places; False where one repeats."""
    for i in range(len(nodes)):
        if label[nodes[i]] >= stamp:
            return False
        label[nodes[i]] = stamp + i
    return True


@njit(cache=True)
def _relabel(sources, label, stamp, nodes, count):  # type: ignore[no-untyped-def]
    """Replace ids by places in `nodes`, whose first `count` are known; new ones follow as they are first seen."""
    for e in range(len(sources)):
        v = sources[e]
        if label[v] < stamp:
            label[v] = stamp + count
            nodes[count] = v
            count += 1
        sources[e] = label[v] - stamp
    return count


@njit(parallel=True, cache=True)
def _find(indptr, indices, sources, destinations):  # type: ignore[no-untyped-def]
    """For each pair the position of its first copy in `indices`, and how many copies follow one another; int64 [k]."""
    first = np.empty(len(sources), dtype=np.int64)
    copies = np.empty(len(sources), dtype=np.int64)
    for i in prange(len(sources)):
        low, end = indptr[destinations[i]], indptr[destinations[i] + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if indices[middle] < sources[i]:
                low = middle + 1
            else:
                high = middle
        first[i] = low
        while high < end and indices[high] == sources[i]:
            high += 1
        copies[i] = high - low
    return first, copies


@njit(cache=True)
def _hide(first, copies, destinations, hidden_in, hidden_from):  # type: ignore[no-untyped-def]
    """Note ranges of hidden edges, ascending, at their destinations; the positions of all of them, int64 [h]."""
    hidden = np.empty(copies.sum(), dtype=np.int64)
    at = 0
    for i in range(len(first)):
        v = destinations[i]
        if hidden_in[v] == 0:
            hidden_from[v] = at
        hidden_in[v] += copies[i]
        for j in range(copies[i]):
            hidden[at] = first[i] + j
            at += 1
    return hidden


def take_rows(matrix: SparseMatrix, index: np.ndarray) -> SparseMatrix:
    """The rows `index` (int64 [k], in range) of a sparse matrix, in that order: `matrix.rows` at the cost of k rows."""
    pattern = matrix.pattern
    indptr, indices, values = _take_rows(pattern.indptr, pattern.indices, matrix.values, index)
    return SparseMatrix(Pattern(indptr, indices, matrix.shape[1]), values)


@njit(parallel=True, cache=True)
def _take_rows(indptr, indices, values, index):  # type: ignore[no-untyped-def]
    out_indptr = np.empty(len(index) + 1, dtype=np.int64)
    out_indptr[0] = 0
    for i in range(len(index)):
        out_indptr[i + 1] = out_indptr[i] + indptr[index[i] + 1] - indptr[index[i]]
    out_indices = np.empty(out_indptr[-1], dtype=indices.dtype)
    out_values = np.empty(out_indptr[-1], dtype=values.dtype)
    for i in prange(len(index)):
        shift = indptr[index[i]] - out_indptr[i]
        for e in range(out_indptr[i], out_indptr[i + 1]):
            out_indices[e] = indices[e + shift]
            out_values[e] = values[e + shift]
    return out_indptr, out_indices, out_values
