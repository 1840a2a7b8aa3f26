"""Lazy training that averages weights every 5, 20 and 50 steps against a gradient per step: accuracy and bytes.

One `farflung compare` per graph, resumable; the table of docs/benchmarks.md. Needs FARFLUNG_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GRAPHS: dict[str, list[str]] = {
    "cora": ["--split", "retexo"],
    "pubmed": ["--split", "retexo"],
    "amazon_computers": ["--split", "random", "--symmetric"],
}
INTERVALS = (5, 20, 50)
SEEDS = 5
COMMON = ["--steps", "200", "--hidden", "128", "--threads", "1", "--encoder", "sage"]


def labels() -> list[str]:
    """The compared methods: a gradient per step, and averages of weights, uniform and by training nodes."""
    averaging = [f"retexo[lazy=weights,interval={n}steps]" for n in INTERVALS]
    weighted = [f"retexo[lazy=weights,interval={INTERVALS[1]}steps,aggregation=examples]"]
    return ["centralised", "retexo", *averaging, *weighted]


def run(graph: str, out: Path) -> int:
    """Train what is not there; the exit code."""
    command = [sys.executable, "-m", "farflung", "compare", graph, "--methods", ",".join(labels())]
    done = subprocess.run([*command, "--seeds", str(SEEDS), "--out", str(out / graph), *COMMON, *GRAPHS[graph]])
    return done.returncode


def rows(out: Path) -> Iterator[str]:
    """The table in Markdown; exchanges and weights apart, since only the weights shrink."""
    yield "| graph | method | test accuracy % | to gradients | exchanges | weights and gradients | rounds |"
    yield "|---|---|---|---|---|---|---|"
    for graph in GRAPHS:
        path = out / graph / "compare.json"
        if not path.exists():
            continue
        methods = {row["label"]: row for row in json.loads(path.read_text())["methods"]}
        base = methods["retexo"]["test"]["mean"]
        for label, row in methods.items():
            mean, sd, sent = row["test"]["mean"], row["test"]["sd"], row["bytes"]
            rows_sent = sent.get("features", 0) + sent.get("embeddings", 0)
            weights = sent.get("weights", 0) + sent.get("gradients", 0)
            yield (
                f"| {graph} | {label} | {100 * mean:.2f} ± {100 * sd:.2f} | {100 * (mean - base):+.2f} "
                f"| {rows_sent / 1e6:,.1f} MB | {weights / 1e6:,.1f} MB | {row['rounds']:.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/lazy_averaging"))
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch: large pages for large tensors
    code = 0 if options.table else max(run(graph, options.out) for graph in GRAPHS)
    print("\n".join(rows(options.out)))
    sys.exit(code)


if __name__ == "__main__":
    main()
