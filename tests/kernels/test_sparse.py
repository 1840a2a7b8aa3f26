from itertools import pairwise

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from farflung.kernels import Pattern, SparseMatrix

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def entries(
    num_rows: int, num_columns: int, count: int, seed: int = 0, index: type = np.int32, dtype: type = np.float64
) -> tuple[SparseMatrix, np.ndarray]:
    """A random matrix that stores some places twice and leaves rows empty, and the same dense."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(0, max(1, num_rows // 2), count) * 2 % max(1, num_rows))
    columns, values = rng.integers(0, max(1, num_columns), count), rng.standard_normal(count).astype(dtype)
    dense = np.zeros((num_rows, num_columns), dtype)
    for row, column, value in zip(rows, columns, values, strict=True):
        dense[row, column] += value
    indptr = np.searchsorted(rows, np.arange(num_rows + 1))
    return SparseMatrix(Pattern(indptr, columns.astype(index), num_columns), values), dense


def tensor(*shape: int, dtype: type = np.float64, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


@DTYPES
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("num_rows", "num_columns", "count", "width"),
    [(7, 5, 20, 3), (600, 90, 3000, 17), (4, 4, 0, 2), (0, 5, 0, 3), (3, 0, 0, 2), (0, 0, 0, 1), (5, 6, 9, 0)],
)
def test_product_and_gradient_equal_the_dense_ones(num_rows, num_columns, count, width, index, dtype):
    matrix, dense = entries(num_rows, num_columns, count, index=index, dtype=dtype)
    h = tensor(num_columns, width, dtype=dtype).requires_grad_()
    probe = tensor(num_rows, width, dtype=dtype, seed=2)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}

    out = matrix @ h
    (gradient,) = torch.autograd.grad((out * probe).sum(), h)

    assert out.dtype == gradient.dtype == h.dtype
    np.testing.assert_allclose(out.detach().numpy(), dense @ h.detach().numpy(), **tolerance)
    np.testing.assert_allclose(gradient.numpy(), dense.T @ probe.numpy(), **tolerance)


@pytest.mark.parametrize("view", [lambda h: h.T.contiguous().T, lambda h: h[:, ::2], lambda h: h[:, :1].expand(-1, 4)])
def test_layout_of_the_dense_factor_does_not_matter(view):
    matrix, dense = entries(9, 6, 30)
    h = view(tensor(6, 8))
    assert not h.is_contiguous()
    assert torch.equal(matrix @ h, matrix @ h.contiguous())
    np.testing.assert_allclose((matrix @ h).numpy(), dense @ h.numpy(), rtol=1e-12, atol=1e-12)


def test_an_expanded_gradient_is_read_right():
    matrix, dense = entries(9, 6, 30)
    h = tensor(6, 3).requires_grad_()
    (matrix @ h).sum().backward()
    np.testing.assert_allclose(h.grad.numpy(), dense.T @ np.ones((9, 3)), rtol=1e-12, atol=1e-12)


def test_read_only_arrays_multiply_as_well():
    matrix, dense = entries(9, 6, 30)
    for array in (matrix.pattern.indptr, matrix.pattern.indices, matrix.values):
        array.setflags(write=False)
    frozen = SparseMatrix(Pattern(matrix.pattern.indptr, matrix.pattern.indices, 6), matrix.values)
    h = tensor(6, 3).requires_grad_()
    out = frozen @ h
    out.sum().backward()
    np.testing.assert_allclose(out.detach().numpy(), dense @ h.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(h.grad.numpy(), dense.T @ np.ones((9, 3)), rtol=1e-12, atol=1e-12)


def test_gradcheck():
    matrix, _ = entries(6, 5, 14)
    assert torch.autograd.gradcheck(lambda h: matrix @ h, (tensor(5, 3).requires_grad_(),))


def test_shapes_that_do_not_fit_are_refused():
    matrix, _ = entries(6, 5, 14)
    with pytest.raises(ValueError, match=r"\(6, 5\) by \(6, 2\)"):
        matrix @ tensor(6, 2)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_transposed_and_its_transpose(index):
    matrix, dense = entries(8, 5, 25, index=index)
    back = matrix.transposed.transposed
    assert matrix.transposed.shape == (5, 8)
    assert matrix.transposed.pattern.indices.dtype == index
    np.testing.assert_array_equal(matrix.transposed.to_scipy().toarray(), dense.T)
    np.testing.assert_array_equal(back.to_scipy().toarray(), dense)


def test_a_pattern_shared_by_other_values_keeps_one_transpose():
    matrix, _ = entries(8, 5, 25)
    other = SparseMatrix(matrix.pattern, matrix.values * 2)
    assert other.transposed.pattern is matrix.transposed.pattern
    np.testing.assert_array_equal(other.transposed.values, matrix.transposed.values * 2)


@pytest.mark.parametrize("index", [[], [3], [5, 0, 5, 2], list(range(8))])
def test_rows_are_those_of_the_dense_matrix_in_the_order_asked(index):
    matrix, dense = entries(8, 5, 25)
    part = matrix.rows(np.array(index, dtype=np.int64))
    assert part.shape == (len(index), 5)
    np.testing.assert_array_equal(part.to_scipy().toarray(), dense[index])
    h = tensor(5, 3)
    assert torch.equal(part @ h, (matrix @ h)[index])


def test_scipy_there_and_back():
    matrix, dense = entries(8, 5, 12, dtype=np.float32)
    wide = SparseMatrix.from_scipy(matrix.to_scipy(), np.float64)
    assert wide.values.dtype == np.float64
    assert wide.num_entries == 12
    assert wide.density == 12 / 40
    np.testing.assert_allclose(wide.to_scipy().toarray(), dense, rtol=1e-6)


@DTYPES
def test_equal_to_the_bit_for_any_thread_count_and_again(dtype):
    matrix, _ = entries(5000, 3000, 60_000, dtype=dtype)
    h, probe = tensor(3000, 33, dtype=dtype), tensor(5000, 33, dtype=dtype)
    before = numba.get_num_threads(), torch.get_num_threads()
    results = []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS, 1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            torch.set_num_threads(threads)
            leaf = h.clone().requires_grad_()
            out = matrix @ leaf
            out.backward(probe)
            results.append((out.detach(), leaf.grad))
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])


@given(st.lists(st.integers(0, 40) | st.just(5000), max_size=700))
def test_blocks_cover_all_rows_exactly_once(entries_of_row):
    indptr = np.concatenate([[0], np.cumsum(np.array(entries_of_row, dtype=np.int64))]).astype(np.int64)
    blocks = Pattern(indptr, np.zeros(indptr[-1], np.int32), 1).blocks
    covered = [row for start, stop in pairwise(blocks) for row in range(start, stop)]
    assert covered == list(range(len(entries_of_row)))
    if entries_of_row:  # no block has more than its share of the work, but for one row that is more by itself
        work = np.array(entries_of_row) + 1
        sums = np.add.reduceat(work, blocks[:-1])
        assert (sums <= work.sum() / 256 + work.max() + 1).all()


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 30), st.integers(0, 2**32))
def test_any_small_matrix_multiplies_like_scipy(num_rows, num_columns, count, seed):
    count = count if num_rows and num_columns else 0
    matrix, dense = entries(num_rows, num_columns, count, seed=seed)
    h = tensor(num_columns, 2, seed=seed)
    np.testing.assert_allclose((matrix @ h).numpy(), sp.csr_matrix(dense) @ h.numpy(), rtol=1e-12, atol=1e-12)
