"""A graph and options for runs that take no time."""

import numpy as np

from farflung.graph import Graph

SMALL = {"steps": 6, "hidden": 8, "threads": 1}
PUBLIC = {**SMALL, "split": "random"}


def blobs(num_nodes: int = 60, **fields) -> Graph:
    """A small graph that can be learnt: two classes told apart by their features; the last node is isolated."""
    rng = np.random.default_rng(0)
    y = np.arange(num_nodes) % 2
    source, destination = rng.integers(0, num_nodes - 1, (2, 3 * num_nodes))
    x = (rng.standard_normal((num_nodes, 4)) + 3 * y[:, None]).astype(np.float32)
    return Graph.from_edges(source, destination, num_nodes=num_nodes, x=x, y=fields.pop("y", y), name="blobs", **fields)
