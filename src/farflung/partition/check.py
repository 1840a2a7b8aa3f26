"""Deep validation of shards: ranges within each, and that halos and boundaries of all of them agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.errors import InputError
from farflung.graph.degrees import degree_without_loops
from farflung.partition.arrays import edge_arrays, node_arrays
from farflung.partition.shard import Shard


def check_shards(shards: Sequence[Shard], assignment: np.ndarray) -> None:
    """Check the shards of all parts against the assignment (int32 [N]) and against each other.

    Raises:
        InputError: naming the part and the field of the first fault.
    """
    num_nodes = len(assignment)
    degree = np.full(num_nodes, np.nan)
    wanted: dict[int, list[np.ndarray]] = {}
    info = shards[0].info if len(shards) else None
    for part, shard in enumerate(shards):
        _check_one(shard, part, len(shards), assignment)
        if shard.info != info:
            _fail(part, "info", "differs from that of part 0")
        degree[shard.inner] = shard.degree[: shard.num_inner]
        wanted[part] = [shard.halo[shard.halo_of(owner)] for owner in range(len(shards))]
    for part, shard in enumerate(shards):
        for other in range(len(shards)):
            offered = shard.inner[shard.boundary_for(other)]
            if not np.array_equal(offered, wanted[other][part]):
                _fail(part, "boundary", f"does not list what part {other} has in its halo")
        if not np.array_equal(shard.degree[shard.num_inner :], degree[shard.halo]):
            _fail(part, "degree", "of halo nodes differs from that of their owners")


def _check_one(shard: Shard, part: int, num_parts: int, assignment: np.ndarray) -> None:
    n, h, num_nodes = shard.num_inner, shard.num_halo, len(assignment)
    if shard.part != part or shard.num_parts != num_parts:
        _fail(part, "part", f"says part {shard.part} of {shard.num_parts}, expected {part} of {num_parts}")
    if shard.info.num_nodes != num_nodes:
        _fail(part, "info", f"counts {shard.info.num_nodes} nodes, expected {num_nodes}")
    if not np.array_equal(shard.inner, np.flatnonzero(assignment == part)):
        _fail(part, "inner", "does not list the nodes that the assignment gives to the part, ascending")
    _check_pointers(part, "indptr", shard.indptr, n, len(shard.indices))
    _check_pointers(part, "halo_ptr", shard.halo_ptr, num_parts, h)
    _check_pointers(part, "boundary_ptr", shard.boundary_ptr, num_parts, len(shard.boundary))
    _check_range(part, "indices", shard.indices, n + h)
    _check_range(part, "boundary", shard.boundary, n)
    _check_range(part, "halo", shard.halo, num_nodes)
    owners = np.repeat(np.arange(num_parts), np.diff(shard.halo_ptr))
    if not np.array_equal(assignment[shard.halo], owners) or (owners == part).any():
        _fail(part, "halo", "lists a node under another owner than the assignment gives it")
    same_owner = np.diff(owners) == 0
    if (np.diff(shard.halo)[same_owner] <= 0).any():
        _fail(part, "halo", "is not ascending within an owner")
    if len(np.unique(shard.indices[shard.indices >= n])) != h:
        _fail(part, "halo", "lists a node that no edge of the part comes from")
    if shard.degree.shape != (n + h,) or not np.isfinite(shard.degree).all():
        _fail(part, "degree", f"is not one finite number for each of {n + h} nodes")
    for name, array in node_arrays(shard).items():
        if len(array) != n:
            _fail(part, name, f"has {len(array)} rows, expected {n}")
    for name, array in edge_arrays(shard).items():
        if len(array) != len(shard.indices):
            _fail(part, name, f"has {len(array)} rows, expected {len(shard.indices)}")
    if not np.array_equal(shard.degree[:n], degree_without_loops(shard.indptr, shard.indices, shard.edge_weight)):
        _fail(part, "degree", "differs from what the part's edges give")
    _check_features(shard, part)


def _check_features(shard: Shard, part: int) -> None:
    types = len(shard.info.feature_widths)
    if len(shard.features) != types:
        _fail(part, "features", f"has {len(shard.features)} blocks, expected {types}")
    if shard.node_type is None:
        rows = [shard.num_inner]
    else:
        _check_range(part, "node_type", shard.node_type, types)
        rows = np.bincount(shard.node_type, minlength=types).tolist()
    for t, (block, width) in enumerate(zip(shard.features, shard.info.feature_widths, strict=True)):
        name = f"features.{t}"
        found = None if block is None else tuple(block.shape)
        expected = None if width is None else (rows[t], width)
        if found != expected:
            _fail(part, name, f"is {found}, expected {expected}")
        if block is not None and not isinstance(block, np.ndarray):
            _check_pointers(part, f"{name}.indptr", block.indptr, rows[t], len(block.indices))
            _check_range(part, f"{name}.indices", block.indices, int(block.shape[1]))
            if len(block.data) != len(block.indices):
                _fail(part, f"{name}.data", f"has {len(block.data)} values, expected {len(block.indices)}")


def _check_pointers(part: int, name: str, pointers: np.ndarray, rows: int, total: int) -> None:
    if len(pointers) != rows + 1 or pointers[0] != 0 or pointers[-1] != total or (np.diff(pointers) < 0).any():
        _fail(part, name, f"does not rise from 0 to {total} over {rows} rows")


def _check_range(part: int, name: str, values: np.ndarray, end: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= end):
        _fail(part, name, f"holds values outside 0..{end - 1}")


def _fail(part: int, field: str, what: str) -> None:
    raise InputError(f"partition: part {part}: `{field}` {what}: write the partition again from its graph")
