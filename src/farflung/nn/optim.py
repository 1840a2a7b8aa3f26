"""The optimiser, the same for every method: Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn


class OptimConfig(BaseModel):
    """Adam, at the trainers (TMA) or at the server (lazy training)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(0.003, gt=0, description="learning rate of Adam (> 0)")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty added to the gradient (>= 0)")
    decay: Literal["all", "first"] = Field("all", description="layers that the penalty acts on: all, or the first")


def adam(config: OptimConfig, layers: Sequence[nn.Module], first: int = 0) -> torch.optim.Adam:
    """Adam over some consecutive `layers` of an encoder, of which the foremost is number `first`."""
    groups = [
        {
            "params": list(layer.parameters()),
            "weight_decay": config.weight_decay if config.decay == "all" or number == 0 else 0.0,
        }
        for number, layer in enumerate(layers, start=first)
    ]
    return torch.optim.Adam(groups, lr=config.lr, fused=True)
