"""Options of encoders."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from farflung.errors import InputError


class ModelConfig(BaseModel):
    """A graph neural network as a stack of layers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    encoder: Literal["gcn", "sage", "gat", "mlp"] = Field("sage", description="kind of the convolution")
    layers: int = Field(2, ge=1, le=16, description="number of layers (1..16)")
    hidden: int = Field(256, ge=1, le=65536, description="width of hidden layers (1..65536)")
    norm: Literal["layer", "none"] = Field("layer", description="normalisation after each hidden convolution")
    activation: Literal["relu", "prelu", "elu", "gelu"] = Field("relu", description="after each hidden layer")
    attention_heads: int = Field(
        8, ge=1, le=256, description="gat: attention heads of each layer (1..256); they share the hidden width"
    )
    first: Literal["conv", "mlp"] = Field(
        "conv",
        description="first layer: a convolution, or an MLP on a node's own features; the layers after that one gather "
        "class scores, never features",
    )
    residual: bool = Field(False, description="whether each layer adds a row of its own input to its output")
    dropout: float = Field(0.3, ge=0, lt=1, description="share of a layer's aggregated input that is dropped (0..1)")

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.encoder == "gat" and self.hidden % self.attention_heads:
            raise InputError(
                f"{self.attention_heads} attention heads cannot share a hidden width of {self.hidden}: "
                "choose hidden as a multiple of attention_heads"
            )
        return self
