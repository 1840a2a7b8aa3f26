"""A trained model on a graph that is there in parts alone: trainers infer together, and nobody puts the graph together.

Legend for shapes: N nodes, d width of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.errors import FarflungError
from farflung.methods import inference
from farflung.nn.flat import pack
from farflung.nn.model import encoder_of
from farflung.partition import Shard
from farflung.run.evaluator import Metrics, Weights
from farflung.run.predict import Embeddings, Predictions, of_logits
from farflung.team.local import LocalTeam
from farflung.trainer import TrainerSpec


class PartsEvaluator:
    """Scores, predictions and embeddings by exact inference over parts, each opened by a trainer of its own."""

    def __init__(self, shards: Sequence[Shard], spec: TrainerSpec) -> None:
        """`spec`: of the model; whatever trainers it names do not matter here."""
        self._shards = shards
        self._model = spec.build_model()
        plain = spec.model_copy(update={"target": "farflung.trainer:Trainer"})
        self._team = LocalTeam(shards, plain, score=_no_score, hand_out=False)

    def metrics(self, weights: Weights, *masks: str) -> dict[str, Metrics]:
        """Metrics by mask (`train`, `val`, `test`); None where a set is empty."""
        return dict(inference.evaluate(self._team, self._model, self._packed(weights), masks))

    def predict(self, weights: Weights) -> Predictions:
        """Predictions for every node, in the order of the graph."""
        inference.infer(self._team, self._model, self._packed(weights))
        first = self._shards[0]
        multilabel = first.y is not None and first.y.ndim == 2
        return of_logits(self._ids(), self._rows(), first.info.class_names, multilabel)

    def embed(self, weights: Weights) -> Embeddings:
        """Embeddings of every node, in the order of the graph: what classes or links are scored from."""
        layers = len(encoder_of(self._model).layers)
        depth = layers if self._model is not encoder_of(self._model) else max(1, layers - 1)
        inference.infer(self._team, self._model, self._packed(weights), depth)
        return Embeddings(self._ids(), self._rows())

    def _packed(self, weights: Weights) -> np.ndarray:
        """Weights in the order of the model, [P]: a file has an order of its own."""
        self._model.load_state_dict(dict(weights))
        return pack(self._model)

    def _rows(self) -> np.ndarray:
        """Every node's row after inference, [N, d]."""
        parts = inference.rows_of_parts(self._team)
        some = next(iter(parts.values()))
        rows = np.empty((self._shards[0].info.num_nodes, some.shape[1]), dtype=some.dtype)
        for k, shard in enumerate(self._shards):
            rows[shard.inner] = parts[k]
        return rows

    def _ids(self) -> np.ndarray:
        """Original ids, int64 or str [N]."""
        num_nodes = self._shards[0].info.num_nodes
        if self._shards[0].ids is None:
            return np.arange(num_nodes)
        ids = np.concatenate([np.asarray(shard.ids) for shard in self._shards])
        order = np.argsort(np.concatenate([shard.inner for shard in self._shards]), kind="stable")
        return ids[order]


def _no_score(weights: np.ndarray, depth: int | None) -> Metrics:
    raise FarflungError("there is no evaluator with the whole graph here: infer by exchange")
