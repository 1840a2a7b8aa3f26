"""Checks of a graph: every error names the field, what was expected, what was found and what to do.

`check_graph` runs whenever a `Graph` is made: shapes, dtypes, ranges, masks, in a few passes over the arrays.
`check_values` is for data that comes in from outside: finite numbers and unique ids as well.
Memory-mapped arrays are read like all others: loops over edges, here and in partitioning, do not check bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError

if TYPE_CHECKING:
    from farflung.graph.graph import FeatureBlock, Graph, Split

_CHUNK = 1 << 22


def as_mask(value: Any, name: str) -> np.ndarray:
    """A bool array [N] from bool or from integers that are all 0 or 1; anything else is an `InputError`."""
    mask = np.asarray(value)
    if mask.ndim != 1:
        raise InputError(f"{name}: expected one bool per node, found an array of shape {mask.shape}")
    if mask.dtype == np.bool_:
        return mask
    found = f"{name}: expected bool, or 0 and 1, found {mask.dtype}"
    if mask.dtype.kind in "iu":
        wrong = np.flatnonzero((mask != 0) & (mask != 1))
        if not len(wrong):
            return mask.astype(np.bool_)
        found += f" with {mask[wrong[0]]} at row {wrong[0]}"
    raise InputError(f"{found}; turn a list of node rows into a mask with `np.isin(np.arange(N), rows)`")


def check_graph(graph: Graph) -> None:
    """Raise `InputError` unless all fields of `graph` fit together. O(N + E), no pass over feature values."""
    where = f"graph '{graph.name}'"
    _check_structure(graph, where)
    n, e = graph.num_nodes, graph.num_edges
    _check_types(graph, where)
    _check_array(graph.edge_weight, "edge_weight", where, (e,), (np.float32,))
    if graph.edge_attr is not None:
        _check_array(graph.edge_attr, "edge_attr", where, (e, *graph.edge_attr.shape[1:2]), (np.float32,))
        if graph.edge_attr.ndim != 2:
            raise InputError(f"{where}: `edge_attr` must be [E, D], found shape {graph.edge_attr.shape}")
    if graph.ids is not None and (
        graph.ids.shape != (n,) or (graph.ids.dtype != np.int64 and graph.ids.dtype.kind != "U")
    ):
        raise InputError(f"{where}: `ids` must be int64 or str [{n}], found {graph.ids.dtype} {list(graph.ids.shape)}")
    for name, column in graph.columns.items():
        _check_column(column, f"columns['{name}']", where, n)
    for name, column in graph.edge_columns.items():
        _check_column(column, f"edge_columns['{name}']", where, e)
    _check_features(graph, where)
    _check_labels(graph, where)
    if graph.split is not None:
        _check_split(graph, graph.split, "split", where)
    for i, split in enumerate(graph.public_splits):
        _check_split(graph, split, f"public_splits[{i}]", where)


def check_values(graph: Graph) -> None:
    """Raise `InputError` on non-finite features, weights or edge attributes, or on an id given twice."""
    where = f"graph '{graph.name}'"
    for t, block in enumerate(graph.features):
        name = "x" if len(graph.features) == 1 else f"features[{t}]"
        if isinstance(block, sp.csr_matrix):
            bad = _first_not_finite(block.data)
            if bad is not None:
                row = int(np.searchsorted(block.indptr, bad, side="right")) - 1
                _raise_not_finite(where, name, row, int(block.indices[bad]), block.data[bad])
        elif block is not None:
            bad = _first_not_finite(block)
            if bad is not None:
                row, column = divmod(bad, block.shape[1])
                _raise_not_finite(where, name, row, column, block[row, column])
    for name, values in (("edge_weight", graph.edge_weight), ("edge_attr", graph.edge_attr)):
        if values is not None:
            bad = _first_not_finite(values)
            if bad is not None:
                width = 1 if values.ndim == 1 else values.shape[1]
                _raise_not_finite(where, name, *divmod(bad, width), values.flat[bad])
    if graph.edge_weight is not None and (graph.edge_weight < 0).any():
        bad = int(np.argmax(graph.edge_weight < 0))
        raise InputError(
            f"{where}: `edge_weight` must be >= 0, found {graph.edge_weight[bad]:g} at edge {bad}: "
            "put signs into edge_attr or an edge type"
        )
    check_ids(graph)


def check_ids(graph: Graph) -> None:
    """Raise `InputError` on an id given twice."""
    if graph.ids is None:
        return
    ordered = np.sort(graph.ids)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        value = ordered[twice[0]]
        rows = np.flatnonzero(graph.ids == value)
        raise InputError(
            f"graph '{graph.name}': `ids` must be unique, found {value!s} twice, at rows {rows[0]} and {rows[1]}; "
            "give each node its own"
        )


def check_endpoints(ends: np.ndarray, num_nodes: int, column: str) -> None:
    """Raise `InputError` naming the first row of an edge column that is not in 0..num_nodes-1."""
    if not len(ends) or (int(ends.min()) >= 0 and int(ends.max()) < num_nodes):
        return
    row = int(np.flatnonzero((ends < 0) | (ends >= num_nodes))[0])
    hint = (
        "ids beyond 2^31 need an int64 column"
        if ends[row] < 0
        else "raise `num_nodes`, or leave it out if these are ids and not row numbers"
    )
    raise InputError(
        f"edge column `{column}`: expected node rows 0 to {num_nodes - 1}, found {ends[row]} at row {row}; {hint}"
    )


def _check_structure(graph: Graph, where: str) -> None:
    indptr, indices = graph.indptr, graph.indices
    if indptr.ndim != 1 or len(indptr) < 1 or indptr.dtype != np.int64:
        raise InputError(f"{where}: `indptr` must be int64 [N + 1], found {indptr.dtype} {list(indptr.shape)}")
    if indices.ndim != 1 or indices.dtype not in (np.int32, np.int64):
        raise InputError(f"{where}: `indices` must be int32 or int64 [E], found {indices.dtype} {list(indices.shape)}")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise InputError(f"{where}: `indptr` must run from 0 to E = {len(indices)}, found {indptr[0]} to {indptr[-1]}")
    falling = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falling):
        raise InputError(f"{where}: `indptr` must not fall, but does after node {falling[0]}")
    if len(indices) and (indices.min() < 0 or indices.max() >= graph.num_nodes):
        edge = int(np.flatnonzero((indices < 0) | (indices >= graph.num_nodes))[0])
        raise InputError(
            f"{where}: `indices` must be rows 0 to {graph.num_nodes - 1}, found {indices[edge]} at {edge}; "
            "build with `Graph.from_edges`"
        )
    descents = np.flatnonzero(indices[1:] < indices[:-1]) + 1
    starts = indptr[np.searchsorted(indptr, descents)]
    if not np.array_equal(starts, descents):
        edge = int(descents[starts != descents][0])
        raise InputError(
            f"{where}: `indices` must ascend within a row, but do not at {edge}; build with `Graph.from_edges`"
        )


def _check_types(graph: Graph, where: str) -> None:
    for name, types, names, length in (
        ("node_type", graph.node_type, graph.node_type_names, graph.num_nodes),
        ("edge_type", graph.edge_type, graph.edge_type_names, graph.num_edges),
    ):
        if types is None:
            continue
        _check_array(types, name, where, (length,), (np.int16,))
        limit = len(names) if names is not None else int(types.max(initial=-1)) + 1
        wrong = np.flatnonzero((types < 0) | (types >= limit))
        if len(wrong):
            raise InputError(f"{where}: `{name}` must be 0 to {limit - 1}, found {types[wrong[0]]} at row {wrong[0]}")


def _check_features(graph: Graph, where: str) -> None:
    blocks = graph.features
    if graph.node_type is None:
        rows = [graph.num_nodes]
    else:
        rows = np.bincount(graph.node_type, minlength=len(blocks)).tolist()
    if len(blocks) != len(rows):
        raise InputError(
            f"{where}: `features` needs a block (or None) per node type: expected {len(rows)}, found {len(blocks)}"
        )
    for t, (block, expected) in enumerate(zip(blocks, rows, strict=True)):
        if block is not None:
            name = "x" if len(blocks) == 1 else f"features[{t}]"
            _check_block(block, name, where, expected)


def _check_block(block: FeatureBlock, name: str, where: str, rows: int) -> None:
    if not isinstance(block, sp.csr_matrix) and not (isinstance(block, np.ndarray) and block.ndim == 2):
        raise InputError(f"{where}: `{name}` must be an array or csr_matrix [N, F], found {_describe(block)}")
    if block.dtype not in (np.float16, np.float32, np.float64):
        raise InputError(f"{where}: `{name}` must be float16, float32 or float64, found {block.dtype}")
    if block.shape[0] != rows:
        raise InputError(
            f"{where}: `{name}` needs a row per node: expected {rows}, found {block.shape[0]}; "
            "isolated nodes have rows too"
        )
    if isinstance(block, sp.csr_matrix):
        _check_csr(block, name, where)


def _check_csr(block: sp.csr_matrix, name: str, where: str) -> None:
    """SciPy itself checks neither that row pointers rise nor that columns are in range."""
    indptr, indices, (rows, width) = block.indptr, block.indices, block.shape
    if len(indptr) != rows + 1 or indptr[0] != 0 or not indptr[-1] == len(indices) == len(block.data):
        raise InputError(f"{where}: `{name}.indptr` must run from 0 to {len(block.data)} over {rows} rows; rebuild it")
    falling = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falling):
        raise InputError(f"{where}: `{name}.indptr` must not fall, but does after row {falling[0]}; rebuild it")
    if len(indices) and (indices.min() < 0 or indices.max() >= width):
        at = int(np.flatnonzero((indices < 0) | (indices >= width))[0])
        row = int(np.searchsorted(indptr, at, side="right")) - 1
        raise InputError(
            f"{where}: `{name}` must have columns 0 to {width - 1}, found {indices[at]} at row {row}; rebuild it"
        )


def _check_labels(graph: Graph, where: str) -> None:
    y = graph.y
    if y is None:
        return
    n = graph.num_nodes
    if y.ndim == 2 and y.dtype == np.uint8:
        _check_array(y, "y", where, (n, y.shape[1]), (np.uint8,))
        if y.max(initial=0) > 1:
            row = int(np.flatnonzero((y > 1).any(axis=1))[0])
            raise InputError(f"{where}: multi-label `y` must be 0 or 1, found {y[row].max()} at row {row}")
    elif y.ndim == 1 and y.dtype == np.int64:
        _check_array(y, "y", where, (n,), (np.int64,))
        limit = None if graph.class_names is None else len(graph.class_names)
        wrong = np.flatnonzero(y < -1 if limit is None else (y < -1) | (y >= limit))
        if len(wrong):
            most = "" if limit is None else f" to {limit - 1}"
            raise InputError(
                f"{where}: `y` must be classes 0{most}, or -1 for no label, found {y[wrong[0]]} at row {wrong[0]}"
            )
    else:
        raise InputError(f"{where}: `y` must be int64 [N], or uint8 [N, C] of 0 and 1, found {y.dtype} {list(y.shape)}")


def _check_split(graph: Graph, split: Split, name: str, where: str) -> None:
    masks = {part: getattr(split, part) for part in ("train", "val", "test")}
    for part, mask in masks.items():
        _check_array(mask, f"{name}.{part}", where, (graph.num_nodes,), (np.bool_,))
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        both = np.flatnonzero(masks[first] & masks[second])
        if len(both):
            raise InputError(
                f"{where}: masks of `{name}` must not overlap, but node {both[0]} (and {len(both) - 1} more) "
                f"is in both {first} and {second}; take it out of one"
            )
    if graph.y is not None and graph.y.ndim == 1:
        for part, mask in masks.items():
            unlabelled = np.flatnonzero(mask & (graph.y < 0))
            if len(unlabelled):
                raise InputError(
                    f"{where}: nodes in `{name}.{part}` need a label, but node {unlabelled[0]} "
                    f"(and {len(unlabelled) - 1} more) has -1; take it out of the mask"
                )


def _check_array(array: np.ndarray | None, name: str, where: str, shape: Sequence[int], dtypes: Sequence[Any]) -> None:
    if array is not None and (array.shape != tuple(shape) or array.dtype not in dtypes):
        expected = " or ".join(np.dtype(d).name for d in dtypes)
        raise InputError(f"{where}: `{name}` must be {expected} {list(shape)}, found {_describe(array)}")


def _check_column(column: np.ndarray, name: str, where: str, length: int) -> None:
    if not isinstance(column, np.ndarray) or column.ndim < 1 or column.shape[0] != length:
        raise InputError(f"{where}: `{name}` must be an array [{length}], found {_describe(column)}")
    if column.dtype.hasobject:
        raise InputError(f"{where}: `{name}` holds Python objects; use numbers or fixed-width strings")


def _first_not_finite(values: np.ndarray) -> int | None:
    """Flat position of the first non-finite value, or None."""
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        finite = np.isfinite(flat[start : start + _CHUNK])
        if not finite.all():
            return start + int(np.flatnonzero(~finite)[0])
    return None


def _raise_not_finite(where: str, name: str, row: int, column: int, value: Any) -> None:
    raise InputError(
        f"{where}: `{name}` must be finite, found {value} at row {row}, column {column}; replace or drop it"
    )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
