import math

import numba
import numpy as np
import pytest
import torch

from farflung.kernels import Pattern, attend

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
BOTH = pytest.mark.parametrize("average", [False, True])


def pattern(num_rows: int, num_columns: int, count: int, seed: int = 0, index: type = np.int32) -> Pattern:
    """Random edges: some twice, every second row empty."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(0, max(1, num_rows // 2), count) * 2 % max(1, num_rows))
    columns = rng.integers(0, max(1, num_columns), count)
    return Pattern(np.searchsorted(rows, np.arange(num_rows + 1)), columns.astype(index), num_columns)


def inputs(num_rows: int, num_columns: int, heads: int, width: int, dtype: type = np.float64):
    """A product [K, H D + 2 H], whose destinations stand in some order, and a gradient for the sum [R, H D]."""
    rng = np.random.default_rng(1)
    product = torch.from_numpy(rng.standard_normal((num_columns, heads * (width + 2))).astype(dtype))
    return product.requires_grad_(), rng.permutation(num_columns)[:num_rows]


def naive(product: np.ndarray, edges: Pattern, own: np.ndarray, heads: int, average: bool) -> np.ndarray:
    """Loops in Python numbers."""
    width = product.shape[1] // heads - 2
    out = np.zeros((edges.shape[0], heads, width))
    for i in range(edges.shape[0]):
        sources = edges.indices[edges.indptr[i] : edges.indptr[i + 1]].tolist()
        for h in range(heads):
            t, s = heads * width + h, heads * width + heads + h
            scores = [float(product[own[i], s]) + float(product[j, t]) for j in sources]
            scores = [x if x > 0 else 0.2 * x for x in scores]
            shares = [math.exp(x - max(scores)) for x in scores]
            for share, j in zip(shares, sources, strict=True):
                out[i, h] += share / sum(shares) * product[j, h * width : (h + 1) * width]
    return out.mean(axis=1) if average else out.reshape(len(out), heads * width)


def by_autograd(product: torch.Tensor, edges: Pattern, own: np.ndarray, heads: int, average: bool) -> torch.Tensor:
    """The same in PyTorch's own operations, one row at a time."""
    width = product.shape[1] // heads - 2
    rows = product[:, : heads * width].reshape(-1, heads, width)
    t, s = product[:, heads * width :].split(heads, dim=1)
    out = []
    for i in range(edges.shape[0]):
        sources = torch.from_numpy(edges.indices[edges.indptr[i] : edges.indptr[i + 1]].astype(np.int64))
        shares = torch.softmax(torch.nn.functional.leaky_relu(s[own[i]] + t[sources], 0.2), dim=0)
        out.append((shares.unsqueeze(2) * rows[sources]).sum(dim=0))
    whole = torch.stack(out)
    return whole.mean(dim=1) if average else whole.flatten(1)


@DTYPES
@BOTH
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("num_rows", "num_columns", "count", "heads", "width"),
    [
        (7, 9, 30, 2, 3),
        (300, 400, 3000, 3, 5),
        (90, 400, 200, 2, 3),
        (4, 4, 0, 2, 2),
        (0, 5, 0, 1, 3),
        (0, 0, 0, 2, 1),
        (5, 6, 40, 1, 1),
    ],
)
def test_sum_and_gradient_equal_the_loop(num_rows, num_columns, count, heads, width, index, average, dtype):
    edges = pattern(num_rows, num_columns, count, index=index)
    product, own = inputs(num_rows, num_columns, heads, width, dtype)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}
    out = attend(product, edges, own, heads, average)
    assert out.dtype == product.dtype
    assert out.shape == (num_rows, width if average else heads * width)
    np.testing.assert_allclose(
        out.detach().numpy(), naive(product.detach().numpy(), edges, own, heads, average), **close
    )
    probe = torch.from_numpy(np.random.default_rng(2).standard_normal(out.shape).astype(dtype))
    (gradient,) = torch.autograd.grad((out * probe).sum(), product)
    assert gradient.shape == product.shape
    if num_rows:
        expected = by_autograd(product, edges, own, heads, average)
        (wanted,) = torch.autograd.grad((expected * probe).sum(), product)
        np.testing.assert_allclose(gradient.numpy(), wanted.numpy(), **close)


@BOTH
def test_gradcheck(average):
    edges = pattern(6, 5, 24)
    product, _ = inputs(5, 5, 2, 3)
    own = np.array([0, 4, 4, 2, 1, 0])  # two destinations may be the same source
    assert torch.autograd.gradcheck(lambda p: attend(p, edges, own, 2, average), (product,))


@DTYPES
@pytest.mark.parametrize("scale", [1e3, 1e30])
def test_scores_however_large_give_shares(scale, dtype):
    edges = pattern(40, 30, 300)
    product, own = inputs(30, 30, 2, 3, dtype)
    own = np.concatenate([own, own[:10]])
    far = product.detach().clone()
    far[:, 6:] *= scale
    far.requires_grad_()
    out = attend(far, edges, own, 2, False)
    out.sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(far.grad).all()
    assert out.abs().max() <= product[:, :6].abs().max() * 1.0001  # a mean is within its range
    expected = naive(far.detach().numpy().astype(np.float64), edges, own, 2, False)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-3, atol=1e-3)


def test_equal_scores_give_the_mean_over_the_edges_and_a_copy_counts():
    edges = Pattern(np.array([0, 3, 3, 4]), np.array([2, 0, 2, 1], np.int32), 3)
    product = torch.tensor([[3.0, 5.0, 0.0], [7.0, 5.0, 0.0], [0.0, 5.0, 0.0]], dtype=torch.float64)
    out = attend(product, edges, np.arange(3), 1, False)
    np.testing.assert_allclose(out.numpy(), [[1.0], [0.0], [7.0]], rtol=1e-15)


def test_what_is_not_a_number_stays_with_those_that_attend_to_it():
    edges = Pattern(np.array([0, 2, 4, 5]), np.array([0, 2, 1, 2, 0], np.int32), 3)
    product, _ = inputs(3, 3, 2, 2)
    with torch.no_grad():
        product[1, :] = torch.nan
    out = attend(product, edges, np.arange(3), 2, False)
    assert torch.isnan(out[1]).all() and torch.isfinite(out[[0, 2]]).all()


@BOTH
def test_layout_and_training_change_no_bit(average):
    edges = pattern(50, 60, 500)
    product, own = inputs(50, 60, 4, 5, np.float32)
    out = attend(product, edges, own, 4, average)
    plain = product.detach()
    for same in (plain, plain.T.contiguous().T):
        assert torch.equal(attend(same, edges, own, 4, average), out)
    probe = torch.ones(out.shape[1]).expand(out.shape)  # a gradient that is not contiguous
    (gradient,) = torch.autograd.grad(out, product, probe, retain_graph=True)
    (again,) = torch.autograd.grad(out, product, probe.contiguous())
    assert torch.equal(gradient, again)


@DTYPES
@BOTH
def test_equal_to_the_bit_for_any_thread_count_and_again(average, dtype):
    edges = pattern(3000, 3000, 40_000)
    product, own = inputs(3000, 3000, 4, 7, dtype)
    probe = torch.from_numpy(np.random.default_rng(2).standard_normal((3000, 7 if average else 28)).astype(dtype))
    before = numba.get_num_threads()
    results = []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS, 1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            out = attend(product, edges, own, 4, average)
            results.append((out.detach(), *torch.autograd.grad(out, product, probe)))
    finally:
        numba.set_num_threads(before)
    for out, gradient in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(gradient, results[0][1])
