"""How a round of lazy training moves a layer's weights: by one gradient, or by averaging over an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from farflung.methods.aggregate import aggregator, summed
from farflung.methods.base import Setting
from farflung.methods.budget import mean_loss
from farflung.methods.config import Seconds, Steps
from farflung.nn import flat
from farflung.nn.optim import adam
from farflung.team import Reply


class Mode(Protocol):
    """The server's side of a layer's rounds. `sizes`: training nodes, or pairs, n_k of each trainer."""

    verb: str
    """What trainers are asked."""
    sends: str
    """The array that they answer with."""

    def scalars(self, interval: Steps | Seconds, total: int) -> Mapping[str, Any]:
        """What they must know for a round: its `interval`, or the training nodes of all."""

    def update(self, layer: nn.Module, done: Sequence[Reply], sizes: Mapping[int, int]) -> None:
        """Move the layer's weights by the answers of those that count; without training nodes they stay."""

    def loss(self, done: Sequence[Reply], sizes: Mapping[int, int]) -> float | None:
        """Mean loss over the training nodes of those that count; None where there are none."""


def mode_of(setting: Setting, number: int, layer: nn.Module) -> Mode:
    """The mode that the options name, with fresh optimisers for layer `number`."""
    return Averaging(setting) if setting.train.lazy == "weights" else Gradients(setting, number, layer)


class Gradients:
    """RETEXO's: a gradient of each trainer per round, and one Adam, which is the server's."""

    verb, sends = "gradient", "gradients"

    def __init__(self, setting: Setting, number: int, layer: nn.Module) -> None:
        self.optim = setting.optim
        self.optimiser = adam(setting.optim, [layer], first=number)
        self.made = 0
        self.total = 0

    def scalars(self, interval: Steps | Seconds, total: int) -> Mapping[str, Any]:
        """`of`: each gradient is of the share n_k / n of the loss."""
        self.total = total
        return {"of": total}

    def update(self, layer: nn.Module, done: Sequence[Reply], sizes: Mapping[int, int]) -> None:
        """One step on the gradient of the mean loss over the training nodes present. For `clip_from` it is an epoch."""
        present = sum(sizes[reply.trainer] for reply in done)
        if not present:
            return
        flat.set_gradients(layer, summed([reply.arrays["gradients"] for reply in done], self.total / present))
        self.made += 1
        if self.optim.clip is not None and self.made >= self.optim.clip_from:
            torch.nn.utils.clip_grad_norm_(layer.parameters(), self.optim.clip)
        self.optimiser.step()

    def loss(self, done: Sequence[Reply], sizes: Mapping[int, int]) -> float | None:
        """The shares that trainers reported, rescaled to those present."""
        present = sum(sizes[reply.trainer] for reply in done)
        losses = [reply.scalars["loss"] for reply in done if reply.scalars["loss"] is not None]
        return sum(losses) * self.total / present if present else None


class Averaging:
    """TMA's inside a layer: every trainer steps its own Adam for an interval, then the weights are aggregated."""

    verb, sends = "train", "weights"

    def __init__(self, setting: Setting) -> None:
        self.combine = aggregator(setting.train)

    def scalars(self, interval: Steps | Seconds, total: int) -> Mapping[str, Any]:
        """The interval alone."""
        return {"interval": str(interval)}

    def update(self, layer: nn.Module, done: Sequence[Reply], sizes: Mapping[int, int]) -> None:
        """Aggregate the trainers' weights."""
        vectors = [reply.arrays["weights"] for reply in done]
        examples = [sizes[reply.trainer] for reply in done]
        flat.load(layer, self.combine(flat.pack(layer), vectors, examples))

    def loss(self, done: Sequence[Reply], sizes: Mapping[int, int]) -> float | None:
        """The mean of the trainers' losses by their training nodes."""
        return mean_loss((reply.scalars["loss"], sizes[reply.trainer]) for reply in done)
