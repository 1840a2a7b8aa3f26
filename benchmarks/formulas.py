"""Training bytes by the closed formulas of docs/methods.md, from graph, parts and model alone: no ledger is read."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from farflung.methods.boundary import drawn_rows
from farflung.methods.budget import rounds_of
from farflung.methods.presets import LAZY, LLCG, TMA, preset
from farflung.nn.encoder import Encoder
from farflung.partition import Shard
from farflung.run.config import RunConfig
from farflung.run.source import prepare
from farflung.run.spec import trainer_spec

_BYTES = {"float32": 4, "float64": 8, "float16": 2, "int8": 1}
_PER_ROW = {"int8": 8}
"""Scale and offset of a row."""


def formula_bytes(config: RunConfig) -> int | None:
    """Training bytes of a run without faults, of node classification; None where there is no closed formula."""
    procedure = preset(config.method).procedure
    if config.method not in ("synchronous", "bns") and procedure not in (TMA, LLCG, LAZY):
        return None
    source = prepare(config)
    shards = list(source.partition.shards)
    model = trainer_spec(source.config, source.graph).build_model()
    assert isinstance(model, Encoder)
    size, workers = _BYTES[config.dtype], len(shards)
    parameters = sum(p.numel() for p in model.parameters())
    if procedure in (TMA, LLCG):
        rounds = rounds_of(config.train)
        assert rounds is not None
        return size * workers * parameters * (1 + 2 * rounds)
    exchanged = [layer.aggregation != "none" for layer in model.layers]
    widths = [0, *(layer.out_features for layer in model.layers[:-1])]
    if procedure is LAZY:
        rows = sum(
            _first_rows(shards, config) if number == 0 else _rows(shards) * _row(width, config)
            for number, width in enumerate(widths)
            if exchanged[number]
        )
        return rows + 2 * size * workers * sum(
            math.ceil(steps / _steps_a_round(config)) * sum(p.numel() for p in layer.parameters())
            for steps, layer in zip(_shares(config, len(model.layers)), model.layers, strict=True)
        )
    rate = config.train.boundary_rate
    drawn = sum(drawn_rows(rate, int(count)) for shard in shards for count in np.diff(shard.halo_ptr))
    hidden = sum(width for number, width in enumerate(widths) if number and exchanged[number])
    first = _first_rows(shards, config) if exchanged[0] else 0
    return first + 2 * size * config.train.steps * (drawn * hidden + workers * parameters)


def _shares(config: RunConfig, layers: int) -> list[int]:
    return [config.train.steps // layers + (number < config.train.steps % layers) for number in range(layers)]


def _steps_a_round(config: RunConfig) -> int:
    """Steps between two exchanges of weights in lazy training."""
    return config.train.interval.n if config.train.lazy == "weights" else 1  # type: ignore[union-attr]


def _rows(shards: list[Shard]) -> int:
    """Boundary rows over all ordered pairs."""
    return sum(shard.num_halo for shard in shards)


def _row(width: int, config: RunConfig) -> int:
    """Bytes of a row of embeddings on the wire."""
    kind = config.dtype if config.train.wire == "float32" else config.train.wire
    return width * _BYTES[kind] + _PER_ROW.get(kind, 0)


def _first_rows(shards: list[Shard], config: RunConfig) -> int:
    """Bytes of the features of all boundary rows, as they are sent: dense, or compressed rows."""
    x = shards[0].x
    if isinstance(x, np.ndarray):
        kind = config.train.wire if config.train.wire != "float32" else str(x.dtype)
        return _rows(shards) * (x.shape[1] * _BYTES[kind] + _PER_ROW.get(kind, 0))
    total = 0
    for shard in shards:
        assert sp.issparse(shard.x)
        for peer in range(shard.num_parts):
            rows = shard.x[shard.boundary_for(peer)]
            if rows.shape[0]:
                total += _sparse(rows, config.train.wire)
    return total


def _sparse(rows: sp.csr_matrix, wire: str) -> int:
    """Bytes of a message of compressed rows; in int8 dense ones where those are smaller."""
    count, width = rows.shape
    places = rows.indices.nbytes + rows.indptr.nbytes
    if wire == "float32":
        return rows.data.nbytes + places
    size = rows.nnz * _BYTES[wire] + places + count * _PER_ROW.get(wire, 0)
    return min(size, count * (width + _PER_ROW["int8"])) if wire == "int8" else size
