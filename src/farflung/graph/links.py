"""Edges to be predicted: which of a graph's, against which negatives, and what training may see of the graph.

Legend for shapes: N nodes, E directed edges, k positives, K negatives of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange, uint64

from farflung.errors import InputError
from farflung.graph.build import is_symmetric
from farflung.graph.graph import Graph
from farflung.graph.subgraph import with_edges
from farflung.kernels.hashing import mix
from farflung.seeding import derive, generator

NAMES = "random, random:<train>/<val>/<test>, directed:<train>/<val>/<test>, given"
TRAIN, VAL, TEST, UNUSED = range(4)
MAX_NEGATIVES_BYTES = 16 * 10**9
"""Negatives of one set may take so much memory; beyond it a split is refused."""
_DEFAULT_SHARES = "0.9/0.05/0.05"


@dataclass(frozen=True, eq=False)
class Links:
    """Edges to be predicted, each with K negative destinations for its source; in random order."""

    source: np.ndarray
    """int64 [k]."""
    destination: np.ndarray
    """int64 [k]."""
    negatives: np.ndarray
    """int32 [k, K] (int64 where the node count needs it): for each positive, nodes that its source is not joined to."""
    relation: np.ndarray | None
    """int16 [k]: edge types of the positives, or None where the graph has one type."""

    @property
    def count(self) -> int:
        """Positives k."""
        return len(self.source)

    def limited(self, count: int) -> Links:
        """The first `count` positives (all where there are fewer): a random choice, the same at each call."""
        relation = None if self.relation is None else self.relation[:count]
        return Links(self.source[:count], self.destination[:count], self.negatives[:count], relation)


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """Edges to validate and test on, and the graph without them."""

    graph: Graph
    """What training may see: all nodes with all they carry, and the training edges with all they carry."""
    val: Links
    test: Links
    directed: bool
    """False: the graph is symmetric, and its undirected pairs were split."""
    train_count: int
    """Training pairs (where directed: edges); loops are not counted, duplicates once."""


def split_links(graph: Graph, name: str, negatives: int, seed: int) -> LinkSplit:
    """Split a graph's edges by name, and draw `negatives` (K >= 1) wrong destinations for each that is predicted.

    Names:
        `random:0.8/0.1/0.1`: shares of the undirected pairs where the graph is symmetric, else of the directed
            edges; what is left of shares below 1 is in no split. `random`: 0.9/0.05/0.05.
        `directed:0.8/0.1/0.1`: the papers' way: shares of the directed edges even of a symmetric graph, so that
            reverses of test edges stay in training, and scores come out too high.
        `given`: by the edge column `split`: 0 training, 1 validation, 2 test.

    All copies of an edge are in one split, as are the two directions of an undirected pair; where a `given` column
    has them in several, they go to the last of these. Edges of different types between the same nodes stay together
    in `random` and `directed`; in `given`, where edges with types are taken as directed, each is on its own. Loops
    stay in the training graph and are never predicted. An undirected pair is predicted in one direction, drawn at
    random; edges of different types are predicted one by one.

    Negatives are uniform, with replacement, over all nodes but the source and those that it has an edge to in any
    split: in bipartite graphs and knowledge graphs too they may be of any node type. They are a hash of seed and
    ends: equal for any number of threads, and independent of what else is predicted.

    Raises:
        InputError: no edges; an unknown name; `given` without its column; `negatives` < 1; an edge to be predicted
            whose source has edges to all other nodes.
    """
    if negatives < 1:
        raise InputError(f"expected at least 1 negative per edge, found {negatives}")
    kind, _, argument = name.partition(":")
    if kind not in ("random", "directed", "given") or (kind == "given" and argument):
        raise InputError(f"unknown split of edges '{name}'; splits are {NAMES}")
    if not (graph.indices != graph.destinations()).any():
        raise InputError(f"graph '{graph.name}' has no edges to predict: links need edges between different nodes")
    notes = graph.notes
    if kind == "given":
        directed = graph.edge_type is not None or not is_symmetric(graph)
        part, moved = _given(graph, directed)
        if moved:
            notes += (f"{moved} edges whose copies or reverses are in several splits moved to the last of these",)
    else:
        directed = kind == "directed" or not is_symmetric(graph)
        part = _drawn(graph, _shares(argument or _DEFAULT_SHARES, name), directed, seed)
        if kind == "directed":
            notes += ("directed edges are split: reverses of test edges may stay in the training graph",)
    val, test = (_links(graph, np.flatnonzero(part == s), directed, s, negatives, seed) for s in (VAL, TEST))
    training = with_edges(graph, part == TRAIN).with_(notes=notes)
    count = int(np.count_nonzero(_first_of_pairs(training.indices, training.destinations(), directed)))
    return LinkSplit(training, val, test, directed, count)


def training_pairs(
    indptr: np.ndarray, indices: np.ndarray, directed: bool, rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The edges (source, destination), int64 each, of a training graph or a part of it: CSR, rows ascending.

    Loops are left out, duplicates (of any type) come once; not `directed`: each pair once, the lower node as source.
    `rows`: the rows' ids, ascending, where `indices` are not their numbers; None: 0, 1, ...
    """
    names = np.arange(len(indptr) - 1) if rows is None else rows
    destination = np.repeat(names.astype(indices.dtype), np.diff(indptr))
    first = _first_of_pairs(indices, destination, directed)
    return indices[first].astype(np.int64), destination[first].astype(np.int64)


