"""Cutting a graph into shards by an assignment.

Legend for shapes: N nodes, E directed edges, M parts, n inner and h halo nodes of a part, e its in-edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from farflung.errors import InputError
from farflung.graph import FeatureBlock, Graph, Split
from farflung.graph.degrees import degree_without_loops
from farflung.partition import loops
from farflung.partition.arrays import csr_matrix
from farflung.partition.shard import GraphInfo, Shard


def build_shards(graph: Graph, assignment: np.ndarray, num_parts: int) -> list[Shard]:
    """The shards of all parts, all in memory beside the graph.

    Args:
        graph: the whole graph.
        assignment: integer [N], the part of each node, 0..num_parts-1. A part may be empty.
        num_parts: number of parts M.

    Raises:
        InputError: the assignment has another length or a part out of range.
    """
    assignment = check_assignment(assignment, graph.num_nodes, num_parts)
    layout = find_layout(graph, assignment, num_parts)
    builder = _Builder(graph, layout)
    return [builder.build(part) for part in range(num_parts)]


def check_assignment(assignment: np.ndarray, num_nodes: int, num_parts: int) -> np.ndarray:
    """The assignment as int32 [N]; `InputError` where its length, kind or range is wrong."""
    assignment = np.asarray(assignment)
    if assignment.shape != (num_nodes,) or assignment.dtype.kind not in "iu":
        raise InputError(
            f"assignment: expected {num_nodes} integers, one part per node, "
            f"found {assignment.dtype} of shape {assignment.shape}: pass the parts in the order of the graph's nodes"
        )
    if num_parts < 1:
        raise InputError(f"assignment: expected at least 1 part, found {num_parts}: raise the number of parts")
    if num_nodes and (assignment.min() < 0 or assignment.max() >= num_parts):
        row = int(np.flatnonzero((assignment < 0) | (assignment >= num_parts))[0])
        raise InputError(
            f"assignment: node {row} is in part {assignment[row]}, expected 0..{num_parts - 1}: "
            "correct it or raise the number of parts"
        )
    return np.ascontiguousarray(assignment, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each node lies once nodes are ordered by (part, id), and each part's halo in that order."""

    num_parts: int
    order: np.ndarray
    """int64 [N]: the global id at each place."""
    place: np.ndarray
    """int64 [N]: the place of each node, the inverse of `order`."""
    part_ptr: np.ndarray
    """int64 [M + 1]: the places of part k are part_ptr[k]..part_ptr[k + 1] - 1."""
    halos: tuple[np.ndarray, ...]
    """For each part, int64 [h] ascending: the places of its halo nodes, so grouped by owner."""

    def inner(self, part: int) -> np.ndarray:
        """Global ids of a part's nodes, ascending. int64 [n]."""
        return self.order[self.part_ptr[part] : self.part_ptr[part + 1]]

    def halo_ptr(self, part: int) -> np.ndarray:
        """int64 [M + 1]: where each owner's nodes start and end in the halo of `part`."""
        return np.searchsorted(self.halos[part], self.part_ptr).astype(np.int64)


def find_layout(graph: Graph, assignment: np.ndarray, num_parts: int) -> Layout:
    """Order the nodes by part and find every halo. `assignment` int32 [N], checked."""
    num_nodes = graph.num_nodes
    order = np.argsort(assignment, kind="stable").astype(np.int64, copy=False)
    part_ptr = np.zeros(num_parts + 1, dtype=np.int64)
    np.cumsum(np.bincount(assignment, minlength=num_parts), out=part_ptr[1:])
    place = np.empty(num_nodes, dtype=np.int64)
    place[order] = np.arange(num_nodes, dtype=np.int64)
    stamp = np.full(num_nodes, -1, dtype=np.int32)
    found = np.empty(num_nodes, dtype=np.int64)
    halos = []
    for part in range(num_parts):
        inner = order[part_ptr[part] : part_ptr[part + 1]]
        count = loops.collect_halo(graph.indptr, graph.indices, inner, assignment, part, place, stamp, found)
        halos.append(np.sort(found[:count]))
    return Layout(num_parts, order, place, part_ptr, tuple(halos))


def graph_info(graph: Graph) -> GraphInfo:
    """Counts and names of a graph, as every shard carries them."""
    return GraphInfo(
        name=graph.name,
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_classes=graph.num_classes,
        feature_widths=tuple(None if block is None else int(block.shape[1]) for block in graph.features),
        class_names=graph.class_names,
        node_type_names=graph.node_type_names,
        edge_type_names=graph.edge_type_names,
        notes=graph.notes,
    )


