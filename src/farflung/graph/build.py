"""From edge columns to a `Graph`: ids, labels, duplicates, CSR by destination, reverse edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any

import numba
import numpy as np

from farflung.errors import InputError
from farflung.graph.checks import check_endpoints, check_values
from farflung.graph.graph import Graph
from farflung.graph.values import as_features, as_ids, as_labels, as_small, locate, sorted_unique

DUPLICATES = ("keep", "sum", "error")
EDGE_FIELDS = ("edge_type", "edge_weight", "edge_attr")
_EDGE_DTYPES = {"edge_type": np.int16, "edge_weight": np.float32, "edge_attr": np.float32}


def from_edges(
    source: np.ndarray | Sequence[Any],
    destination: np.ndarray | Sequence[Any],
    *,
    num_nodes: int | None = None,
    nodes: np.ndarray | Sequence[Any] | None = None,
    symmetric: bool = False,
    duplicates: str = "keep",
    x: Any = None,
    **fields: Any,
) -> Graph:
    """Build a graph from two edge columns [E] and, by name, further fields of `Graph`.

    Integer columns with `num_nodes` are row numbers and are range-checked. Without it they are ids, as
    strings always are: the nodes are the ids in `nodes`, in that order, or else those that occur in the
    edges, sorted. Fields per node are in the order of the nodes, fields per edge in the order of the columns.

    Args:
        num_nodes: nodes N, isolated ones included; only for row numbers.
        nodes: all ids [N], isolated ones included; only for ids.
        symmetric: add the reverse of each edge that has none (see `symmetrise`).
        duplicates: what to do with an edge (same ends, same type) that is given again: `keep` both, `sum`
            them into `edge_weight` (1 each where there are no weights), or `error`. `notes` has the count.
        x: features [N, F] of a graph with one node type, dense or sparse; short for `features=(x,)`.
        fields: fields of `Graph`. Labels `y` may be strings (None: no label): they become `class_names`.

    Raises:
        InputError: on anything that does not fit, naming field, row, what was expected and what was found.
    """
    known = {f.name for f in dataclass_fields(Graph)} - {"indptr", "indices", "ids"}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise InputError(f"from_edges: unknown field `{unknown[0]}`; fields are x, {', '.join(sorted(known))}")
    if duplicates not in DUPLICATES:
        raise InputError(f"duplicates: expected {', '.join(DUPLICATES)}, found '{duplicates}'")
    src, dst, n, ids = _rows(source, destination, num_nodes, nodes)
    edges = _edge_fields(fields, len(src))
    if x is not None:
        if "features" in fields:
            raise InputError("from_edges: give `x` (one node type) or `features`, not both")
        fields["features"] = (x,)
    if "features" in fields:
        fields["features"] = tuple(as_features(block) for block in fields["features"])
    if fields.get("y") is not None:
        fields["y"], names = as_labels(fields["y"])
        if names is not None:
            fields["class_names"] = names
    if fields.get("node_type") is not None:
        fields["node_type"] = as_small(fields["node_type"], "node_type", np.int16)
    if "columns" in fields:
        fields["columns"] = {name: np.asarray(value) for name, value in fields["columns"].items()}

    indptr, indices, order = _ordered_csr(src, dst, n, edges.get("edge_type"))
    edges = {name: value[order] for name, value in edges.items()}
    indptr, indices, edges, notes = _settle_duplicates(indptr, indices, edges, order, duplicates)
    loops = int(np.count_nonzero(indices == _destinations(indptr, indices.dtype)))
    if loops:
        notes.append(f"{loops} self-loop{'s' * (loops > 1)} kept")
    graph = Graph(
        indptr=indptr,
        indices=indices,
        ids=ids,
        **{**fields, **_split_edges(edges), "notes": (*fields.get("notes", ()), *notes)},
    )
    check_values(graph)
    return symmetrise(graph) if symmetric else graph


def csr_by_destination(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort edges by destination, then source, stably, by two counting sorts. O(N + E).

    Args:
        src: integer [E], each in 0..num_nodes-1 (raises `InputError` otherwise).
        dst: the same for destinations.

    Returns:
        indptr int64 [N + 1]; indices [E], int32 where the node count allows it; order int64 [E]: the position
        in the input of each edge, so that `edge_field[order]` follows the edges.
    """
    check_endpoints(src, num_nodes, "source")
    check_endpoints(dst, num_nodes, "destination")
    dtype = np.int32 if num_nodes < 2**31 else np.int64
    src, dst = src.astype(dtype, copy=False), dst.astype(dtype, copy=False)
    by_source = _counting_order(src, np.empty(0, np.int64), np.zeros(num_nodes + 1, np.int64))
    counts = np.zeros(num_nodes + 1, np.int64)
    order = _counting_order(dst, by_source, counts)
    indptr = np.concatenate([np.zeros(1, np.int64), counts[:-1]])
    return indptr, src[order], order


