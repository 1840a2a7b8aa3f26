"""A whole model, as a trainer builds it from its specification."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import nn

from farflung.nn.config import Facts, ModelConfig
from farflung.nn.decoders import Decoder, LinkModel, build_decoder
from farflung.nn.encoder import Encoder, build_encoder
from farflung.seeding import torch_seed

Model: TypeAlias = Encoder | LinkModel
"""For nodes an encoder whose last layer gives class scores, for links an encoder with a decoder."""


def encoder_of(model: Model) -> Encoder:
    """The part of a model that turns a graph into rows."""
    return model.encoder if isinstance(model, LinkModel) else model


def unit(model: Model, layer: int) -> nn.Module:
    """What lazy training trains at a time: layer number `layer` with its head, or with the decoder of its rows."""
    of = encoder_of(model).layers[layer]
    return nn.ModuleList([of, model.decoder_of(layer)]) if isinstance(model, LinkModel) else of


def first_layers(model: Model, depth: int) -> nn.ModuleList:
    """All that it takes to score by the first `depth` >= 1 layers alone: these, the last of them as its `unit`."""
    return nn.ModuleList([*encoder_of(model).layers[: depth - 1], unit(model, depth - 1)])


def build_link_model(
    config: ModelConfig,
    decoder: str,
    num_features: int,
    num_relations: int,
    seed: int,
    dtype: torch.dtype,
    heads: bool = False,
    facts: Facts = Facts(),  # noqa: B008
) -> LinkModel:
    """An encoder to width `hidden` and a decoder; the initial weights depend on `seed` alone.

    `heads`: hidden layers get decoders of their own for lazy training.
    """
    encoder = build_encoder(config, num_features, config.hidden, False, seed, dtype, scores=False, facts=facts)

    def made() -> Decoder:
        return build_decoder(decoder, config.hidden, num_relations).to(dtype)

    with torch_seed(seed, "decoder"):
        last = made()
        return LinkModel(encoder, last, [made() for _ in encoder.layers[1:]] if heads else [])
