"""Random graphs with classes: a degree-corrected stochastic block model with features.

Degree correction after Karrer and Newman, Physical Review E 83, 016107 (2011): an edge meets a node with
probability proportional to the node's propensity, here a power law, as in most real networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from farflung.errors import InputError
from farflung.graph.build import from_edges
from farflung.graph.graph import Graph
from farflung.graph.values import sorted_unique
from farflung.seeding import generator

_EXPONENT = 3.0
"""Of the power law that propensities follow."""
_SLOTS = 8
"""Slots per unit of propensity in the list that end nodes are drawn from."""
_CHUNK = 1 << 20
_SEPARATION = 2.0
"""Expected distance between two class centroids, in standard deviations of the noise."""
_PASSES = 60


@dataclass(frozen=True)
class BlockModel:
    """Parameters of `sbm:...`."""

    nodes: int = 1000
    """Nodes N, at least 2."""
    classes: int = 5
    """Classes C of nearly equal size, 1 to N."""
    degree: float = 10.0
    """Mean degree: N * degree directed edges, each pair in both directions."""
    homophily: float = 0.8
    """Share of edges within a class, 0 to 1."""
    features: int = 32
    """Features F; 0: none."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("nodes", 2, 2**31 - 1),
            ("classes", 1, self.nodes),
            ("degree", 0, self.nodes - 1),
            ("homophily", 0, 1),
            ("features", 0, 2**20),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"sbm: `{name}` must be {low} to {high}, found {value}")
        if self.classes == 1 and self.homophily < 1:
            raise InputError("sbm: one class has no edges between classes; set homophily=1")


def parse_block_model(text: str) -> BlockModel:
    """`nodes=1000,classes=5` as a `BlockModel`; absent parameters keep their defaults.

    Raises `InputError` on an unknown parameter or a value that is not a number of its kind.
    """
    kinds: dict[str, Callable[[str], Any]] = {
        f.name: (int if isinstance(f.default, int) else float) for f in fields(BlockModel)
    }
    values: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, value = part.partition("=")
        if name not in kinds:
            raise InputError(f"sbm: unknown parameter '{name}'; parameters are {', '.join(kinds)}")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            kind = "a whole number" if kinds[name] is int else "a number"
            raise InputError(
                f"sbm: `{name}` must be {kind}, found '{value}'; parameters are {', '.join(kinds)}"
            ) from None
    return BlockModel(**values)


def block_model(model: BlockModel) -> Graph:
    """Draw a graph: undirected, without loops and duplicates, exactly round(N * degree / 2) pairs.

    The number of pairs within classes is exactly the share `homophily`, rounded. Features are float32, a
    Gaussian around the centroid of the node's class. Equal for one seed at any thread count.
    """
    n = model.nodes
    y = generator(model.seed, "sbm/labels").permutation(np.arange(n, dtype=np.int64) % model.classes)
    pairs = round(n * model.degree / 2)
    within = round(pairs * model.homophily)
    sizes = np.bincount(y, minlength=model.classes)
    room = int((sizes * (sizes - 1) // 2).sum())
    for count, most, kind in ((within, room, "within"), (pairs - within, n * (n - 1) // 2 - room, "between")):
        if 2 * count > most:
            raise InputError(
                f"sbm: {count} pairs {kind} classes are more than half of the {most} possible; lower `degree`"
            )
    draw = _Draw(y, _propensities(model), model.seed)
    low, high = np.divmod(np.concatenate([draw.pairs(within, True), draw.pairs(pairs - within, False)]), n)
    low, high = low.astype(np.int32), high.astype(np.int32)
    return from_edges(
        np.concatenate([low, high]),
        np.concatenate([high, low]),
        num_nodes=n,
        x=_features(model, y) if model.features else None,
        y=y,
        name="sbm:" + ",".join(f"{f.name}={getattr(model, f.name)}" for f in fields(model)),
    )


class _Draw:
    """Draws node pairs in proportion to propensities, from a list that holds each node so many times."""

    def __init__(self, y: np.ndarray, propensity: np.ndarray, seed: int) -> None:
        by_class = np.argsort(y, kind="stable").astype(np.int32)
        slots = np.ceil(_SLOTS * propensity[by_class]).astype(np.int64)
        self.slots = np.repeat(by_class, slots)
        self.ends = np.cumsum(np.bincount(y[by_class], weights=slots)).astype(np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        self.y = y
        self.seed = seed

    def pairs(self, count: int, within: bool) -> np.ndarray:
        """`count` distinct pairs u < v within (between) classes, as u * N + v, ascending. int64."""
        rng = generator(self.seed, "sbm/pairs", int(within))
        found = np.empty(0, np.int64)
        for _ in range(_PASSES):
            missing = count - len(found)
            if missing <= 0:
                break
            drawn = [found]
            for start in range(0, missing + missing // 8, _CHUNK):
                drawn.append(self._candidates(rng, min(_CHUNK, missing + missing // 8 - start), within))
            found = sorted_unique(np.concatenate(drawn))
        if len(found) < count:
            raise InputError("sbm: the graph is too dense to draw without duplicates; lower `degree`")
        if len(found) > count:
            drop = rng.choice(len(found), len(found) - count, replace=False, shuffle=False)
            found = np.delete(found, drop)
        return found

    def _candidates(self, rng: np.random.Generator, count: int, within: bool) -> np.ndarray:
        u = self.slots[rng.integers(0, len(self.slots), count)]
        if within:
            c = self.y[u]
            v = self.slots[rng.integers(self.starts[c], self.ends[c])]
            fits = u != v
        else:
            v = self.slots[rng.integers(0, len(self.slots), count)]
            fits = self.y[u] != self.y[v]
        u, v = u[fits].astype(np.int64), v[fits].astype(np.int64)
        return np.minimum(u, v) * len(self.y) + np.maximum(u, v)


def _propensities(model: BlockModel) -> np.ndarray:
    """A power law from 1, cut at sqrt(N) so that no node meets all others. float64 [N]."""
    uniform = generator(model.seed, "sbm/propensities").random(model.nodes)
    return np.minimum((1 - uniform) ** (-1 / (_EXPONENT - 1)), np.sqrt(model.nodes))


def _features(model: BlockModel, y: np.ndarray) -> np.ndarray:
    spread = _SEPARATION / np.sqrt(2 * model.features)
    centroids = generator(model.seed, "sbm/centroids").standard_normal((model.classes, model.features))
    x = generator(model.seed, "sbm/features").standard_normal((model.nodes, model.features), dtype=np.float32)
    step = max(1, _CHUNK // model.features)
    for start in range(0, model.nodes, step):
        x[start : start + step] += (spread * centroids).astype(np.float32)[y[start : start + step]]
    return x
