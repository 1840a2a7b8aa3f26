"""Splits by name: public ones, the one of the RETEXO paper, random shares, random per class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farflung.errors import InputError
from farflung.graph.graph import Graph, Split
from farflung.seeding import generator

NAMES = "public, public:<i>, retexo, random, random:<train>/<val>/<test>, random:<train>/<val> per class"


@dataclass(frozen=True)
class _PerClass:
    """So many training nodes of each class, so many validation nodes in total, the rest for testing."""

    train: int
    val: int


_RETEXO_PER_CLASS = {
    "cora": _PerClass(86, 300),
    "citeseer": _PerClass(178, 357),
    "pubmed": _PerClass(1461, 2190),
}
_RETEXO_SIZES = {2708: "cora", 3327: "citeseer", 19717: "pubmed", 22470: "facebook", 7624: "lastfm"}
_RETEXO_SHARES = {"facebook": (0.2, 0.1), "lastfm": (0.2, 0.1)}
_DEFAULT_SHARES = (0.2, 0.2)


def choose_split(graph: Graph, name: str, seed: int) -> Graph:
    """The graph with `split` set to the split called `name`; only nodes with a label are in any mask.

    Names:
        `public`, `public:3`: the first, the i-th (from 0) of the splits that came with the data.
        `random`: 20 % training, 20 % validation, 60 % test; `random:0.6/0.2/0.2` other shares.
        `random:20/30`: 20 training and 30 validation nodes of each class, the rest test.
        `retexo`: see `retexo_split`.

    Raises:
        InputError: on an unknown name (the message lists what exists) or a graph that lacks what it needs.
    """
    kind, _, argument = name.partition(":")
    if kind == "public":
        return graph.with_(split=_public(graph, argument, name))
    if kind == "retexo" and not argument:
        return graph.with_(split=retexo_split(graph, seed))
    if kind == "random":
        return graph.with_(split=_random(graph, argument, name, seed))
    raise InputError(f"unknown split '{name}'; splits are {NAMES}")


def random_split(graph: Graph, train: float, val: float, seed: int, test: float | None = None) -> Split:
    """Shares of the nodes with a label, drawn at random; `test` None: the rest."""
    nodes = generator(seed, "split").permutation(_labelled(graph))
    ends = np.cumsum([round(train * len(nodes)), round(val * len(nodes))])
    last = len(nodes) if test is None else min(len(nodes), int(ends[1]) + round(test * len(nodes)))
    return _split(graph.num_nodes, nodes[: ends[0]], nodes[ends[0] : ends[1]], nodes[ends[1] : last])


def per_class_split(graph: Graph, train: int, val: int, seed: int) -> Split:
    """So many training and validation nodes of each class, drawn at random; the rest test."""
    classes = _by_class(graph, train + val, seed)
    chosen = [(nodes[:train], nodes[train : train + val], nodes[train + val :]) for nodes in classes]
    return _split(graph.num_nodes, *(np.concatenate(part) for part in zip(*chosen, strict=True)))


def retexo_split(graph: Graph, seed: int) -> Split:
    """The split of RETEXO (arXiv 2302.13053), as far as it is known; the nodes are drawn by `seed`.

    Cora, Citeseer, PubMed: 86, 178, 1461 training nodes of each class; 300, 357, 2190 validation nodes *in
    total*; the rest test. In total, since 300 of each of Cora's classes would leave 6 nodes of 2,708 for the
    test, and its smallest class has 180; so read, validation is half, a third, half of the 602, 1,068, 4,383
    training nodes. Facebook and LastFM: 70 % test, a third of the rest validation. Other graphs:
    `random`, 20/20/60 %. A graph is recognised by its name or, failing that, by its number of nodes.
    """
    known = _recognise(graph)
    if known not in _RETEXO_PER_CLASS:
        return random_split(graph, *_RETEXO_SHARES.get(known, _DEFAULT_SHARES), seed)
    counts = _RETEXO_PER_CLASS[known]
    classes = _by_class(graph, counts.train, seed)
    rest = generator(seed, "split", 1).permutation(np.concatenate([c[counts.train :] for c in classes]))
    train = np.concatenate([c[: counts.train] for c in classes])
    return _split(graph.num_nodes, train, rest[: counts.val], rest[counts.val :])


def _recognise(graph: Graph) -> str:
    name = graph.name.lower().removeprefix("planetoid-")
    if name in _RETEXO_PER_CLASS:
        return name
    for known in _RETEXO_SHARES:
        if name.startswith(known):
            return known
    return _RETEXO_SIZES.get(graph.num_nodes, "")


def _public(graph: Graph, argument: str, name: str) -> Split:
    have = len(graph.public_splits)
    if not have:
        raise InputError(f"graph '{graph.name}' has no public split; use `random`, or `random:20/30` per class")
    index = 0 if not argument else int(argument) if argument.isdecimal() else have
    if index >= have:
        raise InputError(f"split '{name}': graph '{graph.name}' has public:0 to public:{have - 1}")
    return graph.public_splits[index]


def _random(graph: Graph, argument: str, name: str, seed: int) -> Split:
    if not argument:
        return random_split(graph, *_DEFAULT_SHARES, seed)
    try:
        numbers = [float(part) for part in argument.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) == 3 and min(numbers) >= 0 and sum(numbers) <= 1 + 1e-9:
        train, val, test = numbers
        return random_split(graph, train, val, seed, None if sum(numbers) > 1 - 1e-9 else test)
    if len(numbers) == 2 and all(n >= 0 and n.is_integer() for n in numbers):
        return per_class_split(graph, int(numbers[0]), int(numbers[1]), seed)
    raise InputError(
        f"split '{name}': expected three shares that sum to at most 1 (random:0.6/0.2/0.2) or two counts per "
        "class (random:20/30)"
    )


def _labelled(graph: Graph) -> np.ndarray:
    if graph.y is None:
        raise InputError(f"graph '{graph.name}' has no labels to split; choose a graph with `y`")
    if graph.y.ndim == 2:
        return np.arange(graph.num_nodes)
    return np.flatnonzero(graph.y >= 0)


def _by_class(graph: Graph, at_least: int, seed: int) -> list[np.ndarray]:
    """The labelled nodes of each class that occurs, in random order."""
    if graph.y is None or graph.y.ndim != 1:
        raise InputError(f"graph '{graph.name}' has no single label per node: use `random`, not counts per class")
    nodes = generator(seed, "split").permutation(_labelled(graph))
    classes = [nodes[graph.y[nodes] == c] for c in np.unique(graph.y[nodes])]
    for members in classes:
        if len(members) < at_least:
            raise InputError(
                f"graph '{graph.name}': class {graph.y[members[0]]} has {len(members)} nodes, fewer than the "
                f"{at_least} asked for; ask for fewer per class, or use `random`"
            )
    return classes


def _split(num_nodes: int, *parts: np.ndarray) -> Split:
    masks = np.zeros((3, num_nodes), dtype=np.bool_)
    for mask, nodes in zip(masks, parts, strict=True):
        mask[nodes] = True
    return Split(*masks)