def _first_of_pairs(source: np.ndarray, destination: np.ndarray, directed: bool) -> np.ndarray:
    first = source != destination if directed else source < destination
    first[1:] &= (source[1:] != source[:-1]) | (destination[1:] != destination[:-1])
    return first


def _shares(argument: str, name: str) -> tuple[float, float, float]:
    try:
        numbers = [float(part) for part in argument.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) != 3 or not min(numbers) >= 0 or not sum(numbers) <= 1 + 1e-9:
        raise InputError(
            f"split of edges '{name}': expected three shares that sum to at most 1, as random:{_DEFAULT_SHARES}"
        )
    return numbers[0], numbers[1], numbers[2]


def _drawn(graph: Graph, shares: tuple[float, float, float], directed: bool, seed: int) -> np.ndarray:
    """The split of each edge, uint8 [E], by shares of the pairs."""
    source, destination = training_pairs(graph.indptr, graph.indices, directed)
    left = len(source)
    sizes = []
    for share in shares:
        sizes.append(min(left, round(share * len(source))))
        left -= sizes[-1]
    if sum(shares) > 1 - 1e-9:
        sizes[2] += left
        left = 0
    chosen = generator(seed, "links").choice(len(source), size=sizes[1] + sizes[2] + left, replace=False)
    split = np.repeat(np.array([VAL, TEST, UNUSED], np.uint8), [sizes[1], sizes[2], left])
    part = np.zeros(graph.num_edges, np.uint8)
    _mark_copies(graph, source[chosen], destination[chosen], None, split, directed, part)
    return part


def _given(graph: Graph, directed: bool) -> tuple[np.ndarray, int]:
    """The split of each edge, uint8 [E], by the column `split`, and how many edges are not where it has them."""
    column = graph.edge_columns.get("split")
    if column is None:
        raise InputError(
            f"graph '{graph.name}' has no edge column `split` (0 training, 1 validation, 2 test); use `random`"
        )
    if column.dtype.kind not in "iu" or not ((column >= TRAIN) & (column <= TEST)).all():
        raise InputError(
            f"edge column `split` of graph '{graph.name}': expected 0 (training), 1 (validation) or 2 (test) for each "
            "edge, found other values: correct the column"
        )
    destination = graph.destinations()
    given = np.where(graph.indices == destination, TRAIN, column).astype(np.uint8)
    chosen = np.flatnonzero(given)
    part = given.copy()
    relation = None if graph.edge_type is None else graph.edge_type[chosen]
    _mark_copies(graph, graph.indices[chosen], destination[chosen], relation, given[chosen], directed, part)
    return part, int(np.count_nonzero(part != given))


def _mark_copies(
    graph: Graph,
    source: np.ndarray,
    destination: np.ndarray,
    relation: np.ndarray | None,
    split: np.ndarray,
    directed: bool,
    part: np.ndarray,
) -> None:
    """Raise `part` [E] to `split` at every edge between these ends, in both directions unless `directed`.

    `relation`: at edges of that type only; None: of any type.
    """
    none = np.empty(0, np.int16)
    types = none if relation is None else graph.edge_type
    wanted = none if relation is None else relation
    _mark(graph.indptr, graph.indices, types, source, destination, wanted, split, part)
    if not directed:
        _mark(graph.indptr, graph.indices, types, destination, source, wanted, split, part)


def _links(graph: Graph, edges: np.ndarray, directed: bool, split: int, negatives: int, seed: int) -> Links:
    """The distinct ones of `edges` (int64, places in `indices`), in random order, with their negatives."""
    edges = generator(seed, "links", split).permutation(edges)
    source = graph.indices[edges].astype(np.int64)
    destination = np.searchsorted(graph.indptr, edges, side="right") - 1
    ends = (source, destination) if directed else (np.minimum(source, destination), np.maximum(source, destination))
    keys = np.stack(ends if graph.edge_type is None else (*ends, graph.edge_type[edges]))
    order = np.lexsort(keys)
    new = np.ones(len(edges), np.bool_)
    new[1:] = (keys[:, order[1:]] != keys[:, order[:-1]]).any(axis=0)
    first = np.sort(order[new])  # of equals the one that the permutation has first, so either direction of a pair
    relation = None if graph.edge_type is None else graph.edge_type[edges[first]]
    source, destination = source[first], destination[first]
    return Links(source, destination, _draw_negatives(graph, source, destination, negatives, seed), relation)


