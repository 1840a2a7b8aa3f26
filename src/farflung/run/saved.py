"""A trained model on its graph, from memory or from its run folder: scores, predictions, embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.run.config import RunConfig
from farflung.run.evaluator import Metrics, evaluator_for, predict
from farflung.run.folder import CONFIG, GRAPH, PARTITION, RunFolder
from farflung.run.predict import Embeddings, Predictions
from farflung.run.source import fingerprint, open_graph, with_features_and_split
from farflung.run.spec import trainer_spec
from farflung.run.threads import cpu_threads
from farflung.trainer import TrainerSpec


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run's model on its graph."""

    config: RunConfig
    graph: Graph
    """With the features of the run and its split of nodes; without the links that were not for training."""
    weights: dict[str, torch.Tensor]
    links: LinkSplit | None = None

    @classmethod
    def open(cls, path: str | Path) -> SavedRun:
        """Read configuration, graph and weights.

        Raises:
            InputError: no run folder, no finished model in it, or graph or configuration have changed since.
        """
        folder = RunFolder.open(path)
        config, manifest, weights = folder.config(), folder.manifest(), folder.weights()
        if config.digest() != manifest.get("config"):
            raise InputError(
                f"{folder.path / CONFIG} is not what the model was trained with, it has changed since: put it back, "
                "or train again"
            )
        kept = next((folder.path / name for name in (PARTITION, GRAPH) if (folder.path / name).exists()), None)
        raw, _ = open_graph(config.graph if kept is None else str(kept), symmetric=config.symmetric)
        if fingerprint(raw) != manifest["graph"]["fingerprint"]:
            raise InputError(
                f"graph '{config.graph}' is not the one that {folder.path} was trained on: its data have changed since"
            )
        graph, links = with_features_and_split(raw, config)
        return cls(config, graph, weights, links)

    def evaluate(self, *masks: str) -> dict[str, Metrics]:
        """Metrics of the saved model on the given sets of nodes or links, `val` and `test` unless named."""
        with cpu_threads(self.config.threads):
            evaluator = evaluator_for(self.graph, self._spec(), self.links)
            return evaluator.metrics(self.weights, *(masks or ("val", "test")))

    def predict(self) -> Predictions:
        """Predictions for every node, by original id. Raises InputError where links are predicted."""
        with cpu_threads(self.config.threads):
            return predict(self.graph, self._spec(), self.weights)

    def embed(self) -> Embeddings:
        """Embeddings of every node, by original id: what classes or links are scored from."""
        with cpu_threads(self.config.threads):
            rows = evaluator_for(self.graph, self._spec(), self.links).embeddings(self.weights)
        return Embeddings(self.graph.original_ids, rows)

    def _spec(self) -> TrainerSpec:
        return trainer_spec(self.config, self.graph, self.links)
