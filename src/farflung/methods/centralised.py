"""Centralised full-batch training: one trainer that holds the whole graph, beside the server. Nothing is sent."""

from __future__ import annotations

from farflung.methods import tma
from farflung.methods.base import Setting


def train(setting: Setting) -> None:
    """TMA with one trainer on a co-located team: an average of one vector is that vector, to the bit."""
    if setting.team.size != 1:
        raise ValueError(f"centralised training takes one trainer, the team has {setting.team.size}")
    tma.train(setting)