def _draw_negatives(graph: Graph, source: np.ndarray, destination: np.ndarray, negatives: int, seed: int) -> np.ndarray:
    """K nodes for each positive that are neither its source nor joined to it by an edge from it. int32 [k, K]."""
    kind = np.dtype(np.int32 if graph.num_nodes < 2**31 else np.int64)
    size = len(source) * negatives * kind.itemsize
    if size > MAX_NEGATIVES_BYTES:
        raise InputError(
            f"graph '{graph.name}': {len(source)} edges with {negatives} negatives each take {size / 1e9:.0f} GB: "
            f"choose smaller shares to validate and test on (split random:0.98/0.01/0.01), or fewer negatives"
        )
    out = np.empty((len(source), negatives), kind)
    order = np.argsort(source, kind="stable")
    starts = np.flatnonzero(np.diff(source[order], prepend=-1))
    full = np.zeros(len(starts), np.bool_)
    key = np.uint64(derive(seed, "link negatives"))
    degree = _out_degree(graph.indices, graph.num_nodes)
    bounds = np.append(starts, len(order))
    _draw(graph.indptr, graph.indices, degree, order, bounds, source, destination, key, out, full)
    if full.any():
        node = graph.original_ids[source[order[starts[full][0]]]]
        raise InputError(
            f"graph '{graph.name}': node {node} has edges to all other nodes, so an edge from it has no negatives: "
            "keep its edges in training (split `given`)"
        )
    return out


@njit(cache=True)
def _mark(indptr, indices, types, source, destination, relation, split, part):  # type: ignore[no-untyped-def]
    for i in range(len(source)):
        u, v = source[i], destination[i]
        e = _lower_bound(indptr, indices, u, v)
        while e < indptr[v + 1] and indices[e] == u:
            if len(types) == 0 or types[e] == relation[i]:
                part[e] = max(part[e], split[i])
            e += 1


@njit(inline="always")
def _lower_bound(indptr, indices, u, v):  # type: ignore[no-untyped-def]
    """The place of the first edge into v from u or beyond."""
    low, high = indptr[v], indptr[v + 1]
    while low < high:
        middle = (low + high) // 2
        if indices[middle] < u:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def _is_negative(indptr, indices, u, w):  # type: ignore[no-untyped-def]
    place = _lower_bound(indptr, indices, u, w)
    return w != u and (place == indptr[w + 1] or indices[place] != u)


@njit(inline="always")
def _below(bits, n):  # type: ignore[no-untyped-def]
    """`bits * n / 2^64`, rounded down: uniform in 0..n-1 for random 64 bits and n < 2^32."""
    low = ((bits & uint64(0xFFFFFFFF)) * uint64(n)) >> uint64(32)
    return np.int64(((bits >> uint64(32)) * uint64(n) + low) >> uint64(32))


@njit(cache=True)
def _out_degree(indices, num_nodes):  # type: ignore[no-untyped-def]
    degree = np.zeros(num_nodes, np.int64)
    for u in indices:
        degree[u] += 1
    return degree


@njit(cache=True)
def _all_negatives(indptr, indices, u):  # type: ignore[no-untyped-def]
    found = np.empty(len(indptr) - 1, np.int64)
    count = 0
    for w in range(len(indptr) - 1):
        if _is_negative(indptr, indices, u, w):
            found[count] = w
            count += 1
    return found[:count]


@njit(parallel=True, cache=True)
def _draw(indptr, indices, degree, order, bounds, source, destination, key, out, full):  # type: ignore[no-untyped-def]
    """Positives `order[bounds[g]:bounds[g + 1]]` have one source; `full[g]`: it has no negative."""
    for g in prange(len(bounds) - 1):
        u = source[order[bounds[g]]]
        full[g] = _draw_from(indptr, indices, degree[u], order[bounds[g] : bounds[g + 1]], u, destination, key, out)


@njit(cache=True)
def _draw_from(indptr, indices, degree, positives, u, destination, key, out):  # type: ignore[no-untyped-def]
    n = len(indptr) - 1
    crowded = 2 * (degree + 1) >= n  # else more than half of all nodes will do, and a draw takes two tries or less
    choices = _all_negatives(indptr, indices, u) if crowded else np.empty(0, np.int64)
    if crowded and len(choices) == 0:
        return True
    for i in positives:
        stream = mix(mix(key + uint64(u)) + uint64(destination[i]))
        for j in range(out.shape[1]):
            bits = mix(stream + uint64(j + 1) * uint64(0x9E3779B97F4A7C15))
            if crowded:
                out[i, j] = choices[_below(bits, len(choices))]
                continue
            w = _below(bits, n)
            while not _is_negative(indptr, indices, u, w):
                bits = mix(bits + uint64(0xD1B54A32D192ED03))
                w = _below(bits, n)
            out[i, j] = w
    return False
