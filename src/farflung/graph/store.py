"""Farflung's own file of a graph: one `.npz` of plain arrays, a superset of the schema that `npz.py` reads.

Beside `edge_index`, `num_nodes`, `x` (or `x_data`, `x_indices`, `x_indptr`, `x_shape`), `y`, `train_masks`
... [S, N] and `meta` it holds every other field of `Graph` under its own name; edges are in the order of the
graph. Features of node type t > 0 have the suffix `__<t>`; columns are `column__<name>` and `edge_column__<name>`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph.checks import check_values
from farflung.graph.graph import MASKS, FeatureBlock, Graph, Split

FORMAT = "farflung-graph"
VERSION = 1
_PLAIN = ("y", "node_type", "edge_type", "edge_weight", "edge_attr", "ids")
_NAMES = ("class_names", "node_type_names", "edge_type_names")


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write `graph` to `path` (.npz, uncompressed); `load` gives back an equal graph.

    The file appears whole or not at all. Raises `InputError` if the name does not end in .npz.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"save_graph: '{path}' must end in .npz")
    arrays: dict[str, np.ndarray] = {
        "edge_index": np.stack([graph.indices, graph.destinations()]),
        "num_nodes": np.array(graph.num_nodes),
        "num_node_types": np.array(len(graph.features)),
    }
    for t, block in enumerate(graph.features):
        arrays |= _block_arrays(block, f"__{t}" if t else "")
    for name in _PLAIN:
        if getattr(graph, name) is not None:
            arrays[name] = getattr(graph, name)
    for part in MASKS:
        if graph.public_splits:
            arrays[f"{part}_masks"] = np.stack([getattr(s, part) for s in graph.public_splits])
        if graph.split is not None:
            arrays[f"split_{part}"] = getattr(graph.split, part)
    arrays |= {f"column__{name}": column for name, column in graph.columns.items()}
    arrays |= {f"edge_column__{name}": column for name, column in graph.edge_columns.items()}
    meta: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": graph.name, "notes": graph.notes}
    meta |= {name: getattr(graph, name) for name in _NAMES}
    arrays["meta"] = np.array(json.dumps(meta))
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def from_arrays(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Graph:
    """The graph of a file that `save_graph` wrote. `InputError` on another version or a broken one."""
    if meta.get("version") != VERSION:
        raise InputError(
            f"format version {meta.get('version')} is not {VERSION}; read it with the Farflung that wrote it"
        )
    missing = [name for name in ("edge_index", "num_nodes", "num_node_types") if name not in arrays]
    if missing:
        raise InputError(f"array `{missing[0]}` is missing; write the file again with `save_graph`")
    indices, destinations = np.ascontiguousarray(arrays["edge_index"])
    num_nodes = int(arrays["num_nodes"])
    if len(destinations) and (
        (np.diff(destinations) < 0).any() or not 0 <= destinations[0] <= destinations[-1] < num_nodes
    ):
        raise InputError("edges are not in order; write the file again with `save_graph`")
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(destinations, minlength=num_nodes), out=indptr[1:])
    fields: dict[str, Any] = {name: arrays.get(name) for name in _PLAIN}
    fields |= {name: None if meta[name] is None else tuple(meta[name]) for name in _NAMES}
    graph = Graph(
        indptr=indptr,
        indices=indices,
        features=tuple(block_from(arrays, f"__{t}" if t else "") for t in range(int(arrays["num_node_types"]))),
        split=Split(*(arrays[f"split_{p}"] for p in MASKS)) if "split_train" in arrays else None,
        public_splits=public_splits(arrays),
        columns=_prefixed(arrays, "column__"),
        edge_columns=_prefixed(arrays, "edge_column__"),
        name=meta["name"],
        notes=tuple(meta["notes"]),
        **fields,
    )
    check_values(graph)
    return graph


def block_from(arrays: Mapping[str, np.ndarray], suffix: str) -> FeatureBlock | None:
    """The feature block `x<suffix>`, dense or CSR; None where the file has neither."""
    if f"x{suffix}" in arrays:
        return arrays[f"x{suffix}"]
    if f"x_data{suffix}" not in arrays:
        return None
    data, indices, indptr, shape = (arrays[f"x_{n}{suffix}"] for n in ("data", "indices", "indptr", "shape"))
    return sp.csr_matrix((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))


def public_splits(arrays: Mapping[str, np.ndarray]) -> tuple[Split, ...]:
    """`train_masks`, `val_masks`, `test_masks` [S, N] as splits, in their order."""
    if any(f"{part}_masks" not in arrays for part in MASKS):
        return ()
    return tuple(Split(*masks) for masks in zip(*(arrays[f"{part}_masks"] for part in MASKS), strict=True))


def _block_arrays(block: FeatureBlock | None, suffix: str) -> dict[str, np.ndarray]:
    if block is None:
        return {}
    if not isinstance(block, sp.csr_matrix):
        return {f"x{suffix}": block}
    parts = {
        "data": block.data,
        "indices": block.indices,
        "indptr": block.indptr,
        "shape": np.array(block.shape),
    }
    return {f"x_{name}{suffix}": value for name, value in parts.items()}


def _prefixed(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