class _Builder:
    """Builds the shards of one graph; holds what they share."""

    def __init__(self, graph: Graph, layout: Layout) -> None:
        self.graph = graph
        self.layout = layout
        self.info = graph_info(graph)
        self.degree = degree_without_loops(graph.indptr, graph.indices, graph.edge_weight)
        self.halo_ptrs = [layout.halo_ptr(part) for part in range(layout.num_parts)]
        self.local = np.empty(graph.num_nodes, dtype=graph.indices.dtype)
        self.rows = rows_in_type(graph.node_type, len(graph.features))

    def build(self, part: int) -> Shard:
        graph, layout = self.graph, self.layout
        inner = layout.inner(part).copy()
        halo = layout.order[layout.halos[part]]
        self.local[inner] = np.arange(len(inner))
        self.local[halo] = np.arange(len(inner), len(inner) + len(halo))
        indptr, positions = self._edges(inner)
        indices = np.empty(indptr[-1], dtype=graph.indices.dtype)
        loops.gather_renamed(graph.indptr, graph.indices, inner, self.local, indices)
        boundary, boundary_ptr = self._boundary(part)
        return Shard(
            part=part,
            num_parts=layout.num_parts,
            inner=inner,
            halo=halo,
            halo_ptr=self.halo_ptrs[part],
            indptr=indptr,
            indices=indices,
            degree=np.concatenate([self.degree[inner], self.degree[halo]]),
            boundary=boundary,
            boundary_ptr=boundary_ptr,
            features=self._features(inner),
            y=_take(graph.y, inner),
            split=None if graph.split is None else _take_split(graph.split, inner),
            public_splits=tuple(_take_split(split, inner) for split in graph.public_splits),
            node_type=_take(graph.node_type, inner),
            edge_type=_take(graph.edge_type, positions),
            edge_weight=_take(graph.edge_weight, positions),
            edge_attr=_take(graph.edge_attr, positions),
            ids=_take(graph.ids, inner),
            columns={name: column[inner] for name, column in graph.columns.items()},
            edge_columns={
                name: column[positions] for name, column in graph.edge_columns.items() if positions is not None
            },
            info=self.info,
        )

    def _edges(self, inner: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The local indptr and, where edges carry anything, where the part's edges are in the graph."""
        graph = self.graph
        carried = (graph.edge_type, graph.edge_weight, graph.edge_attr)
        if not graph.edge_columns and all(array is None for array in carried):
            return _row_pointers(graph.indptr, inner), None
        return row_positions(graph.indptr, inner)

    def _boundary(self, part: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows that each other part needs of this one, in the order in which its halo lists them."""
        pieces = [halo[ptr[part] : ptr[part + 1]] for halo, ptr in zip(self.layout.halos, self.halo_ptrs, strict=True)]
        boundary_ptr = np.zeros(len(pieces) + 1, dtype=np.int64)
        np.cumsum([len(piece) for piece in pieces], out=boundary_ptr[1:])
        return np.concatenate(pieces) - self.layout.part_ptr[part], boundary_ptr

    def _features(self, inner: np.ndarray) -> tuple[FeatureBlock | None, ...]:
        node_type = self.graph.node_type
        if node_type is None or self.rows is None:
            return tuple(_take_block(block, inner) for block in self.graph.features)
        types = node_type[inner]
        return tuple(_take_block(block, self.rows[inner[types == t]]) for t, block in enumerate(self.graph.features))


def rows_in_type(node_type: np.ndarray | None, num_types: int) -> np.ndarray | None:
    """The row of each node in its type's feature block, int64 [N]; None where all are of one type."""
    if node_type is None:
        return None
    rows = np.empty(len(node_type), dtype=np.int64)
    for t in range(num_types):
        members = np.flatnonzero(node_type == t)
        rows[members] = np.arange(len(members))
    return rows


def row_positions(indptr: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For some rows of a CSR: their own row pointers, and where their entries are in the whole."""
    pointers = _row_pointers(indptr, rows)
    positions = np.empty(pointers[-1], dtype=np.int64)
    loops.fill_positions(indptr[rows].astype(np.int64, copy=False), np.diff(pointers), positions)
    return pointers, positions


def _row_pointers(indptr: np.ndarray, rows: np.ndarray) -> np.ndarray:
    pointers = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(indptr[rows + 1] - indptr[rows], out=pointers[1:])
    return pointers


def _take(array: np.ndarray | None, rows: np.ndarray | None) -> np.ndarray | None:
    return None if array is None or rows is None else np.asarray(array[rows])


def _take_split(split: Split, rows: np.ndarray) -> Split:
    return Split(train=split.train[rows], val=split.val[rows], test=split.test[rows])


def _take_block(block: FeatureBlock | None, rows: np.ndarray) -> FeatureBlock | None:
    if block is None:
        return None
    if isinstance(block, np.ndarray):
        return np.asarray(np.take(block, rows, axis=0))
    pointers, positions = row_positions(block.indptr, rows)
    return csr_matrix(
        block.data[positions],
        block.indices[positions],
        pointers.astype(block.indptr.dtype),
        (len(rows), block.shape[1]),
    )
