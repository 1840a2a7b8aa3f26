"""All methods side by side: accuracy, bytes, and time on three kinds of links; the table of docs/benchmarks.md.

Runs `farflung compare` once per graph and encoder, two at a time with one thread each, and may be broken off and
started again: finished cells are kept. Needs FARFLUNG_DATA. Beside the measured ratio of bytes to synchronous training
stands that of the closed formulas. With `--check K` it trains K cells again, drawn at random, and compares them with
what is there.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.run.config import RunConfig, resolve
from formulas import formula_bytes

LINKS = ("datacentre", "wan", "proximity")
AVERAGING = "lazy=weights,interval=20steps"
TALKING = ["synchronous", "bns", "ggs"]
LAZY = [
    "retexo",
    "retexo[first=mlp]",
    f"retexo[{AVERAGING}]",
    f"retexo[{AVERAGING},wire=int8]",
]
METHODS = ["centralised", *TALKING, "psgd-pa", "llcg", "random-tma", "super-tma", *LAZY]
HETEROPHILOUS = [
    "centralised",
    "centralised[residual=true]",
    "synchronous",
    "synchronous[residual=true]",
    "retexo",
    "retexo[residual=true]",
    "retexo[first=mlp]",
    "retexo[first=mlp,residual=true]",
]


@dataclass(frozen=True)
class Grid:
    """One `farflung compare`."""

    graph: str
    encoder: str
    seeds: int
    options: tuple[str, ...]
    methods: tuple[str, ...] = tuple(METHODS)

    @property
    def name(self) -> str:
        return f"{self.graph}-{self.encoder}"

    def command(self, out: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "farflung", "compare", self.graph, "--methods", ",".join(self.methods)),
            *("--encoder", self.encoder, "--seeds", str(self.seeds), "--out", str(out / self.name), "--threads", "1"),
            *self.options,
        ]


SAGE = ("--steps", "200", "--hidden", "128", "--parts", "4")
WIDE = ("--steps", "400", "--hidden", "256", "--parts", "4")
NARROW = ("--steps", "200", "--hidden", "128", "--parts", "4")
REGIONS = ("--by", "given", "--set", "partition.given=region")
GRIDS = (
    Grid("amazon_computers", "gcn", 3, (*WIDE, "--symmetric", "--split", "random")),
    Grid("amazon_computers", "gat", 3, (*NARROW, "--symmetric", "--split", "random")),
    Grid("cora", "gcn", 3, (*WIDE, "--split", "retexo")),
    Grid("cora", "gat", 3, (*WIDE, "--split", "retexo")),
    Grid("amazon_computers", "sage", 5, (*SAGE, "--symmetric", "--split", "random")),
    Grid("tolokers", "sage", 5, (*SAGE, "--symmetric", "--split", "random")),
    Grid("pubmed", "sage", 5, (*SAGE, "--split", "retexo")),
    Grid("facebook_page_page", "sage", 3, (*SAGE, "--symmetric", "--split", "random")),
    Grid("twitch_regions", "sage", 3, (*SAGE[:4], "--symmetric", "--split", "random", *REGIONS)),
    Grid("minesweeper", "sage", 3, (*SAGE, "--symmetric", "--split", "random"), tuple(HETEROPHILOUS)),
    Grid("chameleon_filtered", "sage", 3, (*SAGE, "--symmetric", "--split", "random"), tuple(HETEROPHILOUS)),
)


def run(out: Path, jobs: int, only: str | None) -> int:
    """Train every cell that is not there; returns the largest exit code."""

    def one(grid: Grid) -> int:
        start = time.monotonic()
        done = subprocess.run(grid.command(out), stdout=subprocess.DEVNULL, check=False)
        print(f"{grid.name}: exit {done.returncode} after {time.monotonic() - start:.0f} s", flush=True)
        return done.returncode

    with ThreadPoolExecutor(jobs) as pool:
        return max(pool.map(one, [grid for grid in GRIDS if only in (None, grid.name)]), default=0)


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
        metric = there["result"]["metric"]
        print(f"{path.parent.parent.name} {path.stem}: {'equal' if same else 'DIFFERS'} {here['test'][metric]:.4f}")
    return wrong


def rows(out: Path) -> Iterator[str]:
    """The table in Markdown: the test metric in %, mean and sd (n - 1), and of the mean run bytes and seconds."""
    yield (
        "| graph | encoder | seeds | method | test % | to synchronous | training MB | times fewer (formula) | "
        + " | ".join(f"s to 99 %, {link}" for link in LINKS)
        + " |"
    )
    yield "|" + "---|" * (8 + len(LINKS))
    for grid in GRIDS:
        path = out / grid.name / "compare.json"
        if not path.exists():
            continue
        methods: list[dict[str, Any]] = json.loads(path.read_text())["methods"]
        formulas = formulas_of(grid, out)
        base = next(row for row in methods if row["label"] == "synchronous")
        for row in methods:
            test, label = row["test"], row["label"]
            sd = "" if test["sd"] is None else f" ± {100 * test['sd']:.2f}"
            fewer, by_formula = "", ""
            if row["training_bytes"]:
                fewer = f"{base['training_bytes'] / row['training_bytes']:,.1f}"
                by_formula = f" ({formulas['synchronous'] / formulas[label]:,.1f})" if label in formulas else ""
            seconds = " | ".join(_seconds(row["to_99"].get(link)) for link in LINKS)
            yield (
                f"| {grid.graph} | {grid.encoder} | {len(row['seeds'])} | {label} | {100 * test['mean']:.2f}{sd} "
                f"| {100 * (test['mean'] - base['test']['mean']):+.2f} | {row['training_bytes'] / 1e6:,.2f} "
                f"| {fewer}{by_formula} | {seconds} |"
            )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def formulas_of(grid: Grid, out: Path) -> dict[str, float]:
    """Training bytes by the closed formulas, mean over the seeds that there are; where there is a formula."""
    found: dict[str, list[int]] = {}
    for path in sorted((out / grid.name / "cells").glob("*.json")):
        cell = json.loads(path.read_text())
        config: RunConfig = resolve({}, file=_flat(cell["config"]))
        size = formula_bytes(config)
        if size is not None:
            found.setdefault(cell["label"], []).append(size)
    return {label: sum(sizes) / len(sizes) for label, sizes in found.items()}


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    from farflung.run.config import flatten

    return flatten(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--jobs", type=int, default=2, help="comparisons at a time, one thread each")
    parser.add_argument("--only", help="train one grid alone, e.g. amazon_computers-gcn")
    parser.add_argument("--check", type=int, metavar="K", help="train K random cells again and compare")
    parser.add_argument("--seed", type=int, default=0, help="which cells --check draws")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch: large pages for large tensors
    if options.check:
        sys.exit(min(1, check(options.out, options.check, options.seed)))
    start, code = time.monotonic(), 0
    if not options.table:
        code = run(options.out, options.jobs, options.only)
        print(f"whole table: {(time.monotonic() - start) / 60:.1f} minutes\n")
    print("\n".join(rows(options.out)))
    sys.exit(code)


if __name__ == "__main__":
    main()
