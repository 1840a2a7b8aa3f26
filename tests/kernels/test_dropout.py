import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.kernels import SparseMatrix, dropout, dropped
from farflung.kernels.dropout import drop
from farflung.seeding import derive

CHUNK = 1 << 15
KEYS = [0, 1, 2, derive(0, "dropout", 1), 2**63 - 1]


def kept(count: int, share: float, key: int) -> np.ndarray:
    """Which of `count` positions stay, as the kernel says. bool."""
    return drop(np.ones(count, np.float32), share, key) != 0


def naive_kept(position: int, share: float, key: int) -> bool:
    """The documented hash in plain Python integers."""
    chunk, i = divmod(position, CHUNK)
    mixed = (key + chunk * 0x9E3779B97F4A7C15) % 2**64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = (i * 0x9E3779B1) % 2**32 ^ (mixed >> 32)
    x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
    x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
    return (x ^ (x >> 16)) >= round(share * 2**32)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_mask_is_the_documented_hash_in_every_chunk(share, key):
    mask = kept(3 * CHUNK + 5, share, key)
    places = [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 77, 3 * CHUNK, 3 * CHUNK + 4]
    assert [bool(mask[place]) for place in places] == [naive_kept(place, share, key) for place in places]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.8])
def test_share_of_zeros_and_mean_are_within_binomial_bounds(share, key):
    count = 200_000
    out = drop(np.ones(count), share, key)
    sd = np.sqrt(share * (1 - share) / count)
    assert abs(np.mean(out == 0) - share) < 5 * sd
    assert abs(out.mean() - 1) < 5 * sd / (1 - share)
    np.testing.assert_array_equal(np.unique(out), [0, 1 / (1 - share)])


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (300, 257), (2, 5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_and_dtype_stay_and_the_mask_follows_the_position(shape, dtype):
    values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    out = drop(values, 0.4, 7)
    assert out.dtype == dtype
    mask = kept(values.size, 0.4, 7).reshape(shape)
    np.testing.assert_array_equal(out, np.where(mask, values * dtype(1 / 0.6), dtype(0)))


def test_layout_of_the_values_does_not_matter():
    values = np.random.default_rng(0).standard_normal((300, 257))
    for view in (np.asfortranarray(values), np.repeat(values, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(drop(view, 0.4, 7), drop(values, 0.4, 7))


def test_share_0_changes_nothing():
    values = np.random.default_rng(0).standard_normal(1000)
    np.testing.assert_array_equal(drop(values, 0.0, 3), values)
    operand = torch.from_numpy(values)
    assert dropped(operand, 0.0, 3) is operand
    assert dropped(operand, 0.5, None) is operand


def test_the_same_key_gives_the_same_mask_for_any_thread_count_and_another_key_another():
    before = numba.get_num_threads()
    masks = []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            masks.append(kept(5 * CHUNK, 0.5, 11))
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != kept(5 * CHUNK, 0.5, 12)).any()


def correlation(a: np.ndarray, b: np.ndarray, share: float) -> float:
    """Of two masks, in standard deviations of what independent ones would show."""
    expected = (1 - share) ** 2
    return (np.mean(a & b) - expected) / np.sqrt(expected * (1 - expected) / len(a))


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 64, 256, CHUNK, CHUNK + 1])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_neighbouring_positions_rows_and_chunks_are_independent(share, lag):
    mask = kept(8 * CHUNK, share, derive(1, "dropout"))
    # Over lag 1 the pairs overlap, which widens the spread of their mean by at most sqrt(3).
    assert abs(correlation(mask[lag:], mask[:-lag], share)) < 5 * np.sqrt(3)


@pytest.mark.parametrize("shift", [0, 1, 64])
def test_keys_are_independent(shift):
    keys = [*range(6), *(derive(0, "dropout", step) for step in range(6))]
    masks = [kept(4 * CHUNK, 0.5, key) for key in keys]
    for i, one in enumerate(masks):
        for other in masks[i + 1 :]:
            assert abs(correlation(one[shift:], other[: len(other) - shift], 0.5)) < 5


def test_each_position_is_dropped_by_its_share_of_keys():
    share, rounds = 0.3, 2000
    counts = sum(1 - kept(64, share, derive(0, "dropout", step)).astype(int) for step in range(rounds))
    assert (np.abs(counts / rounds - share) < 5 * np.sqrt(share * (1 - share) / rounds)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_backward_draws_the_mask_of_forward(dtype, transposed):
    values = torch.randn(300, 250, dtype=dtype, generator=torch.Generator().manual_seed(0))
    values = (values.T if transposed else values).requires_grad_()
    out = dropout(values, 0.4, 5)
    probe = torch.randn(out.shape[::-1], dtype=dtype, generator=torch.Generator().manual_seed(1)).T
    (gradient,) = torch.autograd.grad((out * probe).sum(), values)
    mask = torch.from_numpy(kept(values.numel(), 0.4, 5)).reshape(values.shape)
    scale = torch.tensor(1 / 0.6, dtype=dtype)
    assert torch.equal(out, torch.where(mask, values * scale, 0))
    assert torch.equal(gradient, torch.where(mask, probe * scale, 0))


def test_on_a_sparse_matrix_dropout_acts_on_the_stored_entries():
    dense = np.random.default_rng(0).standard_normal((40, 30)) * (np.random.default_rng(1).random((40, 30)) < 0.2)
    matrix = SparseMatrix.from_scipy(sp.csr_matrix(dense), np.float64)
    out = dropped(matrix, 0.5, 9)
    assert isinstance(out, SparseMatrix)
    assert out.pattern is matrix.pattern
    np.testing.assert_array_equal(out.values, drop(matrix.values, 0.5, 9))
    result = out.to_scipy().toarray()
    stays = result != 0
    np.testing.assert_array_equal(result[stays], 2 * dense[stays])
    assert 0.3 < stays.sum() / np.count_nonzero(dense) < 0.7
