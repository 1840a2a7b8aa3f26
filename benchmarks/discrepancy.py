"""Gradient discrepancy against the number of super-nodes: the figure docs/images/discrepancy.png.

    python benchmarks/discrepancy.py                  # two graphs, 3 parts, 5 seeds; needs matplotlib and FARFLUNG_DATA

SuperTMA deals N super-nodes out to M trainers (arXiv 2305.09887). With N = M each trainer gets one cluster, as in
min-cut; with N = |V| it is RandomTMA. At common initial weights, *bias* is how far the mean of the trainers' gradients
is from that of the whole graph, *spread* how far they are from each other; both are shares of that gradient's norm.
Seeds draw partitions; split and weights stay. Prints the table, mean and standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farflung.graph import Graph, choose_split, load
from farflung.nn import ModelConfig
from farflung.partition import Partition, partition
from farflung.run.discrepancy import gradient_discrepancy

GRAPHS = ("cora", "amazon_computers")
PARTS = 3
MODEL = ModelConfig(encoder="sage", layers=2, hidden=128)
MEASURES = {"bias": "#b5521b", "spread": "#1f5fa8"}
"""What is drawn, and its colour."""


@dataclass(frozen=True)
class Point:
    """One way to cut, over the seeds."""

    label: str
    super_nodes: int
    kept: np.ndarray
    """Share of edges within parts, [seeds]."""
    bias: np.ndarray
    spread: np.ndarray


def main() -> None:
    """Measure, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/discrepancy.png"))
    parser.add_argument("--seeds", type=int, default=5, help="partitions of each kind (>= 1)")
    parser.add_argument("--points", type=int, default=9, help="numbers of super-nodes from M to |V| (>= 2)")
    options = parser.parse_args()
    plot = _matplotlib()
    curves = {}
    print("| graph | parts from | super-nodes | edges kept % | bias % | spread % |")
    print("|---|---|---|---|---|---|")
    for name in GRAPHS:
        graph = choose_split(load(name, symmetric=True), "random", 0)
        points = []
        for point in measure(graph, options.points, options.seeds):
            points.append(point)
            shares = " | ".join(f"{_percent(getattr(point, key))}" for key in ("kept", *MEASURES))
            print(f"| {name} | {point.label} | {point.super_nodes:,} | {shares} |", flush=True)
        curves[name] = points
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(plot, curves, options.out)
    print(f"\n{options.out}")


def measure(graph: Graph, points: int, seeds: int) -> Iterator[Point]:
    """Min-cut parts, then super-nodes on a logarithmic grid from M to |V|, then random parts."""
    n = graph.num_nodes
    grid = np.unique(np.geomspace(PARTS, n, points).round().astype(int))
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("mincut", PARTS, {"by": "mincut"}),
        *(("supernode", int(clusters), {"by": "supernode", "clusters": int(clusters)}) for clusters in grid),
        ("random", n, {"by": "random"}),
    ]
    for label, super_nodes, how in ways:
        found = [_shares(graph, partition(graph, parts=PARTS, seed=seed, **how)) for seed in range(seeds)]
        yield Point(label, super_nodes, *np.array(found).T)


def _shares(graph: Graph, parts: Partition) -> tuple[float, float, float]:
    """Edges kept, bias and spread as shares of all edges and of the whole gradient's norm."""
    found = gradient_discrepancy(graph, parts, MODEL, seed=0)
    assert found is not None
    kept = (parts.assignment[graph.indices] == parts.assignment[graph.destinations()]).mean()
    return float(kept), found.bias / found.norm, found.spread / found.norm


def draw(plot: Any, curves: dict[str, list[Point]], path: Path) -> None:
    """One panel per graph: lines over super-nodes with a band of one standard deviation, the other cuts as rings."""
    style = {"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}
    with plot.rc_context(style):
        figure, panels = plot.subplots(1, len(curves), figsize=(9.6, 4.2), sharey=True, layout="constrained")
        for panel, (name, points) in zip(panels, curves.items(), strict=True):
            line = [point for point in points if point.label == "supernode"]
            at = [point.super_nodes for point in line]
            for key, colour in MEASURES.items():
                values = np.array([getattr(point, key) for point in line]) * 100
                mean, sd = values.mean(axis=1), _sd(values)
                panel.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
                panel.plot(at, mean, color=colour, marker="o", markersize=4, linewidth=1.8, label=key)
                for point in points:
                    if point.label != "supernode":
                        y = 100 * getattr(point, key).mean()
                        panel.plot(point.super_nodes, y, "o", ms=10, mfc="none", mec=colour, mew=1.6)
            panel.set_xscale("log")
            panel.set_ylim(bottom=0)
            panel.grid(axis="y", color="#dddddd", linewidth=0.8)
            panel.set_title(f"{name}: {at[-1]:,} nodes", loc="left")
            panel.set_xlabel("super-nodes N (left: N = M, right: N = |V|)")
        panels[0].set_ylabel("% of the gradient's norm")
        handles = panels[0].get_legend_handles_labels()[0]
        ring = plot.Line2D([], [], marker="o", ms=10, mfc="none", mec="#555555", mew=1.6, linestyle="none")
        panels[0].legend([*handles, ring], [*MEASURES, "min-cut parts, random parts"], frameon=False)
        figure.savefig(path, dpi=200, facecolor="white")


def _percent(values: np.ndarray) -> str:
    return f"{100 * values.mean():.1f} ± {100 * float(_sd(values)):.1f}"


def _sd(values: np.ndarray) -> np.ndarray:
    """Standard deviation (n - 1) over the last axis; 0 of a single value."""
    return values.std(axis=-1, ddof=min(1, values.shape[-1] - 1))


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("this figure needs matplotlib, which is not installed: pip install matplotlib") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plot

    return plot


if __name__ == "__main__":
    main()
