"""The trainer: it owns one shard and answers the team's messages. What it can do beyond the basics, its method says."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from farflung.errors import FarflungError
from farflung.local_inference import VERB, LocalInference
from farflung.nn.config import Facts, ModelConfig
from farflung.nn.encoder import build_encoder
from farflung.nn.model import Model, build_link_model
from farflung.nn.optim import OptimConfig
from farflung.partition import Shard
from farflung.partition.arrays import from_arrays, to_arrays
from farflung.partition.shard import GraphInfo
from farflung.tasks.batches import SampleConfig
from farflung.tasks.link_prediction import LinkConfig
from farflung.tasks.metrics import State
from farflung.team.clock import Clock
from farflung.team.message import Message

Task: TypeAlias = Literal["node-classification", "link-prediction"]


class TrainerSpec(BaseModel):
    """Everything that a trainer must know beside its shard; travels as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str
    """`module:Class` of the trainer."""
    model: ModelConfig
    optim: OptimConfig
    num_features: int
    num_classes: int
    """Classes of nodes; 0 where links are predicted."""
    multilabel: bool
    heads: bool
    seed: int
    dtype: str
    task: Task = "node-classification"
    links: LinkConfig = LinkConfig()
    sample: SampleConfig = SampleConfig()
    directed: bool = False
    """Whether a link is a directed edge, not a pair; matters where links are predicted."""
    boundary_rate: float = 1.0
    """Share of each boundary's rows that is sent per step; matters where embeddings are."""
    facts: Facts = Facts()
    num_relations: int = 1
    """Edge types; matters where the decoder tells them apart."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch has it."""
        return getattr(torch, self.dtype)

    def build_model(self) -> Model:
        """The model with its initial weights, equal wherever it is built."""
        width, seed, dtype = self.num_features, self.seed, self.torch_dtype
        if self.task == "link-prediction":
            relations = self.num_relations
            return build_link_model(
                self.model, self.links.decoder, width, relations, seed, dtype, self.heads, self.facts
            )
        return build_encoder(self.model, width, self.num_classes, self.heads, seed, dtype, facts=self.facts)

    def build_trainer(self, shard: Shard, clock: Clock) -> Trainer:
        """The trainer that `target` names, on its shard."""
        module, _, name = self.target.partition(":")
        trainer_class: Callable[[Shard, TrainerSpec, Clock], Trainer] = getattr(importlib.import_module(module), name)
        return trainer_class(shard, self, clock)


class Trainer:
    """Base of all trainers. A message with verb `train-step` is answered by the method `on_train_step`.

    All take part in exact inference, with weights that are sent; it touches nothing of what they train.
    """

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        self.shard = shard
        self.spec = spec
        self.clock = clock
        self.model = spec.build_model()
        self._inference: LocalInference | None = None

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        if message.verb.startswith(VERB):
            if self._inference is None or self._inference.shard is not self.shard:
                self._inference = LocalInference(self.shard, self.spec)
            return self._inference.handle(message)
        handler = getattr(self, "on_" + message.verb.replace("-", "_"), None)
        if handler is None:
            raise FarflungError(f"{type(self).__name__} does not know the message '{message.verb}'")
        return handler(message)


def metric_arrays(state: State) -> dict[str, np.ndarray]:
    """Counts as arrays of a message, under the kind `metrics`."""
    return {f"metrics/{name}": value for name, value in state.items()}


def metric_state(arrays: Mapping[str, np.ndarray]) -> State:
    """The counts among the arrays of a message; empty where it has none."""
    return {n.removeprefix("metrics/"): v for n, v in arrays.items() if n.startswith("metrics/")}


def part_message(shard: Shard, deal: int) -> Message:
    """A part handed out while training goes on; `deal` counts how often the parts were drawn anew."""
    scalars = {"deal": deal, "part": shard.part, "parts": shard.num_parts, "info": asdict(shard.info)}
    return Message("part", scalars, {f"setup/{name}": array for name, array in to_arrays(shard).items()})


def shard_of(message: Message) -> Shard:
    """The part in a message of `part_message`."""
    info: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list | tuple) else v for name, v in message.scalars["info"].items()
    }
    arrays = {n.removeprefix("setup/"): v for n, v in message.arrays.items() if n.startswith("setup/")}
    return from_arrays(message.scalars["part"], message.scalars["parts"], GraphInfo(**info), arrays)
