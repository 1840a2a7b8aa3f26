"""Training bytes at Reddit's proportions, extended to 400 steps, against the published ones of RETEXO's authors.

    python benchmarks/reddit_bytes.py                        # all methods and both encoders
    python benchmarks/reddit_bytes.py --encoders gcn --out reddit_bytes.json

The graph is a block model with Reddit's 232,965 nodes, 602 features and 41 classes, but far fewer edges: its mean
degree is such that with 4 random parts 73 to 75 % of all nodes are in each part's halo. Every method is trained for 2
and for 4 rounds (lazy training: of each layer). By the ledger every round of a phase must take the same bytes, 4 rounds
must add to 2 what 2 add, and both must equal the closed formulas of docs/methods.md to the byte; on that ground the
ledger is extended: to 400 steps, lazy training to 400 of each layer, which is what the published bytes fit; and, for
ratios at equal optimisation, lazy training to 200 of each layer, as many steps in all as the others make.

It is counted as the authors of arXiv 2302.13053 do: per worker, sent plus received, without the initial and the best
model's broadcasts. This checks that ledger and formulas are consistent with their figures; it does not reproduce them:
the share of halo nodes and the number of steps are fitted, not read there.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farflung import cut, train
from farflung.graph import Graph, load
from farflung.methods.presets import preset
from farflung.partition import Partition
from farflung.team import SERVER, TRAINING_KINDS, Ledger

NODES, FEATURES, HIDDEN, CLASSES, PARTS, STEPS = 232_965, 602, 256, 41, 4, 400
SPLIT = "random:0.05/0.02/0.93"
"""Few train or validate: bytes do not depend on how many."""
HALO = (0.73, 0.75)
"""Share of all nodes that is in a part's halo, fitted to the published bytes."""
TOLERANCE = 0.03
PUBLISHED = {
    ("synchronous", "gcn"): 2.85e11,
    ("synchronous", "sage"): 2.85e11,
    ("bns", "gcn"): 2.94e10,
    ("bns", "sage"): 3.0e10,
    ("retexo", "gcn"): 1.79e9,
    ("retexo", "sage"): 2.27e9,
}
"""Bytes per worker on Reddit, arXiv 2302.13053."""
AVERAGED = "retexo, averaged every 20 steps, int8"
INTERVAL, SHORT_INTERVAL = 20, 2
"""Steps between averagings: of the training that the ledger is extended to, and here, where a round sends the same."""
LEAST_RATIO = 700.0
"""Of synchronous to `AVERAGED`, that has to be there."""


@dataclass(frozen=True)
class Case:
    """A method as it is run here."""

    method: str
    """`AVERAGED`, or the name of a preset."""
    encoder: str

    @property
    def lazy(self) -> bool:
        return self.method not in ("synchronous", "bns")

    def options(self, rounds: int) -> dict[str, Any]:
        """Options of a run of so many rounds; lazy: of each of two layers."""
        common: dict[str, Any] = {
            "encoder": self.encoder, "layers": 2, "hidden": HIDDEN, "split": SPLIT, "keep": "last", "dropout": 0.0,
        }  # fmt: skip
        if self.method == AVERAGED:
            each = {"lazy": "weights", "interval": f"{SHORT_INTERVAL}steps", "wire": "int8"}
            return {**common, "method": "retexo", "steps": 2 * SHORT_INTERVAL * rounds, **each}
        if self.lazy:
            return {**common, "method": "retexo", "steps": 2 * rounds}
        return {**common, "method": self.method, "steps": rounds, "interval": "1steps"}

    @property
    def rounds(self) -> int:
        """Rounds of a training as published: 400 steps; lazy: of each layer."""
        return STEPS // INTERVAL if self.method == AVERAGED else STEPS

    @property
    def equal_rounds(self) -> int:
        """Rounds of a training of 400 steps in all; lazy: half of them for each layer."""
        return self.rounds // 2 if self.lazy else self.rounds


