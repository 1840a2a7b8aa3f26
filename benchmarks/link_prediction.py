"""Link prediction by five methods on four real graphs, and what failures cost: tables of docs/benchmarks.md.

Each cell is one training run with one thread, two at a time in processes of their own; a call that was broken off goes
on where it was. Seeds draw everything anew: links, parts, weights, negatives. Needs FARFLUNG_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

METHODS = ("random-tma", "super-tma", "psgd-pa", "llcg", "centralised")
GRAPHS: dict[str, dict[str, Any]] = {
    "amazon_computers": {"symmetric": True},
    "coauthor_cs": {},
    "facebook_page_page": {"symmetric": True},
    "ca_astroph": {"features": "gaussian:64"},
}
SEEDS = 5
COMMON: dict[str, Any] = {
    "task": "link-prediction",
    "threads": 1,
    "steps": 300,
    "interval": "20steps",
    "split": "random:0.94/0.03/0.03",
    "model.hidden": 64,
    "optim.lr": 0.003,
    "sample.batch": 1024,
    "sample.fanouts": "10,10",
    "links.eval_negatives": 1000,
    "links.val_pairs": 1000,
}
FAILURES = ("random-tma", "super-tma", "psgd-pa")
FAILURE_SEEDS = 3


@dataclass(frozen=True)
class Cell:
    """One training run."""

    graph: str
    encoder: str
    method: str
    seed: int
    parts: int = 3
    faults: str = ""
    kind: str = "none"
    """Of failure: none, start (trainers missing from the start) or halfway (killed then)."""

    @property
    def name(self) -> str:
        return f"{self.graph}-{self.encoder}-{self.method}-{self.parts}-{self.kind}.seed{self.seed}"


def table_cells() -> list[Cell]:
    """Of the main table: all graphs with SAGE, amazon_computers with GCN and MLP too."""
    pairs = [(graph, "sage") for graph in GRAPHS] + [("amazon_computers", "gcn"), ("amazon_computers", "mlp")]
    return [Cell(g, e, m, s) for g, e in pairs for m in METHODS for s in range(SEEDS)]


def failure_cells() -> list[Cell]:
    """Of the failure table: 1 of 3 and 2 of 5 trainers missing from the start, or killed half-way."""
    half = COMMON["steps"] // int(COMMON["interval"].removesuffix("steps")) // 2
    cells = []
    for method in FAILURES:
        for seed in range(FAILURE_SEEDS):
            for parts, lost in ((3, 1), (5, 2)):
                for kind, since in (("none", None), ("start", 0), ("halfway", half)):
                    faults = "" if since is None else ", ".join(f"kill:{k}@{since}" for k in range(lost))
                    cells.append(Cell("amazon_computers", "sage", method, seed, parts, faults, kind))
    return cells


def train_cell(cell: Cell) -> dict[str, Any]:
    """Train one cell in this process; what the tables need of it."""
    from farflung.methods.presets import preset
    from farflung.partition.diagnosis import diagnose
    from farflung.run.config import flatten, resolve
    from farflung.run.train import execute

    options = {**COMMON, **GRAPHS[cell.graph], "graph": cell.graph, "method": cell.method, "seed": cell.seed}
    options |= {"encoder": cell.encoder}
    if cell.encoder == "mlp":
        del options["sample.fanouts"]  # it has no neighbours to draw
    if not preset(cell.method).procedure.whole:
        options["parts"] = cell.parts
    run = execute(resolve(flatten(options)), faults=cell.faults)
    rounds = [record for record in run.history if record.val and record.val["mrr"] is not None]
    best = max((record.val["mrr"] for record in rounds if record.val), default=None)
    reached = next((r.seconds for r in rounds if r.val and best is not None and r.val["mrr"] >= 0.99 * best), None)
    return {
        "test": run.test,
        "val": run.val,
        "kept": diagnose(run.partition).kept_share,
        "steps": sum(sum(record.steps.values()) for record in run.history),
        "seconds_to_99": reached,
        "virtual": run.metrics["seconds"]["virtual"],
        "wall": run.metrics["seconds"]["wall"],
        "training_bytes": run.metrics["training_bytes"],
        "links": run.metrics["links"],
    }


def make_cell(cell: Cell, file: Path) -> float:
    """Train one cell and write down its result, whole or not at all; returns the seconds that it took."""
    start = time.monotonic()
    result = {"cell": asdict(cell), **train_cell(cell)}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1))
    part.rename(file)
    return time.monotonic() - start


def warm_up() -> None:
    """Load the compiled kernels into a new process, so that no cell's clock counts it."""
    from farflung.run.config import flatten, resolve
    from farflung.run.train import execute

    small = {"graph": "digits", "method": "llcg", "steps": 1, "interval": "1steps", "links.eval_negatives": 10}
    for encoder in ("sage", "gcn"):
        execute(resolve(flatten({**COMMON, **small, "encoder": encoder})))


