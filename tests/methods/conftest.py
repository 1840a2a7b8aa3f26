"""One thread: these graphs are too small for more, and other runs on the machine cannot slow a waiting thread."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])
