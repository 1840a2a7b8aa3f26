import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.kernels import Operand, Product, SparseMatrix, dropout, dropped, formed, rows, times
from farflung.kernels.dropout import drop

R, K, F = 9, 12, 6
KINDS = ["dense", "sparse", "product of dense", "product of sparse"]


def random(*shape: int, seed: int, density: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * (rng.random(shape) < density)


def sparse(dense: np.ndarray) -> SparseMatrix:
    return SparseMatrix.from_scipy(sp.csr_matrix(dense), np.float64)


def make(kind: str, density: float = 0.3) -> tuple[Operand, torch.Tensor, torch.Tensor | None]:
    """An operand [R, F], the same as a dense expression, and the leaf that both depend on."""
    adjacency = random(R, K, seed=0, density=0.3)
    if kind == "dense":
        leaf = torch.from_numpy(random(R, F, seed=1)).requires_grad_()
        return leaf, leaf, leaf
    if kind == "sparse":
        factor = random(R, F, seed=2, density=density)
        return sparse(factor), torch.from_numpy(factor), None
    if kind == "product of dense":
        leaf = torch.from_numpy(random(K, F, seed=3)).requires_grad_()
        return Product(sparse(adjacency), leaf), torch.from_numpy(adjacency) @ leaf, leaf
    factor = random(K, F, seed=4, density=density)
    return Product(sparse(adjacency), sparse(factor)), torch.from_numpy(adjacency @ factor), None


def dense(operand: Operand) -> torch.Tensor:
    operand = formed(operand)
    return torch.from_numpy(operand.to_scipy().toarray()) if isinstance(operand, SparseMatrix) else operand


@pytest.mark.parametrize("width", [1, F - 1, F, F + 1, 2 * F], ids="out={}".format)
@pytest.mark.parametrize("kind", KINDS)
def test_times_equals_the_dense_product_and_its_gradients(kind, width):
    operand, expected, leaf = make(kind)
    weight = torch.from_numpy(random(F, width, seed=5)).requires_grad_()
    probe = torch.from_numpy(random(R, width, seed=6))
    leaves = [weight] if leaf is None else [weight, leaf]

    out, oracle = times(operand, weight), expected @ weight
    got = torch.autograd.grad((out * probe).sum(), leaves)
    wanted = torch.autograd.grad((oracle * probe).sum(), leaves)

    torch.testing.assert_close(out, oracle, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_formed_is_the_dense_operand(kind):
    operand, expected, _ = make(kind)
    assert tuple(operand.shape) == (R, F)
    assert not isinstance(formed(operand), Product)
    torch.testing.assert_close(dense(operand), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("density", "kind"), [(0.02, SparseMatrix), (1.0, torch.Tensor)])
def test_a_sparse_product_stays_sparse_while_it_is(density, kind):
    operand, expected, _ = make("product of sparse", density)
    assert isinstance(formed(operand), kind)
    torch.testing.assert_close(dense(operand), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [[], [4], [8, 0, 3, 3]])
def test_rows_equal_dense_rows_and_are_the_same_kind(kind, index):
    operand, expected, _ = make(kind)
    part = rows(operand, np.array(index, dtype=np.int64))
    assert type(part) is (torch.Tensor if kind == "dense" else type(operand))
    assert tuple(part.shape) == (len(index), F)
    torch.testing.assert_close(dense(part), expected[index], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_dropped_acts_on_the_formed_operand(kind, density):
    operand, _, leaf = make(kind, density)
    plain, out = formed(operand), dropped(operand, 0.5, 3)
    assert dropped(operand, 0.5, None) is operand
    assert dropped(operand, 0.0, 3) is operand
    if isinstance(plain, SparseMatrix):
        np.testing.assert_array_equal(out.values, drop(plain.values, 0.5, 3))
        return
    assert torch.equal(out, dropout(plain, 0.5, 3))
    if leaf is not None:
        (got,) = torch.autograd.grad(out.sum(), leaf)
        mask = torch.from_numpy(drop(np.ones((R, F)), 0.5, 3))
        (wanted,) = torch.autograd.grad((formed(operand) * mask).sum(), leaf)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_operands_without_rows(kind):
    operand = rows(make(kind)[0], np.empty(0, np.int64))
    weight = torch.ones(F, 2, dtype=torch.float64, requires_grad=True)
    out = times(dropped(operand, 0.5, 1), weight)
    out.sum().backward()
    assert out.shape == (0, 2)
    assert torch.equal(weight.grad, torch.zeros_like(weight))
