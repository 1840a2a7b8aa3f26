"""The optimiser, the same for every method: Adam."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn


class OptimConfig(BaseModel):
    """Adam, at the trainers (TMA) or at the server (lazy training)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(0.003, gt=0, description="learning rate of Adam (> 0)")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty added to the gradient (>= 0)")
    decay: Literal["all", "first"] = Field("all", description="layers that the penalty acts on: all, or the first")
    clip: float | None = Field(None, gt=0, description="largest norm of the gradient (> 0); None: no limit")
    clip_from: int = Field(1, ge=1, description="epoch from which the norm is limited; the first is 1")


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


MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam remembers of each parameter."""


def pack_moments(optimiser: torch.optim.Adam) -> dict[str, np.ndarray]:
    """Adam's two moments as flat vectors [P], named `weights/<moment>` (they cross the network with the weights).

    They are corrected for their bias towards zero, so that those of trainers with other numbers of steps compare. None
    before the first step.
    """
    states = [optimiser.state.get(p, {}) for group in optimiser.param_groups for p in group["params"]]
    if not all(states):
        return {}
    betas = optimiser.param_groups[0]["betas"]
    return {
        f"weights/{name}": torch.cat([s[name].reshape(-1) / (1 - beta ** float(s["step"])) for s in states])
        .cpu()
        .numpy()
        for name, beta in zip(MOMENTS, betas, strict=True)
    }


def load_moments(optimiser: torch.optim.Adam, arrays: Mapping[str, np.ndarray]) -> None:
    """Set Adam's moments from what `pack_moments` made, where `arrays` has them; the count of steps stays its own.

    An optimiser that made no step yet leaves them aside: its first step makes moments of its own.
    """
    for name, beta in zip(MOMENTS, optimiser.param_groups[0]["betas"], strict=True):
        vector, at = arrays.get(f"weights/{name}"), 0
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                state = optimiser.state.get(parameter)
                if vector is None or not state:
                    continue
                part = torch.from_numpy(vector[at : at + parameter.numel()].copy())
                state[name].copy_(part.reshape(parameter.shape) * (1 - beta ** float(state["step"])))
                at += parameter.numel()
