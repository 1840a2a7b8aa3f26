"""METIS, run in a child process: a crash or a kill for lack of memory is an error here, no dead process."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from farflung.errors import FarflungError, InputError
from farflung.graph import Graph
from farflung.partition.undirected import undirected_csr

CHILD = Path(__file__).with_name("metis_child.py")
MANY_PARTS = 8
"""Up to this many parts METIS bisects recursively, which balances better; beyond it cuts k ways at once."""


class PartitionerError(FarflungError, RuntimeError):
    """METIS did not finish; the message names how it ended and what to do."""


def metis_parts(graph: Graph, num_parts: int, seed: int, balance: Literal["nodes", "edges"] = "nodes") -> np.ndarray:
    """Cut the graph, as an undirected one without loops and duplicates, into balanced parts, cutting few pairs.

    Args:
        graph: any graph; it stays as it is, METIS gets a symmetric, loop-free, coalesced copy.
        num_parts: 1..N.
        seed: any integer >= 0; one seed gives one result, whatever the number of threads.
        balance: what is balanced: nodes, or the degrees of nodes in that copy (at least 1 each).

    Returns:
        int32 [N], parts 0..num_parts-1; METIS may leave some empty on small graphs.

    Raises:
        InputError: more parts than nodes, or an edge that leads out of the graph.
        PartitionerError: the child process failed.
    """
    if not 1 <= num_parts <= graph.num_nodes:
        raise InputError(
            f"METIS: {num_parts} parts of graph '{graph.name}', which has {graph.num_nodes} nodes: "
            f"choose 1..{graph.num_nodes} parts"
        )
    if num_parts == 1:
        return np.zeros(graph.num_nodes, dtype=np.int32)
    indptr, indices = undirected_csr(graph)
    arrays = {"xadj": indptr, "adjncy": indices}
    if balance == "edges":
        arrays["vweights"] = np.maximum(np.diff(indptr), 1)
    recursive = num_parts <= MANY_PARTS
    parts = _run_child(arrays, [str(num_parts), str(seed % 2**31), str(int(recursive))])
    if parts.shape != (graph.num_nodes,) or parts.min() < 0 or parts.max() >= num_parts:
        raise PartitionerError("METIS: its result is no assignment of the graph's nodes: report it with the graph")
    return parts.astype(np.int32)


def _run_child(arrays: dict[str, np.ndarray], options: list[str]) -> np.ndarray:
    """Hand the arrays to the child as .npy files in a temporary folder and read its result."""
    try:
        with tempfile.TemporaryDirectory(prefix="farflung-metis-") as folder:
            for name, array in arrays.items():
                np.save(Path(folder, f"{name}.npy"), array, allow_pickle=False)
            done = subprocess.run(
                [sys.executable, "-P", str(CHILD), folder, *options],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
            )
            result = Path(folder, "parts.npy")
            if done.returncode != 0 or not result.exists():
                raise PartitionerError(_describe(done.returncode, done.stderr))
            return np.load(result, allow_pickle=False)
    except OSError as error:
        raise PartitionerError(
            f"METIS: its process could not be started or fed ({error}): free memory and temporary disk space, "
            "or cut with by='random'"
        ) from error


def _describe(code: int, stderr: str) -> str:
    """One sentence on how the child ended."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"was ended by {name}"
        if name == "SIGKILL":
            how += ", most likely for lack of memory"
    else:
        lines = [line.strip(" *") for line in stderr.splitlines() if line.strip()]
        lines = [line.strip(" *") for line in stderr.splitlines() if line.startswith("***")] or lines
        how = f"ended with exit code {code}" + (f" ({lines[-1]})" if lines else "")
    return f"METIS: its process {how}: use a machine with more memory, fewer clusters, or by='random'"
