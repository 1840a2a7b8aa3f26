"""Graphs: the frozen structure, reading and writing, named datasets, splits, features."""

from farflung.graph.build import csr_by_destination, from_edges, is_symmetric, symmetrise
from farflung.graph.compare import differences
from farflung.graph.datasets import DatasetInfo, available, load
from farflung.graph.features import choose_features
from farflung.graph.graph import FeatureBlock, Graph, Split
from farflung.graph.npz import read_npz
from farflung.graph.pyg import from_pyg, to_pyg
from farflung.graph.splits import choose_split
from farflung.graph.store import save_graph

__all__ = [
    "DatasetInfo",
    "FeatureBlock",
    "Graph",
    "Split",
    "available",
    "choose_features",
    "choose_split",
    "csr_by_destination",
    "differences",
    "from_edges",
    "from_pyg",
    "is_symmetric",
    "load",
    "read_npz",
    "save_graph",
    "symmetrise",
    "to_pyg",
]
