"""How many CPU threads a run computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def cpu_threads(threads: int | None) -> Iterator[int]:
    """Compute with so many threads inside the block (None: as PyTorch is set); gives their number."""
    import numba

    before, compiled_before = torch.get_num_threads(), numba.get_num_threads()
    threads = before if threads is None else threads
    try:
        torch.set_num_threads(threads)
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        yield threads
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(compiled_before)
