"""The trainer: it owns one shard and answers the team's messages. What it can do beyond the basics, its method says."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import BaseModel, ConfigDict

from farflung.errors import FarflungError
from farflung.graph.graph import MASKS
from farflung.kernels import SparseMatrix
from farflung.nn.config import ModelConfig
from farflung.nn.encoder import Encoder, build_encoder
from farflung.nn.optim import OptimConfig
from farflung.partition import Shard
from farflung.tasks.metrics import State
from farflung.tasks.node_classification import NodeClassification
from farflung.team.clock import Clock
from farflung.team.message import Message


class TrainerSpec(BaseModel):
    """Everything that a trainer must know beside its shard; travels as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    """`module:Class` of the trainer."""
    model: ModelConfig
    optim: OptimConfig
    num_features: int
    num_classes: int
    multilabel: bool
    heads: bool
    seed: int
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        return getattr(torch, self.dtype)

    def build_model(self) -> Encoder:
        """The model with its initial weights, equal wherever it is built."""
        return build_encoder(self.model, self.num_features, self.num_classes, self.heads, self.seed, self.torch_dtype)

    def build_trainer(self, shard: Shard, clock: Clock) -> Trainer:
        """The trainer that `target` names, on its shard."""
        module, _, name = self.target.partition(":")
        trainer_class: Callable[[Shard, TrainerSpec, Clock], Trainer] = getattr(importlib.import_module(module), name)
        return trainer_class(shard, self, clock)


def features_as_factor(x: np.ndarray | sp.csr_matrix, dtype: torch.dtype) -> torch.Tensor | SparseMatrix:
    """Features for the first layer: dense ones as a tensor, CSR ones sparse, both in `dtype`."""
    if sp.issparse(x):
        return SparseMatrix.from_scipy(x, numpy_dtype(dtype))
    return torch.from_numpy(np.array(x, dtype=numpy_dtype(dtype)))


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy type of a floating torch type."""
    return torch.empty(0, dtype=dtype).numpy().dtype


class Trainer:
    """Base of all trainers. A message with verb `train-step` is answered by the method `on_train_step`."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        self.shard = shard
        self.spec = spec
        self.clock = clock
        self.task = NodeClassification(spec.num_classes, spec.multilabel)
        self.model = spec.build_model()
        self.rows = {
            name: np.flatnonzero(getattr(shard.split, name)) if shard.split is not None else np.empty(0, np.int64)
            for name in MASKS
        }

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        handler = getattr(self, "on_" + message.verb.replace("-", "_"), None)
        if handler is None:
            raise FarflungError(f"{type(self).__name__} does not know the message '{message.verb}'")
        return handler(message)

    def on_hello(self, message: Message) -> Message:
        """How many nodes this trainer has, and how many of them train, validate and test."""
        sizes: Mapping[str, Any] = {name: len(rows) for name, rows in self.rows.items()}
        return Message("hello", {"nodes": self.shard.num_inner, **sizes})

    def factor(self) -> torch.Tensor | SparseMatrix:
        """Features of the inner nodes, [n, F]."""
        assert self.shard.x is not None
        return features_as_factor(self.shard.x, self.spec.torch_dtype)

    @cached_property
    def train_rows(self) -> torch.Tensor:
        """Inner nodes that train, int64."""
        return torch.from_numpy(self.rows["train"])

    @cached_property
    def train_targets(self) -> torch.Tensor:
        """Labels of the training rows, as the loss wants them."""
        assert self.shard.y is not None
        return self.task.targets(self.shard.y, self.rows["train"], self.spec.torch_dtype)


def metric_arrays(state: State) -> dict[str, np.ndarray]:
    """Counts as arrays of a message, under the kind `metrics`."""
    return {f"metrics/{name}": value for name, value in state.items()}


def metric_state(arrays: Mapping[str, np.ndarray]) -> State:
    """The counts among the arrays of a message; empty where it has none."""
    return {n.removeprefix("metrics/"): v for n, v in arrays.items() if n.startswith("metrics/")}
