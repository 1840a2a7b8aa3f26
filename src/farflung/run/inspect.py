"""All that can be said of a partition before anyone trains on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farflung.graph import Graph
from farflung.partition import Partition
from farflung.partition.diagnosis import diagnose
from farflung.run.config import RunConfig
from farflung.run.discrepancy import gradient_discrepancy
from farflung.run.source import complete, recut, with_features_and_split


def inspect_partition(graph: Graph, parts: Partition, config: RunConfig) -> dict[str, Any]:
    """The diagnosis of `parts` and, where `graph` has features and labels, what it does to gradients. JSON values.

    `config` says which features, split, model and seed; without labels there is no split, and `masks` is None.
    Keys are those of `farflung.partition.diagnosis.Diagnosis`, `gradient_norm`, and bias and spread over it as
    `gradient_bias_relative`, `gradient_spread_relative`.
    """
    if graph.y is None:
        ready = graph
    else:
        config = complete(config, graph)
        ready, _ = with_features_and_split(graph, config)
    parts = recut(parts, graph, ready)
    report = diagnose(parts)
    found = None
    if ready.y is not None and ready.num_features:
        found = gradient_discrepancy(ready, parts, config.model, config.seed)
    if found is not None:
        report = replace(report, gradient_bias=found.bias, gradient_spread=found.spread)
    relative = found is not None and found.norm > 0
    return report.as_dict() | {
        "gradient_norm": found.norm if found else None,
        "gradient_bias_relative": found.bias / found.norm if found and relative else None,
        "gradient_spread_relative": found.spread / found.norm if found and relative else None,
    }
