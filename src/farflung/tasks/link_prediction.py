"""Link prediction: its options, its loss, and exact scores of edges among their negatives.

Legend for shapes: N nodes, d width of the embeddings, k positives, K negatives of each, m in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field

from farflung.graph.links import Links
from farflung.nn.decoders import Decoder
from farflung.tasks.metrics import State
from farflung.tasks.ranking import count, merge


class LinkConfig(BaseModel):
    """How edges are predicted and judged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decoder: Literal["mlp", "dot", "distmult"] = Field(
        "mlp",
        description="score of a pair of embeddings: mlp on their product, dot product, or distmult, which tells edge "
        "types apart",
    )
    eval_negatives: int = Field(
        1000, ge=1, description="negatives that each validation and test edge is ranked among; fixed (>= 1)"
    )
    val_pairs: int | None = Field(
        None, ge=1, description="validation edges, drawn once, that each round's weights are scored on; None: all"
    )
    negatives: Literal["local", "global"] = Field(
        "local", description="training negatives are nodes of the trainer's own part, or of the whole graph"
    )
    per_positive: int = Field(1, ge=1, description="training negatives per edge (>= 1)")
    pool: int = Field(
        4096,
        ge=1,
        le=10_000_000,
        description="with global negatives: remote nodes fetched per trainer and round (1..10000000)",
    )
    mask_targets: bool = Field(
        True,
        description="hide an edge and its reverse from message passing while it is being predicted; false: the "
        "papers' way",
    )
    chunk: int = Field(
        262_144, ge=1, description="evaluation: pairs scored at a time, rounded to whole edges with negatives (>= 1)"
    )


@dataclass(frozen=True)
class LinkPrediction:
    """The task of telling edges from pairs that are none."""

    def loss(self, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        """Mean binary cross-entropy over all scores, of edges [k] and of negatives [k * m]."""
        targets = torch.cat([torch.ones_like(positive), torch.zeros_like(negative)])
        return F.binary_cross_entropy_with_logits(torch.cat([positive, negative]), targets)

    def count(self, positive: torch.Tensor, negative: torch.Tensor) -> State:
        """Ranks that metrics are made of, from scores [k] and [k, K]; see `farflung.tasks.ranking`."""
        return count(positive.detach().cpu().numpy(), negative.detach().cpu().numpy())


@torch.no_grad()
def score_links(decoder: Decoder, h: torch.Tensor, links: Links, chunk: int) -> State:
    """Score all of `links` from embeddings `h` [N, d], about `chunk` pairs at a time.

    Memory: the scores of a chunk and of one edge's negatives at least, and a decoder's fixed buffers. An edge's score
    comes from the same products as those of its negatives, so that equal embeddings tie.

    Raises NotFiniteError for scores that are not finite.
    """
    task = LinkPrediction()
    states = []
    step = max(1, chunk // (links.negatives.shape[1] + 1))
    for start in range(0, max(1, links.count), step):
        rows = slice(start, start + step)
        candidates = np.column_stack([links.destination[rows].astype(links.negatives.dtype), links.negatives[rows]])
        relation = None if links.relation is None else torch.from_numpy(links.relation[rows].astype(np.int64))
        scores = decoder.score_candidates(
            h, torch.from_numpy(links.source[rows]), torch.from_numpy(candidates), relation
        )
        states.append(task.count(scores[:, 0], scores[:, 1:]))
    return merge(states)
