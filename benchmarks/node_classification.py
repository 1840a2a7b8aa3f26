"""Accuracy and bytes of five methods on five real graphs, GCN and SAGE: the table of docs/benchmarks.md.

Runs `farflung compare` once per graph and encoder, two at a time with one thread each, and may be broken off and
started again: finished cells are kept. Needs FARFLUNG_DATA. With `--check K` it trains K cells again, drawn at random,
and compares them with what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

METHODS = "centralised,retexo,random-tma,super-tma,psgd-pa"
COMMON = {"steps": "200", "hidden": "128", "threads": "1"}
GRAPHS: dict[str, tuple[list[str], int]] = {
    "cora": (["--split", "retexo"], 5),
    "pubmed": (["--split", "retexo"], 5),
    "amazon_computers": (["--split", "random", "--symmetric"], 5),
    "facebook_page_page": (["--split", "random", "--symmetric"], 3),
    "coauthor_cs": (["--split", "random"], 3),
}
ENCODERS = ("gcn", "sage")


def command(graph: str, encoder: str, out: Path) -> list[str]:
    """The `farflung compare` of one graph and encoder."""
    options, seeds = GRAPHS[graph]
    common = [part for name, value in COMMON.items() for part in (f"--{name}", value)]
    return [
        *(sys.executable, "-m", "farflung", "compare", graph, "--methods", METHODS, "--encoder", encoder),
        *("--seeds", str(seeds), "--out", str(out / f"{graph}-{encoder}"), *common, *options),
    ]


def run(out: Path, jobs: int) -> int:
    """Train every cell that is not there; returns the largest exit code."""
    grid = [(graph, encoder) for graph in reversed(GRAPHS) for encoder in ENCODERS]

    def one(cell: tuple[str, str]) -> int:
        start = time.monotonic()
        done = subprocess.run(command(*cell, out), stdout=subprocess.DEVNULL, check=False)
        print(f"{cell[0]} {cell[1]}: exit {done.returncode} after {time.monotonic() - start:.0f} s", flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        return max(pool.map(one, grid))


def check(out: Path, count: int, seed: int) -> int:
    """Train `count` cells again in a new place; returns how many differ in test metrics or training bytes."""
    cells = sorted(out.glob("*/cells/*.json"))
    wrong = 0
    for path in random.Random(seed).sample(cells, count):
        there = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.yaml"
            config.write_text(json.dumps(there["config"]))  # JSON is YAML
            again = Path(folder) / "run"
            subprocess.run(
                [sys.executable, "-m", "farflung", "train", "--config", str(config), "--out", str(again)],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            here = json.loads((again / "metrics.json").read_text())
        same = all(here[key] == there["result"][key] for key in ("test", "training_bytes"))
        wrong += not same
        print(f"{path.parent.parent.name} {path.stem}: {'equal' if same else 'DIFFERS'} {here['test']['accuracy']:.4f}")
    return wrong


def rows(out: Path) -> Iterator[str]:
    """The table in Markdown: accuracy in %, mean ± sd (n - 1), and training bytes of the mean run."""
    yield "| graph | seeds | encoder | method | test accuracy % | to centralised | training bytes | clock |"
    yield "|---|---|---|---|---|---|---|---|"
    for graph in GRAPHS:
        for encoder in ENCODERS:
            path = out / f"{graph}-{encoder}" / "compare.json"
            if not path.exists():
                continue
            methods: list[dict[str, Any]] = json.loads(path.read_text())["methods"]
            base = methods[0]["test"]["mean"]
            for row in methods:
                mean, sd = row["test"]["mean"], row["test"]["sd"]
                yield (
                    f"| {graph} | {len(row['seeds'])} | {encoder} | {row['label']} | {100 * mean:.2f} ± {100 * sd:.2f} "
                    f"| {100 * (mean - base):+.2f} | {row['training_bytes'] / 1e6:,.1f} MB "
                    f"| {row['seconds']['virtual']:.1f} s |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/node_classification"))
    parser.add_argument("--jobs", type=int, default=2, help="comparisons at a time, one thread each")
    parser.add_argument("--check", type=int, metavar="K", help="train K random cells again and compare")
    parser.add_argument("--seed", type=int, default=0, help="which cells --check draws")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch: large pages for large tensors
    if options.check:
        sys.exit(min(1, check(options.out, options.check, options.seed)))
    start, code = time.monotonic(), 0
    if not options.table:
        code = run(options.out, options.jobs)
        print(f"whole table: {(time.monotonic() - start) / 60:.1f} minutes\n")
    print("\n".join(rows(options.out)))
    sys.exit(code)


if __name__ == "__main__":
    main()
