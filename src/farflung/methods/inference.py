"""Exact inference by the trainers together, where nobody holds the whole graph: one exchange of rows per layer.

Bytes for 4-byte numbers, W trainers, P weights, b boundary rows in all, d_l the width of layer l's input: 4 W P for the
weights and 4 b (d_1 + ... + d_{L-1}) for the rows of each inference; 4 b d_0 for features, once. Their kind is
`evaluation`. An owner that is late or dead is left out of the aggregates (means are over the rest) and of the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farflung.nn.encoder import Layer
from farflung.nn.model import Model, encoder_of
from farflung.tasks import metrics
from farflung.team import Message, Reply, Team, require_some


def infer(
    team: Team, model: Model, weights: np.ndarray, layers: int | None = None, deadline: float | None = None
) -> list[int]:
    """Let every trainer embed its inner nodes by the first `layers` layers (None: all) with a flat weight vector [P].

    The rows stay with their owners. Returns the trainers that took the weights. Raises AllTrainersLostError where
    nobody is there.
    """
    stack: Sequence[Layer] = encoder_of(model).layers[:layers]
    begun = require_some(team.broadcast(Message("infer-begin", {}, {"evaluation": weights}), deadline), "inference")
    here = [reply.trainer for reply in begun]
    lacking = [reply.trainer for reply in begun if set(reply.scalars["missing"]) & set(here)]
    for number, layer in enumerate(stack):
        go_on = Message("infer-layer", {"layer": number})
        if layer.aggregation == "none" or (number == 0 and not lacking):
            team.call(dict.fromkeys(here, go_on), deadline)
        else:
            send = Message("infer-boundary", {"to": lacking} if number == 0 else {})
            team.exchange(dict.fromkeys(here, send), dict.fromkeys(here, go_on), deadline)
    return here


def evaluate(
    team: Team, model: Model, weights: np.ndarray, masks: Sequence[str], deadline: float | None = None
) -> dict[str, dict[str, float | None]]:
    """Metrics of class scores by mask (`train`, `val`, `test`), over the nodes of the trainers that answered.

    All None where a score is not finite; counts that are no numbers are left out. Raises AllTrainersLostError where
    nobody is there.
    """
    here = infer(team, model, weights, deadline=deadline)
    replies = team.call(dict.fromkeys(here, Message("infer-count", {"masks": list(masks)})), deadline)
    counted = require_some(replies, "metrics")
    if not all(reply.scalars["finite"] for reply in counted):
        return {mask: dict.fromkeys(counted[0].scalars["names"]) for mask in masks}
    return {mask: metrics.finish(metrics.merge(_states(counted, mask))) for mask in masks}


def _states(replies: Sequence[Reply], mask: str) -> list[Mapping[str, np.ndarray]]:
    """What trainers counted of a mask."""
    begin = f"metrics/{mask}/"
    states = [
        {name.removeprefix(begin): value for name, value in reply.arrays.items() if name.startswith(begin)}
        for reply in replies
    ]
    return [state for state in states if all(np.isfinite(counts).all() for counts in state.values())]


def rows_of_parts(team: Team, deadline: float | None = None) -> dict[int, np.ndarray]:
    """After `infer`: each part's rows [n, d], by trainer, of those that answer. They are in the order of the shard."""
    replies = require_some(team.broadcast(Message("infer-rows"), deadline), "rows")
    return {reply.trainer: reply.arrays["evaluation"] for reply in replies}
