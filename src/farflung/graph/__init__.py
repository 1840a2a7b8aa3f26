"""Graphs: the frozen structure, reading and writing, named datasets, splits."""

from farflung.graph.graph import FeatureBlock, Graph, Split

__all__ = ["FeatureBlock", "Graph", "Split"]
