"""The evaluator: exact metrics of a model on the whole graph, apart from server and trainers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.nn import flat, graph_adjacency
from farflung.tasks.metrics import finish, names
from farflung.tasks.node_classification import NodeClassification
from farflung.trainer import TrainerSpec, features_as_factor, numpy_dtype


class Evaluator:
    """Holds the whole graph and scores weights on it by exact inference, layer by layer."""

    def __init__(self, graph: Graph, spec: TrainerSpec) -> None:
        """`graph` with features; labels and a split are needed for metrics only."""
        if graph.x is None:
            raise InputError(f"graph '{graph.name}' has no features: pass --features degree or gaussian:64")
        self.graph = graph
        self.task = NodeClassification(spec.num_classes, spec.multilabel)
        self.model = spec.build_model()
        self._matrix = graph_adjacency(self.model.aggregation, graph, numpy_dtype(spec.torch_dtype))
        self._gathered = self.model.prepare(self._matrix, features_as_factor(graph.x, spec.torch_dtype))

    def logits(self, weights: Mapping[str, torch.Tensor]) -> np.ndarray:
        """Class scores of every node, [N, C], in the order of the graph."""
        self.model.load_state_dict(dict(weights))
        return self.model.infer(self._matrix, self._gathered).numpy()

    def metrics(self, weights: Mapping[str, torch.Tensor], *masks: str) -> dict[str, dict[str, float | None]]:
        """Metrics by mask (`train`, `val`, `test`); None where a mask is empty."""
        logits = self.logits(weights)
        return {mask: self._metrics(logits, mask) for mask in masks}

    def validate(self, vector: np.ndarray) -> Mapping[str, float | None]:
        """Validation metrics of a flat weight vector [P]: what a team's `evaluate` answers.

        All None where a score is not finite: such weights are never the best, and training may go on.
        """
        logits = self.logits(flat.unpack(self.model, vector))
        if not np.isfinite(logits).all():
            return dict.fromkeys(names(self.task.num_classes, self.task.multilabel))
        return self._metrics(logits, "val")

    def _metrics(self, logits: np.ndarray, mask: str) -> dict[str, float | None]:
        if self.graph.y is None or self.graph.split is None:
            raise InputError(f"graph '{self.graph.name}' has no labels or no split: nothing to score")
        rows = np.flatnonzero(getattr(self.graph.split, mask))
        return finish(self.task.count(torch.from_numpy(logits[rows]), self.graph.y[rows]))
