"""A trained model on its graph, from memory or from its run folder: scores, predictions, embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.methods.presets import preset
from farflung.partition import Partition
from farflung.partition.store import StoredShards
from farflung.run.by_exchange import PartsEvaluator
from farflung.run.config import RunConfig
from farflung.run.evaluator import Metrics, evaluator_for, predict, refuse_links
from farflung.run.folder import CONFIG, GRAPH, PARTITION, RunFolder
from farflung.run.predict import Embeddings, Predictions
from farflung.run.source import files_digest, fingerprint, open_graph, with_features_and_split
from farflung.run.spec import trainer_spec
from farflung.run.threads import cpu_threads
from farflung.trainer import TrainerSpec


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run's model on its graph, or on the parts that the graph is in."""

    config: RunConfig
    weights: dict[str, torch.Tensor]
    graph: Graph | None
    """With the features of the run and its split of nodes; without the links that were not for training. None: it is
    there in parts alone, and trainers infer together."""
    links: LinkSplit | None = None
    parts: Partition | None = None
    spec: TrainerSpec | None = None
    """Of the model, where there is no graph."""

    @classmethod
    def open(cls, path: str | Path) -> SavedRun:
        """Read configuration, graph or parts, and weights.

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
        name = config.graph if kept is None else str(kept)
        if (parts := _parts_as_trained(name, config, manifest)) is not None:
            spec = TrainerSpec.model_validate(
                {**manifest["model"], "target": preset(config.method).procedure.trainer, "optim": config.optim}
            )
            return cls(config, weights, None, parts=parts, spec=spec)
        raw, _ = open_graph(name, symmetric=config.symmetric)
        if fingerprint(raw) != manifest["graph"]["fingerprint"]:
            raise InputError(
                f"graph '{config.graph}' is not the one that {folder.path} was trained on: its data have changed since"
            )
        graph, links = with_features_and_split(raw, config)
        return cls(config, weights, graph, links)

    def evaluate(self, *masks: str) -> dict[str, Metrics]:
        """Metrics of the saved model on the given sets of nodes or links, `val` and `test` unless named."""
        with cpu_threads(self.config.threads):
            if self.graph is None:
                return self._apart().metrics(self.weights, *(masks or ("val", "test")))
            evaluator = evaluator_for(self.graph, self._spec(self.graph), self.links)
            return evaluator.metrics(self.weights, *(masks or ("val", "test")))

    def predict(self) -> Predictions:
        """Predictions for every node, by original id. Raises InputError where links are predicted."""
        with cpu_threads(self.config.threads):
            if self.graph is None:
                refuse_links(self.config.task)
                return self._apart().predict(self.weights)
            return predict(self.graph, self._spec(self.graph), self.weights)

    def embed(self) -> Embeddings:
        """Embeddings of every node, by original id: what classes or links are scored from."""
        with cpu_threads(self.config.threads):
            if self.graph is None:
                return self._apart().embed(self.weights)
            rows = evaluator_for(self.graph, self._spec(self.graph), self.links).embeddings(self.weights)
        return Embeddings(self.graph.original_ids, rows)

    def module(self) -> nn.Module:
        """The trained model as a module of PyG, of the class that the encoder names, for evaluation.

        Raises InputError where the encoder is none of PyG's models.
        """
        model = self.config.model
        if not model.is_pyg_model:
            raise InputError(f"encoder '{model.encoder}' is no model of PyG: choose GraphSAGE, say, or use run.model")
        from farflung.nn.pyg_model import build_model, give_back  # PyG takes seconds to import

        spec = self.spec if self.graph is None else self._spec(self.graph)
        assert spec is not None
        outputs = spec.num_classes if spec.task == "node-classification" else model.hidden
        module = build_model(model, spec.num_features, outputs, spec.facts).to(spec.torch_dtype).eval()
        give_back(self.weights, module)
        return module

    def _spec(self, graph: Graph) -> TrainerSpec:
        return trainer_spec(self.config, graph, self.links)

    def _apart(self) -> PartsEvaluator:
        assert self.parts is not None and self.spec is not None
        return PartsEvaluator(self.parts.shards, self.spec)


def _parts_as_trained(name: str, config: RunConfig, manifest: dict[str, Any]) -> Partition | None:
    """The partition folder that a run was trained on, checked against its checksums; None where it was no folder, or
    where the run used other features or another split than are in it.

    Raises InputError where a file has changed since.
    """
    files = manifest["partition"].get("files")
    if files is None or config.task != "node-classification" or config.split is not None or config.symmetric:
        return None
    if config.features != "given" or config.normalise != "none" or config.inductive:
        return None
    if not (Path(name) / "manifest.json").is_file():
        return None
    parts = Partition.open(name)
    if files_digest(parts) != files:
        raise InputError(f"partition '{name}' is not the one that was trained on: its data have changed since")
    assert isinstance(parts.shards, StoredShards)
    parts.shards.verify_checksums()
    return parts
