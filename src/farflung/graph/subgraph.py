"""Parts of a graph as graphs of their own: some of its edges, or some of its nodes.

Legend for shapes: N nodes, E directed edges.
"""

from __future__ import annotations

import numpy as np

from farflung.graph.build import EDGE_FIELDS
from farflung.graph.graph import MASKS, FeatureBlock, Graph, Split


def with_edges(graph: Graph, keep: np.ndarray) -> Graph:
    """All nodes, and the edges `keep` (bool [E]) with all they carry."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
    fields = {name: getattr(graph, name) for name in EDGE_FIELDS}
    return graph.with_(
        indptr=before[graph.indptr],
        indices=graph.indices[keep],
        **{name: value[keep] for name, value in fields.items() if value is not None},
        edge_columns={name: value[keep] for name, value in graph.edge_columns.items()},
    )


def between(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    """Whether each edge has both ends among `nodes` (bool [N]). bool [E]."""
    return nodes[graph.indices] & np.repeat(nodes, graph.in_degree())


def with_nodes(graph: Graph, keep: np.ndarray) -> Graph:
    """The nodes `keep` (bool [N]) with all they carry, and the edges among them; `ids` are the original ones.

    Nodes stay in their order. Splits that came with the data are left out.
    """
    graph = with_edges(graph, between(graph, keep))
    number = (np.cumsum(keep) - 1).astype(graph.indices.dtype)
    split = None if graph.split is None else Split(*(getattr(graph.split, mask)[keep] for mask in MASKS))
    return graph.with_(
        indptr=np.append(graph.indptr[:-1][keep], graph.indptr[-1:]),
        indices=number[graph.indices],
        features=_rows(graph, keep),
        y=None if graph.y is None else graph.y[keep],
        split=split,
        public_splits=(),
        node_type=None if graph.node_type is None else graph.node_type[keep],
        ids=graph.original_ids[keep],
        columns={name: column[keep] for name, column in graph.columns.items()},
    )


def _rows(graph: Graph, keep: np.ndarray) -> tuple[FeatureBlock | None, ...]:
    """The rows of each block of features that belong to the nodes `keep`."""
    types = np.zeros(graph.num_nodes, np.int16) if graph.node_type is None else graph.node_type
    return tuple(None if block is None else block[keep[types == t]] for t, block in enumerate(graph.features))
