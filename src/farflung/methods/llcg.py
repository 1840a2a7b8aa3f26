"""LLCG, learn locally, correct globally (Ramezani et al., arXiv 2111.08202): PSGD-PA and, after each mean, some steps
of the server on the whole graph.

It needs a server that holds all data: every part goes there once, counted as `setup`.
"""

from __future__ import annotations

import numpy as np

from farflung.methods import tma
from farflung.methods.base import Setting
from farflung.methods.config import Steps
from farflung.team import Message


def train(setting: Setting) -> None:
    """TMA with `correction_steps` steps after each mean, by the server's own optimiser; without any it is TMA."""
    steps = setting.train.correction_steps
    if steps == 0:
        tma.train(setting)
        return

    broken = False

    def correct(weights: np.ndarray, round: int) -> np.ndarray:
        nonlocal broken
        scalars = {"interval": str(Steps(n=steps)), "round": round, "reset": broken}
        answer = setting.team.at_server(Message("train", scalars, {"weights": weights}))
        corrected = answer.arrays["weights"]
        broken = not (answer.scalars["finite"] and np.isfinite(corrected).all())
        return weights if broken else corrected

    tma.train(setting, correct)
