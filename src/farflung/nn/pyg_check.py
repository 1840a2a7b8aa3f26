"""What of PyG cannot be trained in parts, found before training: by name, and by trying it out on a small graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch_geometric.nn
from torch import nn
from torch_geometric.nn import MessagePassing

from farflung.errors import InputError
from farflung.nn.config import Facts

if TYPE_CHECKING:
    from farflung.nn.encoder import Layer
    from farflung.nn.pyg_conv import PyGConv

_COUPLING = (
    "BatchNorm",
    "SyncBatchNorm",
    "HeteroBatchNorm",
    "InstanceNorm",
    "GraphNorm",
    "PairNorm",
    "DiffGroupNorm",
    "GraphSizeNorm",
    "MeanSubtractionNorm",
)
"""Normalisations over many nodes: what they do depends on how the graph is cut."""
_NODE = 3
"""Whose row is looked at."""
_ENDS = torch.tensor([[0, 1, 0, 2, 3, 4], [1, 2, 3, 3, 2, 0]])
"""Its in-edges come from nodes 0 and 2; 1 and 4 are further away."""


def check_module(module: nn.Module) -> None:
    """Raise InputError, by name, for what makes a node's row depend on more than its in-edges and their ends."""
    for part in module.modules():
        name = type(part).__name__
        graph_wide = isinstance(part, torch_geometric.nn.LayerNorm) and part.mode == "graph"
        if graph_wide or any(name.startswith(word) for word in _COUPLING):
            what = "LayerNorm with mode='graph'" if graph_wide else name
            raise InputError(
                f"{what} normalises over all nodes at once, which no part has: use LayerNorm with mode='node'"
            )
        if isinstance(part, MessagePassing):
            _check_options(part)


def _check_options(conv: MessagePassing) -> None:
    """Raise InputError, by name, for arguments of a convolution that do not fit parts."""
    name = type(conv).__name__
    if conv.flow != "source_to_target":
        raise InputError(f"{name} with flow='{conv.flow}' gathers from out-edges, which a part lacks: leave it out")
    for option in ("improved", "cached"):
        if getattr(conv, option, False):
            raise InputError(f"{name} with {option}=True cannot be trained in parts: leave it out")
    if isinstance(conv, torch_geometric.nn.GCNConv) and conv.normalize and not conv.add_self_loops:
        raise InputError(f"{name} with add_self_loops=False cannot be trained in parts: leave it out")


def check_layer(layer: Layer, facts: Facts, dtype: torch.dtype) -> None:
    """Raise InputError where a row of the layer depends on more than a part has: see `check_one_hop`, `check_norm`."""
    from farflung.nn.pyg_conv import PyGConv  # reads this module

    if isinstance(layer.conv, PyGConv):
        check_one_hop(layer.conv, facts, dtype)
    if layer.norm is not None:
        check_norm(layer.norm, layer.conv.out_features, dtype)


@torch.no_grad()
def check_one_hop(conv: PyGConv, facts: Facts, dtype: torch.dtype) -> None:
    """Raise InputError where a node's row depends on edges that do not end in it, or on nodes that none starts from.

    It is tried out: on a small graph, with all edges and with those into one node alone; and in training with other
    rows of the nodes further away.
    """
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(5, conv.in_features))).to(dtype)
    attr = torch.from_numpy(rng.normal(size=(6, max(1, facts.edge_features)))).to(dtype)
    weight = torch.from_numpy(rng.uniform(0.5, 1, size=6)).to(dtype)
    name = type(conv.conv).__name__

    def row(kept: torch.Tensor, x: torch.Tensor, key: int | None) -> torch.Tensor:
        options = {"edge_weight": weight[kept]} if "edge_weight" in conv.takes else {}
        if "edge_attr" in conv.takes and facts.edge_features:
            options["edge_attr"] = attr[kept]
        return conv.run(x, _ENDS[:, kept], options, key)[_NODE]

    everything = torch.ones(6, dtype=torch.bool)
    try:
        apart = row(everything, x, None), row(_ENDS[1] == _NODE, x, None)
        training = row(everything, x, 0), row(everything, _others_changed(x), 0)
    except (TypeError, RuntimeError, AssertionError, ValueError, AttributeError, IndexError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name} cannot run on node features and edges alone ({reason}): choose another") from None
    if apart[0].shape != (conv.out_features,):
        raise InputError(
            f"{name} gives rows of shape {tuple(apart[0].shape)}, expected {conv.out_features} numbers: choose another "
            "or other arguments"
        )
    if not torch.allclose(*apart, rtol=1e-3, atol=1e-5):
        raise InputError(
            f"{name} looks further than one hop, and a part has only the in-edges of its own nodes: choose another"
        )
    if not torch.allclose(*training, rtol=1e-3, atol=1e-5):
        raise InputError(f"{name} depends in training on nodes that no edge joins, which a part lacks: choose another")


@torch.no_grad()
def check_norm(norm: nn.Module, width: int, dtype: torch.dtype) -> None:
    """Raise InputError where a row of a normalisation's output depends on other rows."""
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(5, width))).to(dtype)
    name = type(norm).__name__
    try:
        rows = norm(x)[_NODE], norm(_others_changed(x))[_NODE]
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name} cannot normalise rows alone ({reason}): choose another") from None
    if not torch.allclose(*rows, rtol=1e-3, atol=1e-5):
        raise InputError(f"{name} normalises over all nodes at once, which no part has: use LayerNorm with mode='node'")


def _others_changed(x: torch.Tensor) -> torch.Tensor:
    """Other rows for the nodes that have no edge to the one looked at."""
    changed = x.clone()
    changed[[1, 4]] = 3 * x[[4, 1]] + 1
    return changed
