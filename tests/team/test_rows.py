"""Rows on the wire: what they cost, how far off they are, and what a receiver refuses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from farflung.graph import FeatureBlock
from farflung.team.rows import from_arrays, senders, sound, to_arrays

SHAPES = [(1, 1), (7, 1), (1, 9), (40, 33), (0, 5)]


def drawn(seed: int, shape: tuple[int, int], kind: str, dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=shape)
    if kind == "relu":
        rows = np.maximum(rows, 0)
    elif kind == "scaled":
        rows = rows * 10.0 ** rng.integers(-6, 7, size=(shape[0], 1)) + 10.0 ** rng.integers(-3, 4, size=(shape[0], 1))
    elif kind == "huge":
        rows = rows * 5e37
    return rows.astype(dtype)


def through(rows: FeatureBlock, wire: str) -> tuple[FeatureBlock, dict[str, np.ndarray]]:
    arrays = to_arrays("features/3", rows, wire)  # type: ignore[arg-type]
    assert senders(arrays) == ([3] if arrays else [])
    return from_arrays(arrays, 3, rows.shape[1]), arrays


def size(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_sends_rows_as_they_are(shape: tuple[int, int], dtype: type) -> None:
    rows = drawn(0, shape, "plain", dtype)
    back, arrays = through(rows, "float32")
    assert back.dtype == dtype and np.array_equal(back, rows) and size(arrays) == rows.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["plain", "relu", "scaled", "huge"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_int8_is_off_by_half_a_step_of_its_row(seed: int, shape: tuple[int, int], kind: str, dtype: type) -> None:
    rows = drawn(seed, shape, kind, dtype)
    back, arrays = through(rows, "int8")
    assert size(arrays) == shape[0] * (shape[1] + 8)
    assert sound(back, shape[1]) and back.shape == shape
    wide = rows.astype(np.float64)
    for one, other in zip(wide, back.astype(np.float64), strict=True):
        step = (one.max() - one.min()) / 255
        rounding = 2.0**-23 * np.abs(one).max()  # of float32: scale, offset and the result
        assert np.abs(one - other).max() <= step / 2 + rounding
        if kind == "relu" and (one == 0).any():
            assert (other[one == 0] == 0).all()


@pytest.mark.parametrize("value", [0.0, -1.5, 1 / 3, 3e38, -1e-42])
def test_int8_keeps_constant_rows_exactly(value: float) -> None:
    rows = np.full((4, 6), value, dtype=np.float32)
    assert np.array_equal(through(rows, "int8")[0], rows)


def test_int8_keeps_the_ends_of_a_row() -> None:
    rows = drawn(1, (30, 12), "plain")
    back, _ = through(rows, "int8")
    assert np.allclose(back.min(axis=1), rows.min(axis=1), rtol=0, atol=0)
    assert np.allclose(back.max(axis=1), rows.max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_float16_halves_the_bytes_and_rounds(shape: tuple[int, int]) -> None:
    rows = drawn(2, shape, "plain")
    back, arrays = through(rows, "float16")
    assert size(arrays) == 2 * shape[0] * shape[1]
    assert np.abs(back.astype(np.float64) - rows).max(initial=0) <= 2.0**-11 * np.abs(rows).max(initial=1)


@pytest.mark.parametrize("value", [65504.0, 65519.0, 65520.0, 1e6, 3e38])
def test_float16_saturates(value: float) -> None:
    rows = np.array([[value, -value, 1.0]], dtype=np.float32)
    back, _ = through(rows, "float16")
    assert back.tolist() == [[65504.0, -65504.0, 1.0]]


@pytest.mark.parametrize("wire", ["float32", "float16", "int8"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_by_the_receiver(bad: float, sparse: bool, wire: str) -> None:
    for place in ((0, 0), (2, 3)):
        rows = drawn(3, (3, 4), "plain")
        rows[place] = bad
        back, _ = through(sp.csr_matrix(rows) if sparse else rows, wire)
        assert not sound(back, 4)


def sparse_rows(density: float, width: int = 50) -> sp.csr_matrix:
    rng = np.random.default_rng(4)
    dense = np.where(rng.random((20, width)) < density, rng.normal(size=(20, width)), 0).astype(np.float32)
    dense[5] = 0
    return sp.csr_matrix(dense)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_sparse_rows_cost_what_their_entries_do(density: float) -> None:
    rows = sparse_rows(density)
    z, b, d = rows.nnz, *rows.shape
    whole, arrays = through(rows, "float32")
    assert size(arrays) == 8 * z + 4 * (b + 1) and (whole != rows).nnz == 0
    half, arrays = through(rows, "float16")
    assert size(arrays) == 6 * z + 4 * (b + 1)
    assert np.abs((half.astype(np.float32) - rows).toarray()).max() <= 2.0**-11 * 4
    levels, arrays = through(rows, "int8")
    assert size(arrays) == min(5 * z + 4 * (b + 1) + 8 * b, b * (d + 8))
    assert sp.issparse(levels) == (5 * z + 4 * (b + 1) <= b * d)
    found = levels.toarray() if sp.issparse(levels) else levels
    for one, other in zip(rows.toarray().astype(np.float64), found, strict=True):
        assert np.abs(one - other).max() <= (one.max() - one.min()) / 255 / 2 + 1e-6


def test_bags_of_words_are_exact() -> None:
    rows = sparse_rows(0.1)
    rows.data[:] = 1
    assert (through(rows, "int8")[0] != rows).nnz == 0
    dense = through(rows.toarray(), "int8")[0]
    assert np.allclose(dense, rows.toarray(), rtol=0, atol=1e-6)