def is_symmetric(graph: Graph) -> bool:
    """Whether each edge u -> v has at least one edge v -> u; weights and types are not compared."""
    return not _missing_reverse(graph).any()


def symmetrise(graph: Graph) -> Graph:
    """Add v -> u for each edge u -> v where no edge v -> u exists, and say so in `notes`.

    Weights, attributes, types and columns of an edge are copied to its reverse. A graph that is symmetric
    already is returned as it is.
    """
    missing = _missing_reverse(graph)
    count = int(np.count_nonzero(missing))
    if not count:
        return graph
    dst = graph.destinations()
    src = np.concatenate([graph.indices, dst[missing]])
    dst = np.concatenate([dst, graph.indices[missing]])
    edges = {name: np.concatenate([value, value[missing]]) for name, value in _edges_of(graph).items()}
    indptr, indices, order = _ordered_csr(src, dst, graph.num_nodes, edges.get("edge_type"))
    edges = {name: value[order] for name, value in edges.items()}
    return graph.with_(
        indptr=indptr,
        indices=indices,
        **_split_edges(edges),
        notes=(*graph.notes, f"made symmetric: {count} reverse edges added"),
    )


def _rows(
    source: Any, destination: Any, num_nodes: int | None, nodes: Any
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray | None]:
    """Edge columns as row numbers, the node count, and the ids (None where they are the row numbers)."""
    src, dst = as_ids(source, "source"), as_ids(destination, "destination")
    if len(src) != len(dst):
        raise InputError(f"edge columns differ in length: {len(src)} sources, {len(dst)} destinations")
    if num_nodes is not None and nodes is not None:
        raise InputError("give `num_nodes` (columns are row numbers) or `nodes` (columns are ids), not both")
    if num_nodes is not None:
        for name, column in (("source", src), ("destination", dst)):
            if len(column) and column.dtype.kind == "U":
                raise InputError(
                    f"edge column `{name}` holds strings, found '{column[0]}' at row 0: "
                    "list all ids in `nodes`, isolated ones included, not `num_nodes`"
                )
        if num_nodes < 0:
            raise InputError(f"num_nodes: expected at least 0, found {num_nodes}")
        src, dst = (c if c.dtype.kind == "i" else np.empty(0, np.int64) for c in (src, dst))
        check_endpoints(src, num_nodes, "source")
        check_endpoints(dst, num_nodes, "destination")
        return src, dst, num_nodes, None
    if nodes is not None:
        ids = as_ids(nodes, "nodes")
    elif len(src) and src.dtype.kind != dst.dtype.kind:
        raise InputError("edge columns differ in kind: one holds integers, the other strings")
    else:
        ids = sorted_unique(np.concatenate([src, dst]))
    if ids.dtype.kind == "i":
        negative = np.flatnonzero(ids < 0)
        if len(negative):
            at = f"row {negative[0]} of `nodes`" if nodes is not None else _first_negative(src, dst)
            raise InputError(f"node ids must not be negative, but one is at {at}; ids beyond 2^31 need int64")
    src, dst = locate(src, ids, "source"), locate(dst, ids, "destination")
    plain = ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids)))
    return src, dst, len(ids), None if plain else ids


def _first_negative(src: np.ndarray, dst: np.ndarray) -> str:
    row = int(np.flatnonzero((src < 0) | (dst < 0))[0])
    return f"row {row} of edge column `{'source' if src[row] < 0 else 'destination'}`"


def _edge_fields(fields: dict[str, Any], num_edges: int) -> dict[str, np.ndarray]:
    """Take the edge fields out of `fields`, edge columns under `edge_columns/<name>`, each [E, ...]."""
    edges: dict[str, np.ndarray] = {}
    for name in EDGE_FIELDS:
        value = fields.pop(name, None)
        if value is None:
            continue
        edges[name] = as_small(value, name, np.int16) if name == "edge_type" else _as_float(value, name)
    for name, value in dict(fields.pop("edge_columns", {})).items():
        edges[f"edge_columns/{name}"] = np.asarray(value)
    for name, value in edges.items():
        if value.shape[:1] != (num_edges,):
            raise InputError(f"`{name}` needs a row per edge: expected {num_edges}, found shape {list(value.shape)}")
    return edges


def _as_float(value: Any, name: str) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise InputError(f"`{name}`: expected numbers, found {array.dtype}")
    return array.astype(_EDGE_DTYPES[name], copy=False)


