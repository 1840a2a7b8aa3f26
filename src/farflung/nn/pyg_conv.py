"""Any one-hop convolution of PyTorch Geometric as the convolution of a layer.

It runs on the square graph of the sources, whose in-edges are those of the destinations alone, and keeps the
destinations' rows. What a node gets must therefore depend on its own in-edges and the rows at their ends only.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
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
from farflung.nn.pyg_check import check_module
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
_SET = ("in_channels", "out_channels", "nn", "concat", "deg", "edge_dim", "in_edge_channels")
"""Arguments that widths, graph and place in the encoder determine."""
_NEED_ATTRIBUTES = ("GINEConv", "NNConv")


class PyGConv(Conv):
    """A PyG convolution `in_features -> out_features` around a module `conv`.

    Of a graph it gets the edges as they are, with weights and attributes where it takes them; `GCNConv` gets loops and
    the normalisation by the degrees of the whole graph. Dropout acts on the sources' rows.
    """

    reads_own = False
    linear = False
    multiplies_first = False

    def __init__(
        self,
        conv: MessagePassing,
        in_features: int,
        out_features: int,
        dropout: float = 0.0,
        without: Collection[str] = (),
    ) -> None:
        """`without`: what `conv` is not given although it takes it, `edge_weight` or `edge_attr`."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.dropout = in_features, out_features, dropout
        self.conv = conv
        self.takes = {"edge_weight", "edge_attr"} & set(inspect.signature(conv.forward).parameters) - set(without)
        """What it is given of the edges, where they have it."""
        if any(getattr(conv, name, 0) is None for name in ("edge_dim", "in_edge_channels")):  # made for no attributes
            self.takes.discard("edge_attr")
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
        if "edge_weight" in self.takes:
            options["edge_weight"] = torch.from_numpy(edges.values)
        if "edge_attr" in self.takes and edges.attr is not None:
            options["edge_attr"] = torch.from_numpy(np.ascontiguousarray(edges.attr))
        out = self.run(operand.factor, torch.from_numpy(ends), options, key)
        return out[torch.from_numpy(operand.own)]

    def run(
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
    its usual aggregators and scalers. Raises InputError where the arguments do not fit.
    """
    kind: type[MessagePassing] = getattr(torch_geometric.nn, config.encoder)
    known = set(inspect.signature(kind.__init__).parameters)
    has_edges = facts.edge_features > 0
    _check_arguments(config)
    if config.encoder in _NEED_ATTRIBUTES and not has_edges:
        raise InputError(f"{config.encoder} needs edge attributes, and the graph has none: choose GINConv or another")
    arguments: dict[str, Any] = {}
    if "in_channels" in known or "nn" not in known:
        arguments |= {"in_channels": before, "out_channels": after}
    if config.encoder == "NNConv":
        arguments["nn"] = nn.Linear(facts.edge_features, before * after)
    elif "in_channels" not in arguments:
        wide = 2 * before if config.encoder == "EdgeConv" else before
        arguments["nn"] = nn.Sequential(nn.Linear(wide, after), nn.ReLU(), nn.Linear(after, after))
    if shares_heads(config.encoder):
        width = after if scores else _share(after, config.attention_heads)
        arguments |= {"heads": config.attention_heads, "concat": not scores, "out_channels": width}
    if "deg" in known:
        arguments |= {
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification", "attenuation"],
            "deg": torch.tensor(facts.degrees or (0, 1)),
        }
    arguments |= {name: facts.edge_features for name in ("edge_dim", "in_edge_channels") if name in known and has_edges}
    conv = made(kind, config, **{**arguments, **config.conv})
    check_module(conv)
    return PyGConv(conv, before, after, config.dropout)


def made(kind: type, config: ModelConfig, *places: Any, **arguments: Any) -> Any:
    """An object of class `kind`. Raises InputError that quotes `config.conv` where it cannot be made."""
    try:
        return kind(*places, **arguments)
    except (TypeError, ValueError, AssertionError, AttributeError) as error:
        raise InputError(
            f"option 'model.conv': {config.encoder} cannot be made with {dict(config.conv)} ({one_line(error)}): see "
            "its documentation in PyG for the arguments"
        ) from None


def one_line(error: Exception, room: int = 160) -> str:
    """What an error of PyG says, in at most `room` characters of one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= room else f"{text[: room - 1]}…"


def shares_heads(name: str) -> bool:
    """Whether the encoder is a convolution of PyG whose attention heads stand side by side."""
    kind = getattr(torch_geometric.nn, name, None)
    if not inspect.isclass(kind) or not issubclass(kind, MessagePassing):
        return False
    return {"heads", "concat"} <= set(inspect.signature(kind.__init__).parameters)


def _check_arguments(config: ModelConfig) -> None:
    """Raise InputError where `config.conv` sets what other options or the graph set."""
    for name in config.conv:
        if name == "heads" and shares_heads(config.encoder):
            raise InputError("option 'model.conv' cannot set heads: use model.attention_heads")
        if name in _SET:
            raise InputError(f"option 'model.conv' cannot set {name}: it follows from the graph and model.hidden")


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
