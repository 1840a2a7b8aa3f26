"""Farflung: graph neural networks on graphs that are spread out, trained with almost no network traffic.

    import farflung

    graph = farflung.load("digits")
    parts = farflung.cut(graph, by="random", parts=4)
    run = farflung.train(parts, method="retexo", steps=400)
    print(run.test["accuracy"], run.ledger.by_kind())

Everything here is imported on first use: `import farflung` alone loads neither PyTorch nor Numba.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farflung.graph import Graph, load
    from farflung.graph.pyg import from_pyg, to_pyg
    from farflung.partition import Partition
    from farflung.partition.partition import partition as cut
    from farflung.run.compare import compare
    from farflung.run.train import Run, train

# PyTorch and Numba have a pool of threads each. Threads that spin while they wait take the cores from the other pool,
# which costs half the speed; the policy is read when PyTorch is loaded, so it is set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_WHERE = {
    "Graph": "farflung.graph:Graph",
    "Partition": "farflung.partition:Partition",
    "Run": "farflung.run.train:Run",
    "compare": "farflung.run.compare:compare",
    "cut": "farflung.partition.partition:partition",
    "from_pyg": "farflung.graph.pyg:from_pyg",
    "load": "farflung.graph:load",
    "to_pyg": "farflung.graph.pyg:to_pyg",
    "train": "farflung.run.train:train",
}

__all__ = ["Graph", "Partition", "Run", "compare", "cut", "from_pyg", "load", "to_pyg", "train"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'farflung' has no attribute '{name}': it has {', '.join(__all__)}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
