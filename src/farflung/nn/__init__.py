"""Encoders as stacks of layers, the matrices they aggregate with, and their state as a flat vector."""

from farflung.nn.adjacency import graph_adjacency, halo_adjacency, local_adjacency
from farflung.nn.config import ModelConfig
from farflung.nn.convs import Gathered, fixed, select
from farflung.nn.encoder import Encoder, Layer, build_encoder, layer_key

__all__ = [
    "Encoder",
    "Gathered",
    "Layer",
    "ModelConfig",
    "build_encoder",
    "fixed",
    "graph_adjacency",
    "halo_adjacency",
    "layer_key",
    "local_adjacency",
    "select",
]
