"""What travels between server and trainers: a verb, JSON scalars and named arrays. Never a pickle, never code."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farflung.errors import FarflungError

KINDS = (
    "setup",
    "handshake",
    "features",
    "embeddings",
    "embedding-gradients",
    "gradients",
    "weights",
    "negatives",
    "neighbours",
    "evaluation",
    "metrics",
    "control",
)
"""What bytes are for. `control` is the envelope of a message: its verb and scalars, as JSON."""

TRAINING_KINDS = ("features", "embeddings", "embedding-gradients", "gradients", "weights", "negatives", "neighbours")
"""The kinds that training itself needs; their sums obey closed formulas (docs/methods.md)."""

SERVER = -1
"""The server's place in the ledger; trainers are 0..M-1."""
EVALUATOR = -2


@dataclass(frozen=True, eq=False)
class Message:
    """A verb with scalars and arrays.

    An array's name is its ledger kind, optionally with a path behind it: `weights`, `embeddings/3`,
    `features/2/indptr`. Scalars are whatever JSON holds.
    """

    verb: str
    scalars: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of each kind as sent: array payloads, and the JSON envelope under `control`."""
        sizes = {"control": len(json.dumps([self.verb, dict(self.scalars)]))}
        for name, array in self.arrays.items():
            kind = name.partition("/")[0]
            if kind not in KINDS:
                raise FarflungError(f"array '{name}' in message '{self.verb}' names no ledger kind: use {KINDS}")
            sizes[kind] = sizes.get(kind, 0) + array.nbytes
        return sizes


class Status(enum.StrEnum):
    """What became of a call to one trainer."""

    DONE = "done"
    LATE = "late"
    DEAD = "dead"


@dataclass(frozen=True, eq=False)
class Reply:
    """One trainer's answer to a call, or the lack of one."""

    trainer: int
    status: Status
    seconds: float = 0.0
    """Seconds that the trainer worked (virtual ones on a virtual clock)."""
    message: Message | None = None
    """None unless `status` is DONE."""
    reason: str = ""
    """Why it is late or dead."""

    @property
    def done(self) -> bool:
        """Whether it came in time."""
        return self.status is Status.DONE

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """Those of the message; none where there is no message."""
        return self.message.arrays if self.message else {}

    @property
    def scalars(self) -> Mapping[str, Any]:
        """Those of the message; none where there is no message."""
        return self.message.scalars if self.message else {}
