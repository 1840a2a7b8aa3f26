"""What a trained model says of every node, under the nodes' original ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from farflung.errors import InputError
from farflung.files import write_atomic
from farflung.graph import Graph


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities and labels of all N nodes in the order of the graph, isolated nodes included."""

    ids: np.ndarray
    """Original ids, int64 or str [N]."""
    probabilities: np.ndarray
    """[N, C] of the model's dtype. Single-label: rows sum to 1. Multi-label: of each class on its own."""
    class_names: tuple[str, ...] | None
    """None: classes are called by their numbers."""
    multilabel: bool

    @property
    def classes(self) -> np.ndarray:
        """int64 [N]: number of the most probable class; multi-label: bool [N, C], probability > 1/2."""
        return self.probabilities > 0.5 if self.multilabel else self.probabilities.argmax(axis=1)

    @property
    def labels(self) -> np.ndarray:
        """`classes`, by name where classes have names (single-label)."""
        if self.multilabel or self.class_names is None:
            return self.classes
        return np.array(self.class_names)[self.classes]

    def table(self, *, all_classes: bool = False) -> pa.Table:
        """As a table.

        Single-label: `id`, `label`, `probability` (of that label). Multi-label: `id` and one bool column per class,
        called by its name or number. With `all_classes` also `p_<class>` for each class.
        """
        num_classes = self.probabilities.shape[1]
        names = self.class_names or tuple(str(c) for c in range(num_classes))
        columns: dict[str, np.ndarray] = {"id": self.ids}
        if self.multilabel:
            columns |= _by_class(names, self.classes)
        else:
            columns |= {"label": self.labels, "probability": self.probabilities.max(axis=1)}
        if all_classes:
            columns |= _by_class([f"p_{name}" for name in names], self.probabilities)
        return pa.table({name: pa.array(np.ascontiguousarray(values)) for name, values in columns.items()})

    def save(self, path: str | Path, *, all_classes: bool = False) -> None:
        """Write the table as Parquet. Raises InputError where `path` cannot be."""
        _save(self.table(all_classes=all_classes), Path(path))


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of all N nodes in the order of the graph, isolated nodes included."""

    ids: np.ndarray
    """Original ids, int64 or str [N]."""
    rows: np.ndarray
    """[N, d] of the model's dtype."""

    def table(self) -> pa.Table:
        """As a table: `id`, and `embedding`, a list of d numbers."""
        flat = pa.array(np.ascontiguousarray(self.rows).reshape(-1))
        return pa.table({"id": self.ids, "embedding": pa.FixedSizeListArray.from_arrays(flat, self.rows.shape[1])})

    def save(self, path: str | Path) -> None:
        """Write the table as Parquet. Raises InputError where `path` cannot be."""
        _save(self.table(), Path(path))


def _save(table: pa.Table, path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path} is no place for a file: name a file in a folder that exists")
    write_atomic(path, lambda temporary: pq.write_table(table, temporary))


def _by_class(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[:, c] for c, name in enumerate(names)}


def predictions(graph: Graph, logits: np.ndarray) -> Predictions:
    """Predictions for the nodes of `graph` from class scores [N, C] in its order."""
    return of_logits(graph.original_ids, logits, graph.class_names, graph.multilabel)


def of_logits(
    ids: np.ndarray, logits: np.ndarray, class_names: tuple[str, ...] | None, multilabel: bool
) -> Predictions:
    """Predictions from class scores [N, C] of the nodes `ids`."""
    if multilabel:
        probabilities = np.exp(-np.logaddexp(0, -logits))
    else:
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    return Predictions(ids, probabilities, class_names, multilabel)