def _edges_of(graph: Graph) -> dict[str, np.ndarray]:
    edges = {name: getattr(graph, name) for name in EDGE_FIELDS if getattr(graph, name) is not None}
    return edges | {f"edge_columns/{name}": value for name, value in graph.edge_columns.items()}


def _split_edges(edges: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Undo `_edges_of`: fields of `Graph`."""
    plain: dict[str, Any] = {name: value for name, value in edges.items() if name in EDGE_FIELDS}
    plain["edge_columns"] = {
        name.removeprefix("edge_columns/"): value for name, value in edges.items() if name.startswith("edge_columns/")
    }
    return plain


def _ordered_csr(
    src: np.ndarray, dst: np.ndarray, num_nodes: int, edge_type: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR by destination; edges between the same two nodes come by type, then in the order of the input."""
    if edge_type is None:
        return csr_by_destination(src, dst, num_nodes)
    by_type = np.argsort(edge_type, kind="stable")
    indptr, indices, order = csr_by_destination(src[by_type], dst[by_type], num_nodes)
    return indptr, indices, by_type[order]


def _settle_duplicates(
    indptr: np.ndarray, indices: np.ndarray, edges: dict[str, np.ndarray], order: np.ndarray, policy: str
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray], list[str]]:
    """Apply the policy to edges that equal their predecessor in source, destination and type."""
    repeats = np.zeros(len(indices), dtype=np.bool_)
    repeats[1:] = indices[1:] == indices[:-1]
    if "edge_type" in edges:
        repeats[1:] &= edges["edge_type"][1:] == edges["edge_type"][:-1]
    starts = indptr[:-1]
    repeats[starts[starts < len(indices)]] = False
    count = int(np.count_nonzero(repeats))
    if not count:
        return indptr, indices, edges, []
    if policy == "error":
        raise InputError(
            f"edge at row {order[repeats].min()} is a duplicate (of {count} in all); drop it, or choose "
            "duplicates='keep' or 'sum'"
        )
    if policy == "keep":
        return indptr, indices, edges, [f"{count} duplicate edge{'s' * (count > 1)} kept"]
    further = sorted(set(edges) - {"edge_weight", "edge_type"})
    if further:
        raise InputError(f"duplicates='sum' cannot merge `{further[0]}` of {count} duplicate edges; use 'keep'")
    first = np.flatnonzero(~repeats)
    weight = edges.get("edge_weight", np.ones(len(indices), np.float32))
    summed = np.add.reduceat(weight.astype(np.float64), first).astype(np.float32)
    kept = np.concatenate([np.zeros(1, np.int64), np.cumsum(~repeats)])
    edges = {name: value[first] for name, value in edges.items()} | {"edge_weight": summed}
    note = f"{count} duplicate edge{'s' * (count > 1)} summed into edge_weight"
    return kept[indptr], indices[first], edges, [note]


def _destinations(indptr: np.ndarray, dtype: Any) -> np.ndarray:
    return np.repeat(np.arange(len(indptr) - 1, dtype=dtype), np.diff(indptr))


def _missing_reverse(graph: Graph) -> np.ndarray:
    """For each edge u -> v whether there is no edge v -> u. bool [E]."""
    out_indptr, out_indices, _ = csr_by_destination(graph.destinations(), graph.indices, graph.num_nodes)
    return _not_in_rows(graph.indptr, graph.indices, out_indptr, out_indices)


@numba.njit(cache=True)
def _counting_order(keys: np.ndarray, before: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Stable counting sort of `before` (empty: 0..E-1) by key; zeros in `ends` [K + 1] become each key's end."""
    for i in range(len(keys)):
        ends[keys[i] + 1] += 1
    for k in range(1, len(ends)):
        ends[k] += ends[k - 1]
    order = np.empty(len(keys), np.int64)
    for i in range(len(keys)):
        edge = before[i] if len(before) else i
        key = keys[edge]
        order[ends[key]] = edge
        ends[key] += 1
    return order


@numba.njit(cache=True)
def _not_in_rows(
    indptr: np.ndarray, indices: np.ndarray, other_indptr: np.ndarray, other_indices: np.ndarray
) -> np.ndarray:
    """Merge two CSRs with ascending rows: which entries of the first have no equal in the second."""
    absent = np.zeros(len(indices), np.bool_)
    for row in range(len(indptr) - 1):
        j = other_indptr[row]
        for i in range(indptr[row], indptr[row + 1]):
            while j < other_indptr[row + 1] and other_indices[j] < indices[i]:
                j += 1
            absent[i] = j == other_indptr[row + 1] or other_indices[j] != indices[i]
    return absent
