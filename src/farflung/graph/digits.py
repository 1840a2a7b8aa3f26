"""scikit-learn's handwritten digits as a nearest-neighbour graph."""

from __future__ import annotations

import numpy as np

from farflung.graph.build import from_edges
from farflung.graph.graph import Graph

NEIGHBOURS = 10


def digits() -> Graph:
    """1,797 images of 8 x 8 pixels, each joined to its 10 nearest by Euclidean distance, made symmetric.

    Features are the 64 pixels, scaled to 0..1; classes are the digits. Of equally near images the lower row
    is nearer, so that the graph is the same everywhere.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = data.data.astype(np.int64)
    squares = (pixels**2).sum(axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * (pixels @ pixels.T)
    np.fill_diagonal(distance, np.iinfo(np.int64).max)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :NEIGHBOURS]
    rows = len(pixels)
    return from_edges(
        nearest.reshape(-1),
        np.repeat(np.arange(rows), NEIGHBOURS),
        num_nodes=rows,
        symmetric=True,
        x=(pixels / 16).astype(np.float32),
        y=data.target,
        name="digits",
        notes=(f"each image joined to its {NEIGHBOURS} nearest",),
    )