def reddit(nodes: int, degree: float, seed: int) -> Graph:
    """A block model of Reddit's widths."""
    return load(f"sbm:nodes={nodes},classes={CLASSES},degree={degree:g},homophily=0.8,features={FEATURES},seed={seed}")


def per_worker(ledger: Ledger) -> dict[str, float]:
    """Training bytes by kind as the authors count them: per worker, sent plus received."""
    table = ledger.table()
    ends = (table["sender"] != SERVER).astype(np.int64) + (table["receiver"] != SERVER)
    sums = {kind: int((ends * table["bytes"])[table["kind"] == kind].sum()) for kind in TRAINING_KINDS}
    return {kind: total / PARTS for kind, total in sums.items() if total}


def check_rounds(ledger: Ledger) -> None:
    """Raise where two rounds of a phase differ in bytes of a kind; what is sent once is a phase of its own."""
    table = ledger.table()
    found: dict[tuple[str, str], dict[int, int]] = {}
    for round, phase, kind, size in zip(*(table[name] for name in ("round", "phase", "kind", "bytes")), strict=True):
        if kind in TRAINING_KINDS:
            rounds = found.setdefault((str(phase), str(kind)), {})
            rounds[int(round)] = rounds.get(int(round), 0) + int(size)
    for place, rounds in found.items():
        if len(set(rounds.values())) != 1:
            raise SystemExit(f"rounds of {place} differ in bytes: {rounds}")


def extended(rounds: int, two: Mapping[str, float], four: Mapping[str, float]) -> dict[str, float]:
    """Bytes of a training of so many rounds by kind, from those of 2 and of 4."""
    return {kind: two[kind] + (four[kind] - two[kind]) / 2 * (rounds - 2) for kind in four}