def run_cells(cells: Sequence[Cell], out: Path, jobs: int) -> int:
    """Train every cell that is not there, `jobs` at a time; returns how many failed."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not (out / f"{cell.name}.json").exists()]
    failed = 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=warm_up) as pool:
        started = {pool.submit(make_cell, cell, out / f"{cell.name}.json"): cell for cell in missing}
        for number, done in enumerate(as_completed(started), start=1):
            error = done.exception()
            failed += error is not None
            outcome = f"{done.result():.0f} s" if error is None else f"failed: {error}"
            print(f"[{number}/{len(missing)}] {started[done].name}: {outcome}", flush=True)
    return failed


def _spread(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    mean = scale * statistics.fmean(values)
    sd = f" ± {scale * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{sd}"


def _found(out: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    paths = [out / f"{cell.name}.json" for cell in cells]
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def main_table(out: Path) -> Iterator[str]:
    """MRR and the rest by graph, encoder and method."""
    yield "| graph | encoder | method | seeds | test MRR % | to centralised | kept edges | steps | s to 99 % | bytes |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    cells = table_cells()
    for graph, encoder in dict.fromkeys((c.graph, c.encoder) for c in cells):
        mine = [c for c in cells if (c.graph, c.encoder) == (graph, encoder)]
        base = _found(out, [c for c in mine if c.method == "centralised"])
        reference = statistics.fmean(r["test"]["mrr"] for r in base) if base else None
        for method in METHODS:
            found = _found(out, [c for c in mine if c.method == method])
            if not found:
                continue
            mrr = [r["test"]["mrr"] for r in found]
            to = "-" if reference is None else f"{100 * (statistics.fmean(mrr) - reference):+.2f}"
            yield (
                f"| {graph} | {encoder} | {method} | {len(found)} | {_spread(mrr, 100)} | {to} "
                f"| {statistics.fmean(r['kept'] for r in found):.3f} "
                f"| {statistics.fmean(r['steps'] for r in found):.0f} "
                f"| {_spread([r['seconds_to_99'] for r in found], digits=1)} "
                f"| {statistics.fmean(r['training_bytes'] for r in found) / 1e6:.1f} MB |"
            )


def failure_table(out: Path) -> Iterator[str]:
    """MRR lost by method, number of trainers and kind of failure; differences are within a seed."""
    yield "| method | trainers | lost | test MRR % undisturbed | missing from the start | killed half-way |"
    yield "|---|---|---|---|---|---|"
    cells = failure_cells()
    for method in FAILURES:
        for parts, lost in ((3, 1), (5, 2)):
            mrr: dict[str, dict[int, float]] = {}
            for cell in cells:
                if (cell.method, cell.parts) == (method, parts):
                    for record in _found(out, [cell]):
                        mrr.setdefault(cell.kind, {})[cell.seed] = record["test"]["mrr"]
            whole = mrr.get("none", {})
            if not whole:
                continue
            losses = [
                _spread([v - whole[s] for s, v in mrr.get(kind, {}).items() if s in whole] or [float("nan")], 100)
                for kind in ("start", "halfway")
            ]
            yield f"| {method} | {parts} | {lost} | {_spread(list(whole.values()), 100)} | {' | '.join(losses)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/link_prediction"))
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one thread each")
    parser.add_argument("--what", choices=("table", "failures"), default="table")
    parser.add_argument("--show", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch: large pages for large tensors
    start, failed = time.monotonic(), 0
    if not options.show:
        cells = table_cells() if options.what == "table" else failure_cells()
        failed = run_cells(cells, options.out, options.jobs)
        print(f"{options.what}: {(time.monotonic() - start) / 60:.1f} minutes\n")
    print("\n".join((main_table if options.what == "table" else failure_table)(options.out)))
    sys.exit(min(1, failed))


if __name__ == "__main__":
    main()
