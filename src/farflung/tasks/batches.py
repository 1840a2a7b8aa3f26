"""What one training step sees: all of a part, or a batch of its examples with a sample of their neighbourhoods."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from farflung.errors import InputError
from farflung.seeding import generator


def parse_fanouts(text: object) -> tuple[int, ...] | None:
    """`10,25` or `10/25` -> (10, 25); `full` or None -> None. Raises InputError on anything else."""
    if text is None or text == "full":
        return None
    parts = list(text) if isinstance(text, list | tuple) else re.split(r"[,/]", str(text))
    numbers = tuple(int(str(part)) if str(part).strip().isdecimal() else 0 for part in parts)
    if min(numbers, default=0) < 1 or max(numbers) >= 2**31:
        raise InputError(f"'{text}' are no fan-outs: write one number per layer as '10,25', or 'full'")
    return numbers


def _print_fanouts(fanouts: tuple[int, ...] | None) -> str:
    return "full" if fanouts is None else ",".join(map(str, fanouts))


class SampleConfig(BaseModel):
    """What one training step sees of a part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fanouts: Annotated[
        tuple[int, ...] | None,
        BeforeValidator(parse_fanouts),
        PlainSerializer(_print_fanouts, return_type=str),
    ] = Field(
        None, description="neighbours drawn per node, one number per layer, the first layer's first: 10,25; or full"
    )
    batch: int | None = Field(
        None, ge=1, description="training nodes (links: positive pairs; lazy: rows) per step; None: all at once"
    )
    replace: bool = Field(False, description="whether neighbours are drawn with replacement")


class Batches:
    """Examples 0..n-1 in batches: each once per epoch, in an order drawn anew for each; the last may be small."""

    def __init__(self, count: int, size: int | None, seed: int, part: int) -> None:
        """`count` examples n >= 0; `size` >= 1, or None: all in one batch, in their own order."""
        self.count = count
        self.size = max(1, count) if size is None else size
        self.per_epoch = -(-count // self.size)
        self._shuffled = size is not None
        self._place = (seed, part)
        self._epoch = -1
        self._order = np.arange(count)

    def __getitem__(self, step: int) -> np.ndarray:
        """The examples of step number `step` since the start of training, int64. Needs n >= 1."""
        epoch, number = divmod(step, self.per_epoch)
        if self._shuffled and epoch != self._epoch:
            seed, part = self._place
            self._order = generator(seed, "batches", part, epoch).permutation(self.count)
            self._epoch = epoch
        return self._order[number * self.size : (number + 1) * self.size]
