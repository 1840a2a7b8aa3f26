"""Assignments of nodes to parts: random, min-cut, super-nodes dealt out, or given with the data.

RandomTMA and SuperTMA are those of arXiv 2305.09887, with the seed set and the clusters' remainder dealt as
in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.partition.config import PartitionConfig
from farflung.partition.given import read_given
from farflung.partition.metis import metis_parts
from farflung.seeding import derive, generator

MAX_DEFAULT_CLUSTERS = 15_000
"""Super-nodes in the published scripts; our default grows up to it with the graph."""


@dataclass(frozen=True, eq=False)
class Cut:
    """An assignment and what it came from."""

    assignment: np.ndarray
    """int32 [N]: the part of each node."""
    num_parts: int
    clusters: np.ndarray | None = None
    """int32 [N]: the super-node of each node, for `supernode`."""
    part_names: tuple[str, ...] | None = None
    """For `given` by a column: the value that each part stands for, sorted."""


def assign(graph: Graph, config: PartitionConfig, seed: int) -> np.ndarray:
    """The part of each node, int32 [N]. See `cut`."""
    return cut(graph, config, seed).assignment


def cut(graph: Graph, config: PartitionConfig, seed: int) -> Cut:
    """Assign each node to a part, as `config` says; equal on any machine and thread count for one seed.

    Args:
        graph: the whole graph; its edges are read for `mincut` and `supernode` only.
        config: how to cut; its own seed, where set, goes before `seed`.
        seed: the run's seed.

    Raises:
        InputError: more parts than nodes, or options or given parts that do not fit the graph.
        PartitionerError: METIS failed.
    """
    seed = seed if config.seed is None else config.seed
    if config.by == "given":
        parts, names = read_given(graph, config.given)
        num_parts = int(parts.max(initial=-1)) + 1
        check_num_parts(num_parts, graph)
        return Cut(parts, num_parts, part_names=names)
    if config.parts is None:
        raise InputError(f"partition by '{config.by}': the number of parts is not set: pass parts=2 or more")
    check_num_parts(config.parts, graph)
    if config.by == "random":
        return Cut(random_parts(graph.num_nodes, config.parts, seed), config.parts)
    if config.by == "mincut":
        return Cut(metis_parts(graph, config.parts, derive(seed, "partition/mincut"), config.balance), config.parts)
    clusters = super_nodes(graph, choose_num_clusters(graph.num_nodes, config), seed)
    owner = deal_clusters(int(clusters.max(initial=-1)) + 1, config.parts, seed)
    return Cut(owner[clusters], config.parts, clusters=clusters)


def random_parts(num_nodes: int, num_parts: int, seed: int) -> np.ndarray:
    """Each node uniformly at random to one of the parts. int32 [N].

    Uses the raw stream of PCG64, which NumPy keeps stable over versions and machines.
    """
    raw = generator(seed, "partition/random").bit_generator.random_raw(num_nodes)
    high = np.atleast_1d(np.asarray(raw, dtype=np.uint64)) >> np.uint64(32)
    return ((high * np.uint64(num_parts)) >> np.uint64(32)).astype(np.int32)


def super_nodes(graph: Graph, n: int, seed: int) -> np.ndarray:
    """Cluster the nodes into n super-nodes of about equal size with METIS (edges not balanced). int32 [N].

    Clusters are numbered without gaps; METIS may leave some empty, so there can be fewer than n.

    Raises:
        InputError: n is not in 1..N.
        PartitionerError: METIS failed.
    """
    if not 1 <= n <= graph.num_nodes:
        raise InputError(
            f"super-nodes: expected 1..{graph.num_nodes} of them for graph '{graph.name}', found {n}: "
            "choose as many as there are nodes or fewer"
        )
    if n == graph.num_nodes:
        return np.arange(n, dtype=np.int32)
    found = metis_parts(graph, n, derive(seed, "partition/super-nodes"))
    return np.unique(found, return_inverse=True)[1].astype(np.int32)


def choose_num_clusters(num_nodes: int, config: PartitionConfig) -> int:
    """The super-nodes asked for, or the default min(15000, max(10 parts, nodes / 16)); at most N."""
    parts = config.parts or 1
    if config.clusters is None:
        default = min(MAX_DEFAULT_CLUSTERS, max(10 * parts, num_nodes // 16))
        return min(max(default, parts), num_nodes)
    if config.clusters < parts:
        raise InputError(
            f"partition: {config.clusters} super-nodes cannot be dealt to {parts} parts: "
            "raise `clusters` to at least `parts`"
        )
    return config.clusters


def deal_clusters(num_clusters: int, num_parts: int, seed: int) -> np.ndarray:
    """Shuffle the clusters and deal them out; the part of each cluster, int32 [num_clusters].

    Each of the first M - 1 parts gets floor(N / M), plus one more with probability frac(N / M); the last gets
    the rest (arXiv 2305.09887).
    """
    stream = generator(seed, "partition/deal").bit_generator
    order = np.argsort(np.atleast_1d(stream.random_raw(num_clusters)), kind="stable")
    base, rest = divmod(num_clusters, num_parts)
    draws = np.atleast_1d(stream.random_raw(num_parts)).astype(np.float64) / 2.0**64
    counts = base + (draws[: num_parts - 1] < rest / num_parts)
    ends = np.minimum(np.cumsum(counts), num_clusters)
    owner = np.empty(num_clusters, dtype=np.int32)
    owner[order] = np.searchsorted(ends, np.arange(num_clusters), side="right")
    return owner


def check_num_parts(num_parts: int, graph: Graph) -> None:
    """Raise `InputError` where there are more parts than nodes."""
    if num_parts > graph.num_nodes:
        raise InputError(
            f"partition: {num_parts} parts of graph '{graph.name}', which has {graph.num_nodes} nodes: "
            f"choose at most {graph.num_nodes} parts"
        )
