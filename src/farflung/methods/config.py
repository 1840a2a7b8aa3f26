"""Options of the training methods: how long to train, how often to aggregate."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from farflung.errors import InputError

_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


class Steps(BaseModel):
    """A budget of `n` optimiser steps."""

    model_config = ConfigDict(frozen=True)
    n: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.n}steps"


class Seconds(BaseModel):
    """A budget of `s` seconds on the team's clock."""

    model_config = ConfigDict(frozen=True)
    s: float = Field(gt=0)

    def __str__(self) -> str:
        return f"{repr(float(self.s)).removesuffix('.0')}s"


def parse_budget(text: object) -> Steps | Seconds:
    """`50steps`, `50` -> Steps(50); `2s`, `1.5min`, `4h` -> Seconds. Raises InputError on anything else."""
    if isinstance(text, Steps | Seconds):
        return text
    found = re.fullmatch(rf"\s*({_NUMBER})\s*(steps?|s|sec|min|h)?\s*", str(text))
    unit = found.group(2) if found else None
    if found and float(found.group(1)) > 0:
        number = float(found.group(1))
        if unit in ("s", "sec", "min", "h"):
            return Seconds(s=number * {"s": 1, "sec": 1, "min": 60, "h": 3600}[unit])
        if number.is_integer():
            return Steps(n=int(number))
    raise InputError(f"'{text}' is no interval: write steps as '50steps' or time as '2s', '1.5min', '4h'")


def parse_seconds(text: object) -> float | None:
    """`60s`, `1.5min`, `4h` or a bare number of seconds -> seconds; None stays None."""
    if text is None:
        return None
    if isinstance(text, float):
        if not text > 0:
            raise InputError(f"{text:g} seconds are no time: give more than 0")
        return text
    budget = parse_budget(f"{text}s" if re.fullmatch(rf"\s*{_NUMBER}\s*", str(text)) else text)
    if isinstance(budget, Steps):
        raise InputError(f"'{text}' is no time: write '60s', '1.5min' or '4h'")
    return budget.s


Budget = Annotated[Steps | Seconds, BeforeValidator(parse_budget), PlainSerializer(str, return_type=str)]


class TrainConfig(BaseModel):
    """How long to train and how often to aggregate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(400, ge=1, description="optimiser steps in all; lazy training shares them among its layers")
    interval: Budget = Field(
        Steps(n=10), description="between two aggregations (centralised: evaluations): '50steps' or '2s'"
    )
    time_limit: Annotated[float | None, BeforeValidator(parse_seconds)] = Field(
        None, description="seconds on the team's clock after which training ends; None: only steps end it"
    )
    keep: Literal["best", "last"] = Field("best", description="which weights count: best by validation, or last")
    deadline: Annotated[float | None, BeforeValidator(parse_seconds)] = Field(
        None, description="seconds after which a trainer that has not answered counts as late; None: wait"
    )
    aggregation: Literal["mean", "examples", "median", "trimmed-mean", "nesterov"] = Field(
        "mean",
        description="how the server makes one weight vector of several: mean of the trainers that have training "
        "examples, mean by number of examples, coordinate-wise median or trimmed mean, or an outer Nesterov step on "
        "the mean",
    )
    trim: float = Field(
        0.2,
        gt=0,
        lt=0.5,
        description="trimmed-mean: share of the trainers (> 0, < 0.5) whose values are left out at each end, rounded "
        "down, but one at least where there are three or more",
    )
    outer_lr: float = Field(0.7, gt=0, description="nesterov: learning rate of the outer step (> 0)")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="nesterov: momentum of the outer step (>= 0, < 1)")
    soup: bool = Field(
        False,
        description="whether the best weights are mixed, in the end, with the trainers' own last ones as long as the "
        "validation score does not fall",
    )
    moments: Literal["keep", "average"] = Field(
        "keep", description="Adam's moments: each trainer keeps its own, or sends them along and gets the mean"
    )
    redeal: int = Field(0, ge=0, description="aggregations after which the parts are drawn anew; 0: never")
    correction_steps: int = Field(2, ge=0, description="llcg: steps of the server after each mean (>= 0)")
    boundary_rate: float = Field(
        1.0, gt=0, le=1, description="share of the rows of each boundary that is drawn anew and sent per step (0..1]"
    )
    evaluation: Literal["central", "exchange"] = Field(
        "central",
        description="who validates: an evaluator that holds the whole graph, or the trainers, by exact inference with "
        "one exchange of embeddings per layer",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="rounds without a better validation score that end training (lazy: a layer); None: none do",
    )
    wire: Literal["float32", "float16", "int8"] = Field(
        "float32", description="numbers of the rows that lazy training exchanges, as they are sent"
    )
    lazy: Literal["gradients", "weights"] = Field(
        "gradients",
        description="what trainers of lazy training send: a gradient per step, or their weights once per interval",
    )
