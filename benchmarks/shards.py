"""Speed and memory of cutting a large graph into shards: edges per second, and growth of the resident set.

    python benchmarks/shards.py                       # 10M directed edges, 64 features, 4 random parts
    python benchmarks/shards.py --edges 1000000 --out shards.json

The growth is the peak while shards are made, less what the process held before, compared with the graph's
own size (bytes of its arrays). The compiled loops are warmed up on a small graph of the same types first.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from farflung.graph import Graph, load
from farflung.partition import PartitionConfig, assign, build_shards, setup_bytes

TIMES_GRAPH_ALLOWED = 3.0


def main() -> None:
    """Run the benchmark, print it as text and as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--edges", type=int, default=10_000_000, help="directed edges, about")
    parser.add_argument("--degree", type=int, default=20, help="mean in-degree")
    parser.add_argument("--features", type=int, default=64, help="features per node (float32)")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    result = measure(options.edges, options.degree, options.features, options.parts, options.seed)
    print(
        f"{result['edges']:,} edges, {result['nodes']:,} nodes, {options.parts} parts: "
        f"{result['seconds']:.2f} s, {result['edges_per_second'] / 1e6:.1f}M edges/s, "
        f"peak growth {result['peak_growth_bytes'] / 1e6:.0f} MB = {result['peak_growth_times_graph']:.2f} x "
        f"the graph's {result['graph_bytes'] / 1e6:.0f} MB (allowed: {TIMES_GRAPH_ALLOWED:.0f} x)"
    )
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


def measure(edges: int, degree: int, features: int, parts: int, seed: int) -> dict[str, Any]:
    """Cut one graph by a random assignment and measure it."""
    warm = _block_model(1_000, degree, features, seed)
    build_shards(warm, assign(warm, PartitionConfig(parts=parts), seed), parts)
    graph = _block_model(edges // degree, degree, features, seed)
    _return_free_memory()
    reset = _reset_peak()
    before = _resident()
    start = time.perf_counter()
    assignment = assign(graph, PartitionConfig(parts=parts), seed)
    assigned = time.perf_counter()
    shards = build_shards(graph, assignment, parts)
    seconds = time.perf_counter() - assigned
    growth = _peak() - before
    size = sum(array.nbytes for array in _arrays(graph))
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": features,
        "parts": parts,
        "assign_seconds": assigned - start,
        "seconds": seconds,
        "edges_per_second": graph.num_edges / seconds,
        "graph_bytes": size,
        "shard_bytes": sum(setup_bytes(shard) for shard in shards),
        "peak_growth_bytes": growth,
        "peak_growth_times_graph": growth / size,
        "peak_is_exact": reset,
        "halo_ratio": sum(shard.num_halo for shard in shards) / graph.num_nodes,
    }


def _block_model(nodes: int, degree: int, features: int, seed: int) -> Graph:
    return load(f"sbm:nodes={nodes},classes=10,degree={degree},homophily=0.8,features={features},seed={seed}")


def _arrays(graph: Graph) -> Iterator[np.ndarray]:
    yield graph.indptr
    yield graph.indices
    for array in (*graph.features, graph.y, graph.ids, graph.node_type, graph.edge_type, graph.edge_weight):
        if isinstance(array, np.ndarray):
            yield array


def _return_free_memory() -> None:
    """Give back what making the graph freed, so that reusing it does not hide growth (glibc only)."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> bool:
    """Set the kernel's peak of this process back to what it holds now; False where that is not possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _resident() -> int:
    return _status("VmRSS") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _peak() -> int:
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(key: str) -> int:
    """A figure of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


if __name__ == "__main__":
    main()
