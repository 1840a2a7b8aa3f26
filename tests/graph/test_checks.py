"""What a graph refuses: field, what was expected, what was found (pitfalls 4, 5, 7, 10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph import Graph, Split, from_edges


def three(**fields: Any) -> Graph:
    return from_edges([0, 1], [1, 2], num_nodes=3, **fields)


def masks(*rows: list[int], dtype: Any = np.bool_) -> Split:
    return Split(*(np.array(row, dtype) for row in rows))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_pitfall_4_masks_of_0_and_1_are_read_as_bool(dtype: Any) -> None:
    split = three(y=[0, 1, 0], split=masks([1, 0, 1], [0, 1, 0], [0, 0, 0], dtype=dtype)).split
    assert split.train.dtype == np.bool_ and split.train.tolist() == [True, False, True]


@pytest.mark.parametrize("mask", [np.array([0, 2, 1]), np.array([0.0, 1.0, 0.0]), np.eye(3, dtype=np.bool_)])
def test_pitfall_4_other_masks_are_refused(mask: np.ndarray) -> None:
    with pytest.raises(InputError, match="train mask: expected"):
        Split(mask, np.zeros(3, np.bool_), np.zeros(3, np.bool_))


@pytest.mark.parametrize("field", ["split", "public_splits"])
def test_pitfall_5_a_masked_node_needs_a_label(field: str) -> None:
    split = masks([1, 1, 0], [0, 0, 1], [0, 0, 0])
    with pytest.raises(InputError, match=r"train` need a label, but node 1 .* has -1; take it out of the mask"):
        three(y=[0, -1, 1], **{field: split if field == "split" else (split,)})


@pytest.mark.parametrize("field", ["split", "public_splits"])
def test_pitfall_5_masks_must_not_overlap(field: str) -> None:
    split = masks([1, 1, 0], [0, 0, 1], [0, 1, 0])
    with pytest.raises(InputError, match=r"node 1 .* is in both train and test"):
        three(y=[0, 1, 1], **{field: split if field == "split" else (split,)})


def test_pitfall_7_non_finite_numbers_are_named() -> None:
    x = np.ones((3, 2), np.float16)
    x[2, 1] = np.nan
    for block in (x, sp.csr_matrix(x.astype(np.float32))):
        with pytest.raises(InputError, match="`x` must be finite, found nan at row 2, column 1"):
            three(x=block)
    with pytest.raises(InputError, match="`edge_weight` must be finite, found inf at row 1"):
        three(edge_weight=[1, np.inf])


def test_pitfall_10_feature_kinds() -> None:
    assert three(x=np.ones((3, 2), np.float16)).x.dtype == np.float16
    assert sp.issparse(three(x=sp.coo_matrix(np.eye(3))).x)
    assert three(x=np.ones((3, 2), np.int64)).x.dtype == np.float32
    assert three().x is None and three().num_features == 0


def test_multilabel() -> None:
    graph = three(y=[[1, 0], [0, 0], [1, 1]])
    assert graph.multilabel and graph.num_classes == 2 and graph.y.dtype == np.uint8
    with pytest.raises(InputError, match=r"multi-label `y`: expected 0 and 1, found \[0 2\] at row 1"):
        three(y=[[1, 0], [0, 2], [1, 1]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"y": [0, 1]}, r"`y` must be int64 \[3\], found int64 \[2\]"),
        ({"y": [0, -2, 1]}, "found -2 at row 1"),
        ({"y": [0, 1.5, 1]}, "whole numbers, found 1.5 at row 1"),
        ({"y": [0, np.nan, 1]}, "whole numbers, found nan at row 1"),
        ({"y": [0, 2, 1], "class_names": ("a", "b")}, "classes 0 to 1.*found 2 at row 1"),
        ({"columns": {"region": np.zeros(2)}}, r"columns\['region'\]` must be an array \[3\], found float64 \[2\]"),
        ({"columns": {"region": np.array([None, 1, 2])}}, "Python objects"),
        ({"node_type": [0, 1, 0]}, "block .* per node type: expected 2, found 1"),
        ({"node_type": [0, 1, 0], "features": (np.ones((1, 2)), None)}, r"features\[0\]` needs .* expected 2, found 1"),
        ({"node_type": [0, 1, 0], "features": (None, None), "node_type_names": ("a",)}, "`node_type` must be 0 to 0"),
        ({"x": [["a"], ["b"], ["c"]]}, "`x`: expected numbers"),
        ({"edge_attr": [1, 2]}, "`edge_attr` must be"),
        ({"split": masks([1, 0], [0, 1], [0, 0])}, r"`split.train` must be bool \[3\], found bool \[2\]"),
    ],
)
def test_errors_quote_expected_and_found(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        three(**fields)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 3], [0, 1], "run from 0 to E = 2, found 0 to 3"),
        ([0, 3, 2], [0, 1], "must not fall, but does after node 1"),
        ([0, 1, 2], [0, 2], "rows 0 to 1, found 2 at 1"),
        ([0, 2, 2], [1, 0], "ascend within a row"),
    ],
)
def test_the_constructor_checks_the_structure(indptr: list[int], indices: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Graph(indptr=np.array(indptr, np.int64), indices=np.array(indices, np.int32))


def test_the_constructor_wants_exact_dtypes() -> None:
    with pytest.raises(InputError, match="`indptr` must be int64"):
        Graph(indptr=np.array([0, 0], np.int32), indices=np.empty(0, np.int32))
    with pytest.raises(InputError, match="`indices` must be int32 or int64"):
        Graph(indptr=np.array([0, 1]), indices=np.zeros(1, np.int16))


def test_memory_mapped_arrays_are_checked_like_others(tmp_path: Path) -> None:
    def mapped(values: Any, dtype: Any) -> np.ndarray:
        np.save(tmp_path / "array.npy", np.array(values, dtype))
        return np.load(tmp_path / "array.npy", mmap_mode="r")

    with pytest.raises(InputError, match="rows 0 to 0, found 9 at 0"):
        Graph(indptr=np.array([0, 2]), indices=mapped([9, 9], np.int32))
    with pytest.raises(InputError, match="must not fall, but does after node 1"):
        Graph(indptr=mapped([0, 3, 2], np.int64), indices=np.zeros(2, np.int32))
    with pytest.raises(InputError, match="`edge_type` must be 0 to 1, found -1 at row 0"):
        three(edge_type=[0, 1]).with_(edge_type=mapped([-1, 1], np.int16))
    with pytest.raises(InputError, match="must be 0 or 1, found 2 at row 1"):
        three(y=mapped([[0], [1], [0]], np.uint8)).with_(y=mapped([[0], [2], [0]], np.uint8))
    with pytest.raises(InputError, match="found nan at row 1, column 0"):
        three(x=mapped([[0], [np.nan], [0]], np.float32))


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1, 2, 2], [0, 2], "`x` must have columns 0 to 1, found 2 at row 1"),
        ([0, 1, 2, 2], [-1, 0], "`x` must have columns 0 to 1, found -1 at row 0"),
        ([0, 2, 1, 2], [0, 1], "`x.indptr` must not fall, but does after row 1"),
        ([0, 1, 2, 3], [0, 1], "`x.indptr` must run from 0 to 2 over 3 rows"),
    ],
)
def test_csr_features_stay_in_range(indptr: list[int], indices: list[int], message: str) -> None:
    block = sp.csr_matrix((3, 2), dtype=np.float32)
    block.data, block.indices, block.indptr = np.ones(2, np.float32), np.array(indices), np.array(indptr)
    with pytest.raises(InputError, match=message):
        three().with_(features=(block,))


def test_negative_edge_weights_are_refused_with_the_edge() -> None:
    with pytest.raises(InputError, match=r"`edge_weight` must be >= 0, found -2 at edge 1"):
        Graph.from_edges([0, 1], [1, 2], num_nodes=3, edge_weight=[1.0, -2.0])


def test_sparse_half_precision_features_become_single() -> None:
    half = sp.csr_matrix(np.eye(3, dtype=np.float32))
    half.data = half.data.astype(np.float16)
    assert Graph.from_edges([0], [1], num_nodes=3, x=half).x.dtype == np.float32
