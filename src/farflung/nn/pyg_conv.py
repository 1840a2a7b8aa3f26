"""Any one-hop convolution of PyTorch Geometric as the convolution of a layer.

It runs on the square graph of the sources, whose in-edges are those of the destinations alone, and keeps the
destinations' rows. What a node gets must therefore depend on its own in-edges and the rows at their ends only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch_geometric.nn
from torch import nn
from torch_geometric.nn import MessagePassing

from farflung.errors import InputError, did_you_mean
from farflung.kernels import Neighbours, SparseMatrix, dropped
from farflung.kernels.operand import Operand, referenced
from farflung.nn.config import Facts, ModelConfig
from farflung.nn.convs import Conv, Factor, Gathered
from farflung.seeding import derive, torch_seed

EXAMPLES = (
    "SAGEConv",
    "GCNConv",
    "GATConv",
    "GATv2Conv",
    "GINConv",
    "GINEConv",
    "PNAConv",
    "TransformerConv",
    "GraphConv",
)
_COUPLING = (
    "BatchNorm",
    "InstanceNorm",
    "GraphNorm",
    "PairNorm",
    "DiffGroupNorm",
    "GraphSizeNorm",
    "MeanSubtractionNorm",
)
"""Normalisations over many nodes: what they do depends on how the graph is cut."""


class PyGConv(Conv):
    """A PyG convolution `in_features -> out_features` around a module `conv`.

    Of a graph it gets the edges as they are, with weights and attributes where it takes them; `GCNConv` gets loops and
    the normalisation by the degrees of the whole graph. Dropout acts on the sources' rows.
    """

    reads_own = False
    linear = False
    multiplies_first = False

    def __init__(self, conv: MessagePassing, in_features: int, out_features: int, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.dropout = in_features, out_features, dropout
        self.conv = conv
        self._takes = set(inspect.signature(conv.forward).parameters)
        self._normalised = isinstance(conv, torch_geometric.nn.GCNConv) and conv.normalize
        self.aggregation = "gcn" if self._normalised else "edges"

    def reset_parameters(self) -> None:
        """As PyG has it."""
        self.conv.reset_parameters()

    def aggregate(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        assert matrix is not None
        return (Neighbours(matrix, _dense(h), matrix.first_row + np.arange(matrix.shape[0])),)

    def combine(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        (operand,) = gathered
        operand = dropped(operand, self.dropout, None if key is None else derive(key, "operand", 0))
        assert isinstance(operand, Neighbours)
        if operand.edges.num_entries + len(operand.own) < operand.factor.shape[0] // 2:
            operand = referenced(operand)
        assert isinstance(operand.factor, torch.Tensor)
        edges = operand.edges
        degrees = np.diff(edges.pattern.indptr)
        ends = np.stack([edges.pattern.indices.astype(np.int64), np.repeat(operand.own, degrees)])
        options: dict[str, torch.Tensor] = {}
        if "edge_weight" in self._takes:
            options["edge_weight"] = torch.from_numpy(edges.values)
        if "edge_attr" in self._takes and edges.attr is not None:
            options["edge_attr"] = torch.from_numpy(np.ascontiguousarray(edges.attr))
        out = self._run(operand.factor, torch.from_numpy(ends), options, key)
        return out[torch.from_numpy(operand.own)]

    def _run(
        self, x: torch.Tensor, edge_index: torch.Tensor, options: Mapping[str, torch.Tensor], key: int | None
    ) -> torch.Tensor:
        """The module on a square graph; `key` seeds what it draws itself (attention dropout), None: evaluation."""
        self.conv.train(key is not None)
        if self._normalised:
            self.conv.normalize = False
        try:
            if key is None:
                return self.conv(x, edge_index, **options)
            with torch_seed(key, "conv"):
                return self.conv(x, edge_index, **options)
        finally:
            if self._normalised:
                self.conv.normalize = True


def _dense(h: Operand) -> torch.Tensor:
    """Rows as a dense tensor."""
    if isinstance(h, SparseMatrix):
        return torch.from_numpy(h.to_scipy().toarray())
    assert isinstance(h, torch.Tensor)
    return h


def named_conv(config: ModelConfig, before: int, after: int, scores: bool, facts: Facts) -> PyGConv:
    """The convolution that `config.encoder` names, with the further arguments of `config.conv`.

    `scores`: it gives class scores, for which attention heads are averaged. GIN's get an MLP of one hidden layer, PNA
    all its aggregators and scalers. Raises InputError where the arguments do not fit.
    """
    kind: type[MessagePassing] = getattr(torch_geometric.nn, config.encoder)
    known = set(inspect.signature(kind.__init__).parameters)
    has_edges = facts.edge_features > 0
    arguments: dict[str, Any] = {}
    if "nn" in known:
        arguments["nn"] = nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Linear(after, after))
    else:
        arguments |= {"in_channels": before, "out_channels": after}
    if {"heads", "concat"} <= known:
        width = after if scores else _share(after, config.attention_heads)
        arguments |= {"heads": config.attention_heads, "concat": not scores, "out_channels": width}
    if "deg" in known:
        arguments |= {
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification", "attenuation"],
            "deg": torch.tensor(facts.degrees or (0, 1)),
        }
    arguments |= {name: facts.edge_features for name in ("edge_dim", "in_edge_channels") if name in known and has_edges}
    try:
        conv = kind(**{**arguments, **config.conv})
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(
            f"option 'model.conv': {config.encoder} cannot be made with {dict(config.conv)} ({error}): see its "
            "documentation in PyG for the arguments"
        ) from None
    if config.encoder == "GINEConv" and not has_edges:
        raise InputError("GINEConv needs edge attributes, and the graph has none: choose GINConv")
    check_module(conv)
    return PyGConv(conv, before, after, config.dropout)


def _share(width: int, heads: int) -> int:
    if width % heads:
        raise InputError(
            f"{heads} attention heads cannot share a width of {width}: choose hidden as a multiple of attention_heads"
        )
    return width // heads


def check_name(name: str, others: tuple[str, ...]) -> None:
    """Raise InputError where `name` is neither one of `others` nor a convolution of PyG."""
    kind = getattr(torch_geometric.nn, name, None)
    if name in others or (inspect.isclass(kind) and issubclass(kind, MessagePassing) and kind is not MessagePassing):
        return
    known = [*others, *(n for n in dir(torch_geometric.nn) if n.endswith("Conv"))]
    raise InputError(
        f"unknown encoder '{name}'{did_you_mean(name, known)}: choose from {', '.join(others)}, or name a "
        f"convolution of PyG, such as {', '.join(EXAMPLES)}"
    )


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
        if isinstance(part, torch_geometric.nn.GCNConv):
            for option in ("improved", "cached"):
                if getattr(part, option):
                    raise InputError(f"GCNConv with {option}=True cannot be trained in parts: leave it out")
            if part.normalize and not part.add_self_loops:
                raise InputError("GCNConv with add_self_loops=False cannot be trained in parts: leave it out")


@torch.no_grad()
def check_one_hop(conv: PyGConv, facts: Facts, dtype: torch.dtype) -> None:
    """Raise InputError where a node's row depends on edges that do not end in it: parts do not have them.

    It is tried out: on a small graph, with all edges and with those into one node alone.
    """
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(5, conv.in_features))).to(dtype)
    ends = torch.tensor([[0, 1, 0, 2, 3, 4], [1, 2, 3, 3, 2, 0]])
    into = ends[1] == 3
    attr = torch.from_numpy(rng.normal(size=(6, max(1, facts.edge_features)))).to(dtype)
    weight = torch.from_numpy(rng.uniform(0.5, 1, size=6)).to(dtype)
    name = type(conv.conv).__name__
    found = []
    for kept in (torch.ones(6, dtype=torch.bool), into):
        options = {"edge_weight": weight[kept]} if "edge_weight" in conv._takes else {}
        if "edge_attr" in conv._takes and facts.edge_features:
            options["edge_attr"] = attr[kept]
        try:
            found.append(conv._run(x, ends[:, kept], options, None)[3])
        except (TypeError, RuntimeError, AssertionError, ValueError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name} cannot run on node features and edges alone ({reason}): choose another") from None
    if not torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-5):
        raise InputError(
            f"{name} looks further than one hop, and a part has only the in-edges of its own nodes: choose another"
        )
