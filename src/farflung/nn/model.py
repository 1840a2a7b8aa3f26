"""A whole model, as a trainer builds it from its specification."""

from __future__ import annotations

from typing import TypeAlias

import torch

from farflung.nn.config import ModelConfig
from farflung.nn.decoders import LinkModel, build_decoder
from farflung.nn.encoder import Encoder, build_encoder
from farflung.seeding import torch_seed

Model: TypeAlias = Encoder | LinkModel
"""For nodes an encoder whose last layer gives class scores, for links an encoder with a decoder."""


def encoder_of(model: Model) -> Encoder:
    """The part of a model that turns a graph into rows."""
    return model.encoder if isinstance(model, LinkModel) else model


def build_link_model(
    config: ModelConfig, decoder: str, num_features: int, num_relations: int, seed: int, dtype: torch.dtype
) -> LinkModel:
    """An encoder to width `hidden` and a decoder; the initial weights depend on `seed` alone."""
    encoder = build_encoder(config, num_features, config.hidden, False, seed, dtype, scores=False)
    with torch_seed(seed, "decoder"):
        return LinkModel(encoder, build_decoder(decoder, config.hidden, num_relations).to(dtype))
