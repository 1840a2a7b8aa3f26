"""A module's state as one flat vector: what crosses the network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn


def pack(module: nn.Module) -> np.ndarray:
    """Parameters and buffers in the order of `state_dict`, [P], in their own dtype. A copy."""
    return pack_state(module.state_dict())


def pack_state(state: Mapping[str, torch.Tensor]) -> np.ndarray:
    """Named tensors in their order, as `pack` of the module that they are the state of."""
    tensors = [value.detach().reshape(-1) for value in state.values()]
    return torch.cat(tensors).cpu().numpy() if tensors else np.empty(0, dtype=np.float32)


def unpack(module: nn.Module, vector: np.ndarray) -> dict[str, torch.Tensor]:
    """A flat vector as named tensors shaped like `module`'s state; copies. Raises ValueError on another length."""
    tensors = module.state_dict()
    _check_length(vector, sum(value.numel() for value in tensors.values()))
    state, at = {}, 0
    for name, value in tensors.items():
        state[name] = torch.from_numpy(vector[at : at + value.numel()].copy()).reshape(value.shape)
        at += value.numel()
    return state


def load(module: nn.Module, vector: np.ndarray) -> None:
    """Set a module's state from a flat vector."""
    module.load_state_dict(unpack(module, vector))


def pack_gradients(module: nn.Module) -> np.ndarray:
    """Gradients of all parameters in order, zeros where there is none, [P]. A copy."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    return torch.cat([g.reshape(-1) for g in grads]).cpu().numpy()


def set_gradients(module: nn.Module, vector: np.ndarray) -> None:
    """Set the gradients of all parameters from a flat vector [P]. Raises ValueError on another length."""
    _check_length(vector, sum(parameter.numel() for parameter in module.parameters()))
    at = 0
    for parameter in module.parameters():
        part = vector[at : at + parameter.numel()]
        parameter.grad = torch.from_numpy(part.copy()).reshape(parameter.shape).to(parameter.dtype)
        at += parameter.numel()


def _check_length(vector: np.ndarray, expected: int) -> None:
    if len(vector) != expected:
        raise ValueError(f"a vector of {len(vector)} numbers does not fit a module of {expected}")
