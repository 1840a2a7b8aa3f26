"""Records of runs that follow from a few numbers, with all that a real one has."""

from __future__ import annotations

import math

from farflung.report.record import RunRecord
from farflung.run.config import RunConfig, resolve
from farflung.team.link import PROFILES

DIAGNOSIS = {
    "by": "random",
    "parts": 3,
    "part_names": None,
    "nodes_per_part": [40, 30, 30],
    "edges_per_part": [101, 90, 95],
    "halo_per_part": [20, 25, 27],
    "boundary_per_part": [21, 24, 27],
    "kept_share": 0.3333,
    "halo_ratio": 0.72,
    "node_balance": 1.2,
    "edge_balance": 1.06,
    "label_divergence": 0.05,
    "feature_divergence": None,
    "degree_divergence": 0.01,
    "gradient_bias_relative": 0.0625,
    "gradient_spread_relative": 0.5,
    "masks": {"train": [10, 9, 8], "val": [5, 5, 5], "test": [25, 16, 17]},
    "warnings": ["part 2 has few <training> nodes"],
}


def config_of(method: str = "super-tma", seed: int = 0, graph: str = "cora", **options) -> RunConfig:
    """A resolved configuration as a run would have it."""
    return resolve({"graph": graph, "method": method, "seed": seed, **options}).replace(metric="accuracy", threads=1)


def made(
    label: str = "super-tma",
    seed: int = 0,
    *,
    method: str | None = None,
    rounds: int = 40,
    scale: float = 1.0,
    best: float = 0.8,
    trainers: int = 3,
    absent: dict[int, dict[str, str]] | None = None,
    complete: bool = True,
    graph: str = "cora",
    **options,
) -> RunRecord:
    """A run whose score approaches `best` and that sends `scale` x 1,000 bytes a round; 0: one that sends nothing."""
    config = config_of(method or label, seed, graph, **options)
    history = [
        {
            "round": k,
            "phase": "train",
            "loss": 2.0 * math.exp(-3 * k / rounds) + 0.01 * seed,
            "val": {"accuracy": best * (1 - math.exp(-(5 + 0.4 * seed) * (k + 1) / rounds))},
            "seconds": 0.5 * (k + 1),
            "best": True,
            "steps": {str(t): 10 for t in range(trainers)},
            "absent": (absent or {}).get(k, {}),
        }
        for k in range(rounds)
    ]
    sent = [round(1000 * scale * (k + 1)) for k in range(rounds)]
    link_seconds = {
        name: [(k + 1) * (0.5 + p.latency_s + 8000 * scale / p.up_bps) for k in range(rounds)]
        for name, p in PROFILES.items()
    }
    by_kind = {"setup": 5000, "weights": sent[-1], "control": 120} if scale else {"evaluation": 400}
    each = sent[-1] // max(1, 2 * trainers)
    pairs = [[a, b, each] for t in range(trainers) for a, b in ((-1, t), (t, -1))] if scale else []
    last = history[-1]["val"]["accuracy"]
    return RunRecord(
        label=label,
        seed=seed,
        config=config.dump(),
        metrics={
            "test": {"accuracy": last - 0.01 + 0.002 * seed},
            "val": {"accuracy": last},
            "bytes": {"total": sum(by_kind.values()), **by_kind},
            "training_bytes": sent[-1] if scale else 0,
            "rounds": rounds,
            "seconds": {"wall": 3.25, "virtual": 0.5 * rounds, "partition": 0.0},
            "best_round": rounds - 1,
            "complete": complete,
        },
        history=history,
        training_bytes=sent if scale else [0] * rounds,
        seconds=link_seconds,
        by_kind=by_kind,
        by_phase={"train": by_kind},
        pairs=[[-1, -2, 400], *pairs],
        diagnosis=DIAGNOSIS if scale else None,
        manifest={
            "tools": {"farflung": "0.1.0", "torch": "2.13.0"},
            "threads": 1,
            "graph": {"name": graph, "fingerprint": f"f-{graph}", "nodes": 100, "edges": 286, "notes": []},
            "partition": {"digest": "0123456789abcdef", "parts": trainers, "by": "random"},
            "parameters": 4321,
            "faults": "",
        },
    )


def many(methods: int = 12, seeds: int = 5, rounds: int = 300) -> list[RunRecord]:
    """A big comparison: `methods` labels of growing cost, the first of which sends nothing."""
    names = ["centralised", "random-tma", "super-tma", "psgd-pa", "llcg", "retexo"]
    found = []
    for place in range(methods):
        method = names[place] if place < len(names) else "super-tma"
        own = {} if place < len(names) else {"hidden": str(16 * place)}
        label = method if not own else f"super-tma[model.hidden={16 * place}]"
        for seed in range(seeds):
            found.append(
                made(
                    label,
                    seed,
                    method=method,
                    rounds=rounds,
                    scale=0 if place == 0 else 3.0**place,
                    best=0.7 + 0.012 * place,
                    trainers=1 if place == 0 else 8,
                    **own,
                )
            )
    return found
