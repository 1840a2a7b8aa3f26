"""Node classification, single- and multi-label: which rows, which loss, which metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from farflung.tasks.metrics import State, count


@dataclass(frozen=True)
class NodeClassification:
    """The task of predicting classes of nodes."""

    num_classes: int
    multilabel: bool = False

    def targets(self, y: np.ndarray, rows: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """Labels of `rows` as the loss wants them: int64 [k], or `dtype` [k, C] where multi-label."""
        chosen = torch.from_numpy(np.ascontiguousarray(y[rows]))
        return chosen.to(dtype) if self.multilabel else chosen.long()

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy (multi-label: binary cross-entropy over all labels) of [k, C]; k >= 1."""
        if self.multilabel:
            return F.binary_cross_entropy_with_logits(logits, targets)
        return F.cross_entropy(logits, targets)

    def count(self, logits: torch.Tensor, y: np.ndarray) -> State:
        """Counts that metrics are made of, for the given rows; they add up across trainers exactly."""
        return count(logits.detach().cpu().numpy(), y)
