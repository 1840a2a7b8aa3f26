"""Encoders: stacks of layers, each a convolution with norm, activation and, in lazy training, a head of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import nn

from farflung.kernels import Neighbours, Operand, Product, SparseMatrix, formed, times
from farflung.nn.adjacency import Aggregation
from farflung.nn.attention import GATConv
from farflung.nn.config import Facts, ModelConfig
from farflung.nn.convs import CONVS, Conv, DenseConv, Factor, Gathered, first_rows, fixed
from farflung.seeding import derive, torch_seed

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),  # no step before it needs its input again
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}


class Layer(nn.Module):
    """Conv -> norm -> activation; the last layer of an encoder is the bare convolution.

    With `head` (lazy training) a hidden layer also has a temporary linear map to the classes. With `out` it ends in a
    linear map for good: what it passes on are class scores. With `skip` a row of its own input is added to its output.
    """

    def __init__(
        self,
        conv: Conv,
        norm: nn.Module | None = None,
        activation: nn.Module | None = None,
        *,
        head: nn.Module | None = None,
        out: nn.Linear | None = None,
        skip: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.norm = norm
        self.activation = activation
        self.head = head
        self.out = out
        self.skip = skip

    @property
    def aggregation(self) -> Aggregation:
        """What its convolution gathers with."""
        return self.conv.aggregation

    @property
    def reads_own(self) -> bool:
        """Whether a destination's own row is an operand beside what its in-edges bring."""
        return self.conv.reads_own or self.skip is not None

    @property
    def out_features(self) -> int:
        """Width of what the layer passes on."""
        return self.conv.out_features if self.out is None else self.out.out_features

    def gather(self, matrix: SparseMatrix | None, h: Factor, own: Factor | None = None) -> Gathered:
        """What the layer reads for the R rows of `matrix` [R, K] from `h` [K, F]; no parameter takes part.

        `own`: the destinations' own rows [R, F]; None: they are the first R rows of `h`.
        """
        gathered = self.conv.aggregate(matrix, h, own)
        if self.skip is None:
            return gathered
        if own is None:
            own = h if matrix is None else first_rows(h, matrix.shape[0])
        return (*gathered, own)

    @property
    def sums(self) -> bool:
        """Whether what it gathers for a node is one weighted sum of rows and maybe the node's own: see `assemble`."""
        return self.aggregation in ("gcn", "mean")

    def assemble(self, summed: Factor, own: Factor) -> Gathered:
        """What `gather` gives, from sums [R, F] that may come from elsewhere and own rows [R, F]; where it `sums`."""
        gathered = (own, summed) if self.conv.reads_own else (summed,)
        return gathered if self.skip is None else (*gathered, own)

    def fix(self, gathered: Gathered) -> Gathered:
        """What was gathered from constant inputs, in the form that is fastest to multiply again and again."""
        if self.skip is None:
            return fixed(gathered)
        return (*fixed(gathered[:-1]), formed(gathered[-1]))

    def hidden(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """What the layer passes on of the gathered rows, [R, d]. `key` seeds dropout; None: evaluation."""
        own = None
        if self.skip is not None:
            gathered, own = gathered[:-1], self.skip(gathered[-1])
        h = self.conv.combine(gathered, key)
        if self.norm is not None:
            h = self.norm(h)
        if self.activation is not None:
            h = self.activation(h)
        if self.out is not None:
            h = self.out(h)
        return h if own is None else h + own

    def predict(self, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """Class scores of the gathered rows by this layer and its head alone, [R, C]."""
        h = self.hidden(gathered, key)
        return h if self.head is None else self.head(h)


class Skip(nn.Module):
    """A row as it is, or where the widths differ a linear map of it."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = None if in_features == out_features else nn.Parameter(torch.empty(in_features, out_features))
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)

    def forward(self, own: Operand) -> torch.Tensor:
        """[R, in] -> [R, out]."""
        if self.weight is not None:
            return times(own, self.weight)
        plain = formed(own)
        assert not isinstance(plain, Neighbours)
        return plain if isinstance(plain, torch.Tensor) else torch.from_numpy(plain.to_scipy().toarray())


class Encoder(nn.Module):
    """A stack of layers over one aggregation matrix."""

    def __init__(
        self,
        config: ModelConfig,
        num_features: int,
        num_classes: int,
        heads: bool,
        scores: bool = True,
        facts: Facts = Facts(),  # noqa: B008
    ) -> None:
        """`num_features`, `num_classes` >= 1; `heads`: hidden layers get heads for lazy training.

        `scores`: the last layer gives class scores, `num_classes` of them; else embeddings of that width.
        """
        super().__init__()
        if config.first == "mlp":
            layers = _on_scores(config, num_features, num_classes, facts)
        else:
            layers = _on_embeddings(config, num_features, num_classes, heads, scores, facts)
        self.stack = nn.ModuleList(layers)
        self.dropout = config.dropout

    @classmethod
    def of(cls, layers: Sequence[Layer], dropout: float = 0.0) -> Encoder:
        """A stack of the given layers; `dropout`: the share of the first one's input that is dropped."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.stack = nn.ModuleList(layers)
        encoder.dropout = dropout
        return encoder

    @property
    def aggregation(self) -> Aggregation:
        """What its layers gather with; those that gather nothing do not count."""
        return next((layer.aggregation for layer in self.layers if layer.aggregation != "none"), "none")

    @property
    def layers(self) -> list[Layer]:
        """The layers, first to last."""
        return cast("list[Layer]", list(self.stack))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def prepare(self, matrix: SparseMatrix | None, x: torch.Tensor | SparseMatrix) -> Gathered:
        """What the first layer gathers from constant features `x` [K, F]: done once, used in every step.

        Sparse features without dropout stay an unformed product where that has fewer entries to multiply.
        """
        gathered = self.layers[0].gather(matrix, x)
        if self.dropout == 0 and any(_cheaper_unformed(operand) for operand in gathered):
            return gathered
        return self.layers[0].fix(gathered)

    def forward(self, matrix: SparseMatrix | None, gathered: Gathered, key: int | None = None) -> torch.Tensor:
        """Class scores [R, C] on a square `matrix` [R, R], from what `prepare` gathered.

        `key` seeds dropout, each layer with a key derived from it; None: evaluation.
        """
        h = self.layers[0].hidden(gathered, layer_key(key, 0))
        for i, layer in enumerate(self.layers[1:], start=1):
            h = layer.hidden(layer.gather(matrix, h), layer_key(key, i))
        return h

    @torch.no_grad()
    def infer(self, matrix: SparseMatrix | None, gathered: Gathered) -> torch.Tensor:
        """Exact class scores of every row, layer by layer, without autograd. [R, C]."""
        return self.forward(matrix, gathered)


def _on_embeddings(
    config: ModelConfig, num_features: int, num_classes: int, heads: bool, scores: bool, facts: Facts
) -> list[Layer]:
    """Layers that pass embeddings on, the last one class scores if `scores`."""
    widths = [num_features] + [config.hidden] * (config.layers - 1) + [num_classes]
    layers = []
    for i, (before, after) in enumerate(pairwise(widths)):
        last = i == config.layers - 1
        layers.append(
            Layer(
                _conv(config, before, after, last and scores, facts),
                nn.LayerNorm(after) if config.norm == "layer" and not last else None,
                None if last else ACTIVATIONS[config.activation](),
                head=nn.Linear(after, num_classes) if heads and not last else None,
                skip=Skip(before, after) if config.residual else None,
            )
        )
    return layers


def _on_scores(config: ModelConfig, num_features: int, num_classes: int, facts: Facts) -> list[Layer]:
    """An MLP on a node's own features, then layers that gather class scores; all pass class scores on.

    The older variant of RETEXO (arXiv 2302.13053): a neighbour gives C numbers, never its features.
    """
    layers = []
    for i in range(config.layers):
        conv = (
            _conv(config, num_classes, config.hidden, False, facts)
            if i
            else DenseConv(num_features, config.hidden, config.dropout)
        )
        layers.append(
            Layer(
                conv,
                nn.LayerNorm(config.hidden) if config.norm == "layer" else None,
                ACTIVATIONS[config.activation](),
                out=nn.Linear(config.hidden, num_classes),
                skip=Skip(num_classes, num_classes) if i and config.residual else None,
            )
        )
    return layers


def _conv(config: ModelConfig, before: int, after: int, scores: bool, facts: Facts) -> Conv:
    """A convolution of the kind chosen; `scores`: it gives class scores, for which attention heads are averaged."""
    if config.encoder == "gat":
        return GATConv(before, after, config.dropout, config.attention_heads, average=scores)
    if config.encoder in CONVS:
        return CONVS[config.encoder](before, after, config.dropout)
    from farflung.nn.pyg_conv import named_conv  # PyG takes seconds to import

    return named_conv(config, before, after, scores, facts)


def layer_key(key: int | None, layer: int) -> int | None:
    """The dropout key of a layer within a step's key."""
    return None if key is None else derive(key, "layer", layer)


def _cheaper_unformed(operand: object) -> bool:
    """Whether `A (X W)` reads fewer entries than `(A X) W`, for a sparse X."""
    if not isinstance(operand, Product) or not isinstance(operand.factor, SparseMatrix):
        return False
    entries_of_row = operand.factor.pattern.indptr[1:] - operand.factor.pattern.indptr[:-1]
    unformed = operand.adjacency.num_entries + operand.factor.num_entries
    return unformed < int(entries_of_row[operand.adjacency.pattern.indices].sum())


def build_encoder(
    config: ModelConfig,
    num_features: int,
    num_classes: int,
    heads: bool,
    seed: int,
    dtype: torch.dtype,
    scores: bool = True,
    facts: Facts = Facts(),  # noqa: B008
) -> Encoder:
    """An encoder whose initial weights depend on `seed` alone (drawn in float32, whatever `dtype`); see `Encoder`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch_seed(seed, "init"):
            if config.is_pyg_model:
                from farflung.nn.pyg_model import build_model, layers_of

                model = build_model(config, num_features, num_classes, facts)
                encoder = Encoder.of(layers_of(model, num_classes, heads))
            else:
                encoder = Encoder(config, num_features, num_classes, heads, scores, facts)
    finally:
        torch.set_default_dtype(before)
    return encoder.to(dtype)
