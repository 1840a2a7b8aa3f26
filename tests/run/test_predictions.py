"""Predictions: every node, under its own id, with its class's name."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.run.predict import predictions


def three(y, **fields) -> Graph:
    return Graph.from_edges([0], [1], num_nodes=3, y=y).with_(**fields)


def test_single_label_columns_and_probabilities():
    graph = three(np.array([0, 1, -1]), ids=np.array(["b", "a", "c"]), class_names=("cat", "dog"))
    table = predictions(graph, np.array([[0.0, 0.0], [1.0, 3.0], [5.0, -5.0]])).table(all_classes=True)
    assert table.column_names == ["id", "label", "probability", "p_cat", "p_dog"]
    rows = table.to_pydict()
    assert rows["id"] == ["b", "a", "c"]
    assert rows["label"] == ["cat", "dog", "cat"]
    np.testing.assert_allclose(rows["p_dog"], [0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(10))])
    np.testing.assert_allclose(np.add(rows["p_cat"], rows["p_dog"]), 1)
    assert rows["probability"] == [max(pair) for pair in zip(rows["p_cat"], rows["p_dog"], strict=True)]


def test_without_names_and_ids_numbers_stand():
    table = predictions(three(np.array([0, 1, 2])), np.eye(3, dtype=np.float32)).table()
    assert table.to_pydict()["id"] == [0, 1, 2]
    assert table.to_pydict()["label"] == [0, 1, 2]
    assert str(table.schema.field("probability").type) == "float"


def test_multilabel_has_a_bool_column_per_class():
    y = np.array([[1, 0], [0, 1], [0, 0]], dtype=np.uint8)
    graph = three(y, class_names=("red", "blue"))
    made = predictions(graph, np.array([[2.0, -1.0], [0.0, 1e4], [-1e4, 0.1]]))
    assert made.table().to_pydict() == {
        "id": [0, 1, 2],
        "red": [True, False, False],
        "blue": [False, True, True],
    }
    assert np.isfinite(made.probabilities).all()
    assert made.table(all_classes=True).column_names == ["id", "red", "blue", "p_red", "p_blue"]


def test_huge_scores_stay_finite():
    made = predictions(three(np.array([0, 1, 0])), np.array([[1e30, 0], [-1e30, 1e30], [0, 0]], dtype=np.float32))
    np.testing.assert_array_equal(made.probabilities, [[1, 0], [0, 1], [0.5, 0.5]])


def test_saved_as_parquet_and_a_wrong_place_is_refused(tmp_path):
    made = predictions(three(np.array([0, 1, 0])), np.eye(3, 2))
    made.save(tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").to_pydict() == made.table().to_pydict()
    for path in (tmp_path, tmp_path / "no" / "p.parquet"):
        with pytest.raises(InputError, match="no place for a file"):
            made.save(path)
