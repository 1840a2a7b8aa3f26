"""Graphs from `.npz` files of plain arrays: homogeneous, knowledge graphs, bipartite and heterogeneous.

Homogeneous: `edge_index` [2, E] (source, destination), `num_nodes`, `x` or CSR `x_data`, `x_indices`,
`x_indptr`, `x_shape`, `y`, `train_mask` ... [N] or `train_masks` ... [S, N], `symmetric`, `meta` (JSON).
Knowledge graphs: also `edge_type` [E], `relation_names`. Bipartite: `num_users`, `num_items` in place of
`num_nodes`. Heterogeneous: `node_types`, `edge_types` (`src__rel__dst`), and the same names with `__<type>`.
Any other array with a row per node becomes a column, with a row per edge an edge column.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from farflung.errors import InputError
from farflung.graph.build import from_edges, symmetrise
from farflung.graph.graph import MASKS, Graph, Split
from farflung.graph.store import FORMAT, block_from, from_arrays, public_splits

_SIZES = ("num_nodes", "num_users", "num_items", "num_relations")
_KNOWN = {
    "edge_index",
    "edge_type",
    "edge_weight",
    "edge_attr",
    "y",
    "symmetric",
    "meta",
    "relation_names",
    "x",
}
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
_CONVERT = "load it yourself if you trust it, then `save_graph(from_pyg(data), 'graph.npz')` or `Graph.from_edges(...)`"


def read_npz(path: str | Path, *, symmetric: bool = False) -> Graph:
    """Read a graph; `symmetric` adds the reverse of edges that are stored in one direction only.

    Raises:
        InputError: if there is no such file, if it is a pickle or holds Python objects (refused: unpickling
            can run any code), or if its arrays do not fit together.
    """
    path = Path(path)
    arrays = _read_arrays(path)
    meta = _read_meta(arrays, path)
    try:
        if meta.get("format") == FORMAT:
            graph = from_arrays(arrays, meta)
            return symmetrise(graph) if symmetric else graph
        fields: dict[str, Any] = {"name": str(meta.get("name", path.stem)), "symmetric": symmetric}
        if meta.get("note"):
            fields["notes"] = (str(meta["note"]),)
        fields["notes"] = (*fields.get("notes", ()), *_direction_notes(arrays, meta, symmetric))
        if "node_types" in arrays:
            return _heterogeneous(arrays, fields)
        return _single_edge_table(arrays, meta, fields)
    except KeyError as error:
        raise InputError(f"'{path}': array `{error.args[0]}` is missing; add it or use `Graph.from_edges`") from None
    except InputError as error:
        raise InputError(f"'{path}': {error}") from None
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"'{path}': arrays do not fit the schema ({error}); use `Graph.from_edges`") from error


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix.lower() in _PICKLES:
        raise InputError(f"'{path}' is a pickle, which can run any code when read, and is refused; {_CONVERT}")
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give the path of a .npz, or a name of `farflung datasets`")
    if not zipfile.is_zipfile(path):
        raise InputError(f"'{path}' is not a .npz file (and a pickle is never read); {_CONVERT}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: _read_array(file, name, path) for name in file.files}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise InputError(f"'{path}' is damaged ({error}); fetch or write it again") from None


def _read_array(file: Any, name: str, path: Path) -> np.ndarray:
    try:
        array = file[name]
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"'{path}': array `{name}` holds pickled Python objects and is refused; {_CONVERT}"
            ) from None
        raise InputError(f"'{path}': array `{name}` cannot be read ({error}); write the file again") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"'{path}': `{name}` is not an array; {_CONVERT}")
    return array


def _read_meta(arrays: Mapping[str, np.ndarray], path: Path) -> dict[str, Any]:
    if "meta" not in arrays:
        return {}
    try:
        meta = json.loads(str(arrays["meta"]))
    except json.JSONDecodeError as error:
        raise InputError(f"'{path}': `meta` is not JSON ({error}); correct it or leave it out") from None
    return meta if isinstance(meta, dict) else {}


def _direction_notes(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], symmetric: bool) -> list[str]:
    once = "once (undirected)" in str(meta.get("edges_stored", "")) and not bool(arrays.get("symmetric", False))
    if once and not symmetric:
        return ["each undirected edge is stored in one direction only: pass --symmetric (symmetric=True)"]
    return []


def _single_edge_table(arrays: dict[str, np.ndarray], meta: Mapping[str, Any], fields: dict[str, Any]) -> Graph:
    src, dst = _edge_index(arrays["edge_index"])
    if "num_users" in arrays:
        users, items = int(arrays["num_users"]), int(arrays["num_items"])
        _check_side(src, users, "user")
        _check_side(dst, items, "item")
        dst = dst.astype(np.int64) + users
        num_nodes = users + items
        fields["node_type"] = np.repeat(np.array([0, 1], np.int16), [users, items])
        fields["node_type_names"] = ("user", "item")
        fields["features"] = (block_from(arrays, "__user"), block_from(arrays, "__item"))
    else:
        num_nodes = int(arrays["num_nodes"])
        fields["features"] = (block_from(arrays, ""),)
    for name in ("edge_type", "edge_weight", "edge_attr", "y"):
        if name in arrays:
            fields[name] = arrays[name]
    if "relation_names" in arrays:
        fields["edge_type_names"] = tuple(str(name) for name in arrays["relation_names"])
    classes = meta.get("classes")
    if isinstance(classes, list) and "y" in arrays and arrays["y"].ndim == 1:
        fields["class_names"] = tuple(str(name) for name in classes)
    fields["public_splits"] = public_splits(arrays) or _split_of(arrays, "")
    fields["columns"], fields["edge_columns"], notes = _further(arrays, num_nodes, len(src))
    fields["notes"] = (*fields["notes"], *notes)
    return from_edges(src, dst, num_nodes=num_nodes, **fields)


def _further(
    arrays: Mapping[str, np.ndarray], num_nodes: int, num_edges: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """Arrays that the schema does not name: per node, per edge; names of values go to the notes."""
    columns, edge_columns, notes = {}, {}, []
    for name, array in arrays.items():
        if name in _KNOWN or name in _SIZES or name.startswith(("x_", "x__")) or name.endswith(("_mask", "_masks")):
            continue
        if array.ndim == 1 and len(array) == num_edges and name.startswith("edge_"):
            edge_columns[name.removeprefix("edge_")] = array
        elif array.ndim == 1 and len(array) == num_nodes:
            columns[name] = array
            if f"{name}_names" in arrays:
                values = ", ".join(f"{i} {value}" for i, value in enumerate(arrays[f"{name}_names"]))
                notes.append(f"column {name}: {values}")
    return columns, edge_columns, notes


def _heterogeneous(arrays: dict[str, np.ndarray], fields: dict[str, Any]) -> Graph:
    """All types in one id space, type after type; node r of type t is row offset[t] + r."""
    types = [str(name) for name in arrays["node_types"]]
    counts = [int(arrays[f"num_nodes__{t}"]) for t in types]
    offset = dict(zip(types, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))
    size = dict(zip(types, counts, strict=True))
    sources, destinations, edge_types, names = [], [], [], []
    for number, relation in enumerate(str(name) for name in arrays["edge_types"]):
        src_type, name, dst_type = relation.split("__")
        src, dst = _edge_index(arrays[f"edge_index__{relation}"])
        _check_side(src, size[src_type], src_type)
        _check_side(dst, size[dst_type], dst_type)
        sources.append(src.astype(np.int64) + offset[src_type])
        destinations.append(dst.astype(np.int64) + offset[dst_type])
        edge_types.append(np.full(len(src), number, np.int16))
        names.append(f"{src_type}__{name}__{dst_type}")
    total = sum(counts)
    y, splits = _targets(arrays, offset, size, total)
    return from_edges(
        np.concatenate(sources),
        np.concatenate(destinations),
        num_nodes=total,
        features=tuple(block_from(arrays, f"__{t}") for t in types),
        node_type=np.repeat(np.arange(len(types), dtype=np.int16), counts),
        node_type_names=tuple(types),
        edge_type=np.concatenate(edge_types),
        edge_type_names=tuple(names),
        y=y,
        public_splits=splits,
        **fields,
    )


def _targets(
    arrays: Mapping[str, np.ndarray], offset: Mapping[str, int], size: Mapping[str, int], total: int
) -> tuple[np.ndarray | None, tuple[Split, ...]]:
    """Labels of the one type that has them, -1 elsewhere, and its splits: the plain one, then `_20__` etc."""
    labelled = [t for t in offset if f"y__{t}" in arrays]
    if not labelled:
        return None, ()
    if len(labelled) > 1:
        raise InputError(f"labels of two node types ({labelled[0]}, {labelled[1]}); keep those of one")
    target = labelled[0]
    rows = slice(offset[target], offset[target] + size[target])
    y = np.full(total, -1, np.int64)
    y[rows] = arrays[f"y__{target}"]
    suffixes = sorted(
        name.removeprefix("train_mask")
        for name in arrays
        if name.startswith("train_mask_") and name.endswith(f"__{target}")
    )
    splits: list[Split] = []
    for suffix in sorted(suffixes, key=lambda s: (s != f"__{target}", s)):
        for split in _split_of(arrays, suffix):
            masks = []
            for part in MASKS:
                mask = np.zeros(total, np.bool_)
                mask[rows] = getattr(split, part)
                masks.append(mask)
            splits.append(Split(*masks))
    return y, tuple(splits)


def _split_of(arrays: Mapping[str, np.ndarray], suffix: str) -> tuple[Split, ...]:
    if f"train_mask{suffix}" not in arrays:
        return ()
    return (Split(*(arrays[f"{part}_mask{suffix}"] for part in MASKS)),)


def _edge_index(edge_index: np.ndarray) -> np.ndarray:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise InputError(f"`edge_index` must be integers [2, E], found {edge_index.dtype} {list(edge_index.shape)}")
    return edge_index


def _check_side(ends: np.ndarray, count: int, kind: str) -> None:
    wrong = np.flatnonzero((ends < 0) | (ends >= count))
    if len(wrong):
        raise InputError(
            f"`edge_index`: expected {kind} rows 0 to {count - 1}, found {ends[wrong[0]]} at edge {wrong[0]}"
        )
