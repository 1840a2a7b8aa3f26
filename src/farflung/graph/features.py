"""Features by name: as given, from degrees, or random; and their normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph.graph import FeatureBlock, Graph
from farflung.seeding import generator

FEATURES = "given, degree, gaussian:<width>"
NORMALISE = ("none", "row")


def choose_features(graph: Graph, features: str, normalise: str, seed: int) -> Graph:
    """The graph with the features called `features`, normalised.

    Args:
        features: `given`; `degree`: log(1 + in-degree) and a constant 1, float32 [N, 2]; `gaussian:64`: 64
            standard normal numbers, seeded, and log(1 + in-degree), float32 [N, 65].
        normalise: `none`, or `row`: each row divided by the sum of its absolute values, so that non-negative
            rows sum to 1; zero rows stay.

    Raises:
        InputError: on an unknown name, or `given` for a graph without features.
    """
    if normalise not in NORMALISE:
        raise InputError(f"normalise: expected {' or '.join(NORMALISE)}, found '{normalise}'")
    blocks = graph.features if features == "given" else _made(graph, features, seed)
    if all(block is None for block in blocks):
        raise InputError(f"graph '{graph.name}' has no features: choose `degree` or `gaussian:64`")
    if normalise == "row":
        blocks = tuple(None if block is None else row_normalised(block) for block in blocks)
    return graph.with_(features=blocks)


def row_normalised(block: FeatureBlock) -> FeatureBlock:
    """Each row divided by the sum of its absolute values; zero rows stay; float16 becomes float32."""
    dtype = np.float32 if block.dtype == np.float16 else block.dtype
    sums = np.asarray(abs(block).sum(axis=1, dtype=np.float64)).reshape(-1)
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    if isinstance(block, sp.csr_matrix):
        data = block.data * np.repeat(scale, np.diff(block.indptr))
        return sp.csr_matrix((data.astype(dtype), block.indices, block.indptr), shape=block.shape)
    return (block * scale[:, None]).astype(dtype)


def _made(graph: Graph, features: str, seed: int) -> tuple[FeatureBlock, ...]:
    kind, _, argument = features.partition(":")
    degree = np.log1p(graph.in_degree()).astype(np.float32)[:, None]
    if kind == "degree" and not argument:
        rows = np.hstack([degree, np.ones_like(degree)])
    elif kind == "gaussian" and argument.isdecimal() and 0 < int(argument) <= 65536:
        noise = generator(seed, "features").standard_normal((graph.num_nodes, int(argument)), dtype=np.float32)
        rows = np.hstack([noise, degree])
    else:
        raise InputError(f"unknown features '{features}'; features are {FEATURES} (such as gaussian:64)")
    if graph.node_type is None:
        return (rows,)
    return tuple(rows[graph.node_type == t] for t in range(len(graph.features)))


def stacked(blocks: Sequence[FeatureBlock]) -> FeatureBlock:
    """Blocks of rows of one kind, put below each other."""
    return sp.vstack(blocks, format="csr") if sp.issparse(blocks[0]) else np.concatenate(blocks)
