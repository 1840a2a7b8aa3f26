"""Evaluators: exact metrics of a model on the whole graph, apart from server and trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from farflung.errors import InputError, NotFiniteError
from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.nn import flat
from farflung.nn.decoders import LinkModel
from farflung.nn.encoder import Encoder
from farflung.nn.inference import Inference
from farflung.nn.model import first_layers
from farflung.run.predict import Predictions, predictions
from farflung.tasks import metrics, ranking
from farflung.tasks.link_prediction import score_links
from farflung.tasks.node_classification import NodeClassification
from farflung.trainer import TrainerSpec

Weights = Mapping[str, torch.Tensor]
Metrics = Mapping[str, float | None]


class Evaluator(Protocol):
    """Scores weights on the whole graph by exact inference, layer by layer, in chunks of nodes."""

    def metrics(self, weights: Weights, *masks: str) -> dict[str, Metrics]:
        """Metrics by set (`val`, `test`, of nodes also `train`); None where a set is empty."""

    def validate(self, vector: np.ndarray, depth: int | None = None) -> Metrics:
        """Validation metrics of a flat weight vector [P]: what a team's `evaluate` answers.

        `depth`: score by the first so many layers alone, the last of them with its head, whose weights the vector
        holds (see `nn.model.first_layers`); None: by all.
        All None where a score is not finite: such weights are never the best, and training may go on.
        """


class NodeEvaluator:
    """Scores classes of nodes."""

    def __init__(self, graph: Graph, spec: TrainerSpec) -> None:
        """`graph` with features; labels and a split are needed for metrics only."""
        self.graph = graph
        self.task = NodeClassification(spec.num_classes, spec.multilabel)
        model = spec.build_model()
        assert isinstance(model, Encoder)
        self.model = model
        self._inference = _inference(model, graph, spec)
        self._first = _FirstLayers(self._inference, model)

    def logits(self, weights: Weights) -> np.ndarray:
        """Class scores of every node, [N, C], in the order of the graph."""
        self.model.load_state_dict(dict(weights))
        return self._inference.embed(self.model).numpy()

    @torch.no_grad()
    def _logits_at(self, vector: np.ndarray, depth: int) -> np.ndarray:
        """Class scores by the first `depth` layers and the head of the last of them, [N, C]."""
        flat.load(first_layers(self.model, depth), vector)
        h = self._first.embed(depth)
        head = self.model.layers[depth - 1].head
        return (h if head is None else head(h)).numpy()

    def embeddings(self, weights: Weights) -> np.ndarray:
        """Output of the last hidden layer for every node, [N, d]; class scores where there is no hidden layer."""
        self.model.load_state_dict(dict(weights))
        return self._inference.embed(self.model, max(1, len(self.model.layers) - 1)).numpy()

    def metrics(self, weights: Weights, *masks: str) -> dict[str, Metrics]:
        logits = self.logits(weights)
        return {mask: self._metrics(logits, mask) for mask in masks}

    def validate(self, vector: np.ndarray, depth: int | None = None) -> Metrics:
        logits = self.logits(flat.unpack(self.model, vector)) if depth is None else self._logits_at(vector, depth)
        if not np.isfinite(logits).all():
            return dict.fromkeys(metrics.names(self.task.num_classes, self.task.multilabel))
        return self._metrics(logits, "val")

    def _metrics(self, logits: np.ndarray, mask: str) -> Metrics:
        if self.graph.y is None or self.graph.split is None:
            raise InputError(f"graph '{self.graph.name}' has no labels or no split: nothing to score")
        rows = np.flatnonzero(getattr(self.graph.split, mask))
        return metrics.finish(self.task.count(torch.from_numpy(logits[rows]), self.graph.y[rows]))


class LinkEvaluator:
    """Ranks links among fixed negatives."""

    def __init__(self, graph: Graph, spec: TrainerSpec, links: LinkSplit) -> None:
        """`graph`: the training graph of `links`, with features."""
        self.links = links
        model = spec.build_model()
        assert isinstance(model, LinkModel)
        self.model = model
        self._inference = _inference(model.encoder, graph, spec)
        self._first = _FirstLayers(self._inference, model.encoder)
        limit = spec.links.val_pairs
        self._val = links.val if limit is None else links.val.limited(limit)
        self._chunk = spec.links.chunk

    def embeddings(self, weights: Weights) -> np.ndarray:
        """The encoder's output for every node, [N, d], in the order of the graph: what links are scored from."""
        self.model.load_state_dict(dict(weights))
        return self._inference.embed(self.model.encoder).numpy()

    def metrics(self, weights: Weights, *masks: str) -> dict[str, Metrics]:
        h = torch.from_numpy(self.embeddings(weights))
        sets = {"val": self.links.val, "test": self.links.test}
        for mask in masks:
            if mask not in sets:
                raise InputError(f"links have no set '{mask}' to score: choose from {', '.join(sets)}")
        return {mask: ranking.finish(score_links(self.model.decoder, h, sets[mask], self._chunk)) for mask in masks}

    def validate(self, vector: np.ndarray, depth: int | None = None) -> Metrics:
        decoder = self.model.decoder
        if depth is None:
            h = torch.from_numpy(self.embeddings(flat.unpack(self.model, vector)))
        else:
            flat.load(first_layers(self.model, depth), vector)
            h, decoder = self._first.embed(depth), self.model.decoder_of(depth - 1)
        try:
            return ranking.finish(score_links(decoder, h, self._val, self._chunk))
        except NotFiniteError:
            return dict.fromkeys(ranking.names())


class _FirstLayers:
    """What the first layers of an encoder give; those below the last of them run once while their weights stay."""

    def __init__(self, inference: Inference, encoder: Encoder) -> None:
        self._inference = inference
        self._encoder = encoder
        self._held: tuple[np.ndarray, torch.Tensor] | None = None
        """Weights of the layers below, and the rows [N, d] that they gave."""

    def embed(self, depth: int) -> torch.Tensor:
        """The output of layer number `depth` - 1 for every node, [N, d], with the weights that the encoder has now."""
        below = depth - 1
        if not below:
            return self._inference.embed(self._encoder, 1)
        weights = flat.pack(torch.nn.ModuleList(self._encoder.layers[:below]))
        if self._held is None or not np.array_equal(self._held[0], weights):
            self._held = weights, self._inference.embed(self._encoder, below)
        return self._inference.embed(self._encoder, depth, (below, self._held[1]))


def _inference(encoder: Encoder, graph: Graph, spec: TrainerSpec) -> Inference:
    if graph.x is None:
        raise InputError(f"graph '{graph.name}' has no features: pass --features degree or gaussian:64")
    return Inference(encoder.aggregation, graph, spec.torch_dtype)


def evaluator_for(graph: Graph, spec: TrainerSpec, links: LinkSplit | None) -> NodeEvaluator | LinkEvaluator:
    """The evaluator of the task that `spec` names."""
    return NodeEvaluator(graph, spec) if links is None else LinkEvaluator(graph, spec, links)


def predict(graph: Graph, spec: TrainerSpec, weights: Weights) -> Predictions:
    """Predictions for every node. Raises InputError where links are predicted."""
    refuse_links(spec.task)
    return predictions(graph, NodeEvaluator(graph, spec).logits(weights))


def refuse_links(task: str) -> None:
    """Raise InputError where a model predicts no classes of nodes."""
    if task == "link-prediction":
        raise InputError("this model predicts links, not classes of nodes: use `farflung evaluate` or `farflung embed`")
