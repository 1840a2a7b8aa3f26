"""Features as the first layer multiplies them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from farflung.graph import FeatureBlock
from farflung.kernels import SparseMatrix


def features_as_factor(x: FeatureBlock, dtype: torch.dtype) -> torch.Tensor | SparseMatrix:
    """Features for the first layer: dense ones as a tensor, CSR ones sparse, both in `dtype`."""
    if sp.issparse(x):
        return SparseMatrix.from_scipy(x, numpy_dtype(dtype))
    return torch.from_numpy(np.array(x, dtype=numpy_dtype(dtype)))


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy type of a floating torch type."""
    return torch.empty(0, dtype=dtype).numpy().dtype
