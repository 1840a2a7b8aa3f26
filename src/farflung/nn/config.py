"""Options of encoders."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from farflung.errors import InputError

NATIVE = ("gcn", "sage", "gat", "mlp")
"""Encoders that are written here; other names are classes of PyG."""

PYG_MODELS = ("GraphSAGE", "GCN", "GAT", "GIN", "PNA", "EdgeCNN")
"""Whole models of PyG."""


def _parsed(value: object) -> object:
    """JSON text as what it holds."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise InputError(f'\'{value}\' is no JSON: write arguments as {{"aggr": "max"}}') from None


class Facts(BaseModel):
    """What convolutions must know of the whole graph."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    edge_features: int = 0
    """Width of the edges' attributes; 0: they have none."""
    degrees: tuple[int, ...] = ()
    """Nodes with 0, 1, 2, ... in-edges, for PNA; empty for others."""


class ModelConfig(BaseModel):
    """A graph neural network as a stack of layers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    encoder: str = Field(
        "sage",
        description=f"kind of the convolution: {', '.join(NATIVE)}; a convolution of PyG by its class, such as "
        "GATv2Conv; or a model of PyG, such as GraphSAGE",
    )
    conv: Annotated[dict[str, Any], BeforeValidator(_parsed)] = Field(
        {}, description='further arguments of a convolution or model of PyG, as JSON: {"aggr": "max"}'
    )
    module: str | None = Field(
        None,
        description="package.module:function(features, outputs) that builds a model of PyG, in place of an encoder",
    )
    layers: int = Field(2, ge=1, le=16, description="number of layers (1..16)")
    hidden: int = Field(256, ge=1, le=65536, description="width of hidden layers (1..65536)")
    norm: Literal["layer", "none"] = Field("layer", description="normalisation after each hidden convolution")
    activation: Literal["relu", "prelu", "elu", "gelu"] = Field("relu", description="after each hidden layer")
    attention_heads: int = Field(
        8,
        ge=1,
        le=256,
        description="gat and PyG's like it: attention heads of each layer (1..256); they share the hidden width",
    )
    first: Literal["conv", "mlp"] = Field(
        "conv",
        description="first layer: a convolution, or an MLP on a node's own features; the layers after that one gather "
        "class scores, never features",
    )
    residual: bool = Field(False, description="whether each layer adds a row of its own input to its output")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of a layer's aggregated input that is dropped (0..1)")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def is_pyg_model(self) -> bool:
        """Whether the encoder is a whole model of PyG, not a convolution."""
        return self.module is not None or self.encoder in PYG_MODELS

    @property
    def is_native(self) -> bool:
        """Whether the encoder is written here."""
        return self.module is None and self.encoder in NATIVE

    @model_validator(mode="after")
    def _encoder_is_known(self) -> Self:
        if self.encoder in (*NATIVE, *PYG_MODELS):
            return self
        from farflung.nn.pyg_conv import check_name  # PyG takes seconds to import

        check_name(self.encoder, (*NATIVE, *PYG_MODELS))
        return self

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.encoder == "gat" and self.hidden % self.attention_heads:
            raise InputError(
                f"{self.attention_heads} attention heads cannot share a hidden width of {self.hidden}: "
                "choose hidden as a multiple of attention_heads"
            )
        return self
