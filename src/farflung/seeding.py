"""Random numbers by purpose.

Nothing here or elsewhere in Farflung depends on the state of a global generator or changes it: each draw has a seed
derived from (run seed, purpose, place), so that a run repeats to the bit and no component disturbs another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str, *place: int) -> int:
    """A 63-bit seed for `purpose` at `place` (layer, round, trainer, step: whatever applies).

    Equal on every machine, Python version and process.
    """
    text = f"{seed}/{purpose}/" + "/".join(str(p) for p in place)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """A NumPy generator for `purpose` at `place`."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *place)))


@contextmanager
def torch_seed(seed: int, purpose: str, *place: int) -> Iterator[None]:
    """Seed torch's global generator inside the block and give it back untouched afterwards.

    For the one place where PyTorch knows no other generator: the initial weights of modules.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(derive(seed, purpose, *place))
        yield