def formula(case: Case, halos: np.ndarray, rounds: int) -> float:
    """The same in closed form. `halos` [M, M]: nodes of each owner in each part's halo."""
    matrices = 2 if case.encoder == "sage" else 1
    first = matrices * FEATURES * HIDDEN + HIDDEN + 2 * HIDDEN
    last = matrices * HIDDEN * CLASSES + CLASSES
    b = int(halos.sum())
    if not case.lazy:
        drawn = int((-(-halos // 10)).sum()) if case.method == "bns" else b
        rows = 4 * b * FEATURES + 8 * rounds * drawn * HIDDEN
        return (2 * rows + 8 * PARTS * rounds * (first + last)) / PARTS
    head = HIDDEN * CLASSES + CLASSES
    row = (FEATURES + 8) + (HIDDEN + 8) if case.method == AVERAGED else 4 * (FEATURES + HIDDEN)
    return (2 * b * row + 8 * PARTS * rounds * (first + head + last)) / PARTS


def measure(case: Case, partition: Partition, halos: np.ndarray) -> dict[str, Any]:
    """Train for 2 and 4 rounds, check what the ledger says of them, extend it."""
    start, found = time.perf_counter(), {}
    for rounds in (2, 4):
        ledger = train(partition, **case.options(rounds)).ledger
        check_rounds(ledger)
        found[rounds] = per_worker(ledger)
        gc.collect()
    for rounds in {case.rounds, case.equal_rounds}:
        found[rounds] = extended(rounds, found[2], found[4])
    for rounds, sizes in found.items():
        if sum(sizes.values()) != formula(case, halos, rounds):
            raise SystemExit(f"{case}, {rounds} rounds: {sizes} do not add up to {formula(case, halos, rounds)}")
    published = PUBLISHED.get((case.method, case.encoder)) if len(partition.assignment) == NODES else None
    total = sum(found[case.rounds].values())
    return {
        "method": case.method,
        "encoder": case.encoder,
        "by_kind": {str(rounds): sizes for rounds, sizes in found.items()},
        "bytes": total,
        "formula": formula(case, halos, case.rounds),
        "equal": sum(found[case.equal_rounds].values()),
        "published": published,
        "deviation": None if published is None else total / published - 1,
        "seconds": time.perf_counter() - start,
    }


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of synchronous training and of BNS to each other method: as published, published, and at equal steps."""
    of = {(row["method"], row["encoder"]): row for row in rows}
    return [
        {
            "ratio": f"{over} / {method}",
            "encoder": encoder,
            "measured": base["bytes"] / row["bytes"],
            "published": None if row["published"] is None else base["published"] / row["published"],
            "equal": base["equal"] / row["equal"],
        }
        for over in ("synchronous", "bns")
        for (method, encoder), row in of.items()
        if method not in ("synchronous", over) and (base := of.get((over, encoder))) is not None
    ]


def table(rows: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """Both in Markdown."""
    lines = [
        "| method | encoder | bytes per worker, 400 steps (a layer) | published | deviation | 400 steps in all | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        known = row["published"] is not None
        published, deviation = (f"{row['published']:.3g}", f"{row['deviation']:+.1%}") if known else ("-", "-")
        cells = (row["method"], row["encoder"], f"{row['bytes']:.4g}", published, deviation, f"{row['equal']:.4g}")
        lines.append(f"| {' | '.join(cells)} | {row['seconds']:.0f} |")
    lines += ["", "| ratio | encoder | 400 steps (a layer) | published | 400 steps in all |", "|---|---|---|---|---|"]
    for one in found:
        published = "-" if one["published"] is None else f"{one['published']:.0f}"
        figures = f"{one['measured']:,.1f} | {published} | {one['equal']:,.1f}"
        lines.append(f"| {one['ratio']} | {one['encoder']} | {figures} |")
    return "\n".join(lines)


def missed(rows: list[dict[str, Any]], found: list[dict[str, Any]], halo: np.ndarray) -> list[str]:
    """What is not as it has to be."""
    wrong = []
    if not (HALO[0] <= halo.min() and halo.max() <= HALO[1]):
        wrong.append(f"{halo.min():.3f} to {halo.max():.3f} of the nodes are in a halo, not {HALO[0]} to {HALO[1]}")
    wrong += [
        f"{row['method']} {row['encoder']}: {row['deviation']:+.1%} off the published bytes"
        for row in rows
        if row["deviation"] is not None and abs(row["deviation"]) > TOLERANCE
    ]
    wrong += [
        f"{one['ratio']} {one['encoder']}: {one['equal']:.0f} at equal steps, less than {LEAST_RATIO:.0f}"
        for one in found
        if one["ratio"] == f"synchronous / {AVERAGED}" and one["equal"] < LEAST_RATIO
    ]
    return wrong


def main() -> None:
    """Run the benchmark, print tables; exit code 1 where a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES, help="fewer than Reddit's for a quick try")
    parser.add_argument("--degree", type=float, default=24.0, help="mean degree")
    parser.add_argument("--encoders", default="gcn,sage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the figures here, as JSON")
    options = parser.parse_args()
    graph = reddit(options.nodes, options.degree, options.seed)
    partition = cut(graph, by="random", parts=PARTS, seed=options.seed)
    halos = np.array([np.diff(shard.halo_ptr) for shard in partition.shards])
    halo = halos.sum(axis=1) / graph.num_nodes
    print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; in a part's halo {100 * halo.mean():.2f} % of them")
    methods = ["synchronous", "bns", "retexo"]
    if preset("retexo").uses_option("train.wire"):
        methods.append(AVERAGED)
    rows = []
    for case in (Case(method, encoder) for encoder in options.encoders.split(",") for method in methods):
        rows.append(measure(case, partition, halos))
        print(
            f"{case.method}, {case.encoder}: {rows[-1]['bytes']:.4g} bytes after {rows[-1]['seconds']:.0f} s",
            flush=True,
        )
    found = ratios(rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{table(rows, found)}\n\npeak memory {peak:.1f} GiB")
    if options.out is not None:
        content = {
            "nodes": graph.num_nodes, "edges": graph.num_edges, "halo": halo.tolist(), "peak_GiB": peak,
            "methods": rows, "ratios": found,
        }  # fmt: skip
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if wrong := missed(rows, found, halo):
        sys.exit("missed:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
