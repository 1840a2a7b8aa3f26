"""Putting shards together again: the graph they were cut from, exactly.

Legend for shapes: N nodes, E directed edges, n inner nodes of a part, e its in-edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from farflung.errors import InputError
from farflung.graph import FeatureBlock, Graph
from farflung.partition.arrays import block_arrays, csr_matrix, edge_arrays, node_arrays, split_of
from farflung.partition.shard import Shard
from farflung.partition.shards import row_positions, rows_in_type


def reassemble(shards: Sequence[Shard]) -> Graph:
    """The graph that the shards of all parts, in order, were cut from; equal in every attribute.

    Each shard is opened twice, one at a time.

    Raises:
        InputError: a shard is missing, or the inner nodes do not cover the graph's exactly once.
    """
    if len(shards) == 0:
        raise InputError("reassemble: expected the shards of all parts, found none: pass all of them")
    first = shards[0]
    info = first.info
    if len(shards) != first.num_parts:
        raise InputError(
            f"reassemble: expected {first.num_parts} shards, found {len(shards)}: pass those of all parts, in order"
        )
    nodes, degrees = _collect_nodes(shards, info.num_nodes)
    indptr = np.zeros(info.num_nodes + 1, dtype=np.int64)
    np.cumsum(degrees, out=indptr[1:])
    edges, features = _collect_edges_and_features(shards, indptr, nodes.get("node_type"))
    public = (split_of(nodes, f"public_splits.{i}") for i in range(len(first.public_splits)))
    return Graph(
        indptr=indptr,
        indices=edges["indices"],
        features=features,
        y=nodes.get("y"),
        split=split_of(nodes, "split"),
        public_splits=tuple(split for split in public if split is not None),
        node_type=nodes.get("node_type"),
        edge_type=edges.get("edge_type"),
        edge_weight=edges.get("edge_weight"),
        edge_attr=edges.get("edge_attr"),
        ids=nodes.get("ids"),
        class_names=info.class_names,
        node_type_names=info.node_type_names,
        edge_type_names=info.edge_type_names,
        columns={name: nodes[f"columns.{name}"] for name in first.columns},
        edge_columns={name: edges[f"edge_columns.{name}"] for name in first.edge_columns},
        name=info.name,
        notes=info.notes,
    )


def _collect_nodes(shards: Sequence[Shard], num_nodes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What nodes carry, in the order of the graph, and the in-edges of each node. int64 [N]."""
    seen = np.zeros(num_nodes, dtype=bool)
    degrees = np.zeros(num_nodes, dtype=np.int64)
    whole = _Whole()
    for part, shard in enumerate(shards):
        if shard.part != part:
            raise InputError(f"reassemble: expected part {part}, found part {shard.part}: pass the parts in order")
        if seen[shard.inner].any():
            node = int(shard.inner[seen[shard.inner]][0])
            raise InputError(f"reassemble: node {node} is in part {part} and in another: give it to one part")
        seen[shard.inner] = True
        degrees[shard.inner] = np.diff(shard.indptr)
        for name, values in node_arrays(shard).items():
            whole.put(name, shard.inner, values, num_nodes)
    if not seen.all():
        raise InputError(f"reassemble: node {int(np.argmin(seen))} is in no part: pass the shards of all parts")
    return whole.arrays, degrees


def _collect_edges_and_features(
    shards: Sequence[Shard], indptr: np.ndarray, node_type: np.ndarray | None
) -> tuple[dict[str, np.ndarray], tuple[FeatureBlock | None, ...]]:
    num_nodes, num_edges = len(indptr) - 1, int(indptr[-1])
    num_types = len(shards[0].features)
    type_rows = rows_in_type(node_type, num_types)
    sizes = [num_nodes] if node_type is None else np.bincount(node_type, minlength=num_types).tolist()
    blocks = [_Block(size) for size in sizes]
    edges = _Whole()
    for shard in shards:
        sources = np.concatenate([shard.inner, shard.halo]).astype(shard.indices.dtype)
        _, positions = row_positions(indptr, shard.inner)
        edges.put("indices", positions, sources[shard.indices], num_edges)
        for name, values in edge_arrays(shard).items():
            edges.put(name, positions, values, num_edges)
        for t, block in enumerate(blocks):
            rows = shard.inner if type_rows is None else type_rows[shard.inner[shard.node_type == t]]
            block.add(rows, shard.features[t])
    return edges.arrays, tuple(block.finish() for block in blocks)


def row_pointers(lengths: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Row pointers [N + 1] of rows of these lengths (int64 [N]), of `dtype`, or int64 where that is too small."""
    pointers = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=pointers[1:])
    return pointers if pointers[-1] > np.iinfo(dtype).max else pointers.astype(dtype, copy=False)


class _Whole:
    """Arrays over the whole graph, filled part by part."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def put(self, name: str, rows: np.ndarray, values: np.ndarray, length: int) -> None:
        if name not in self.arrays:
            self.arrays[name] = np.empty((length, *values.shape[1:]), dtype=values.dtype)
        whole = self.arrays[name]
        if values.dtype != whole.dtype or values.shape[1:] != whole.shape[1:]:
            raise InputError(
                f"reassemble: `{name}` is {values.dtype} {values.shape[1:]} in one part and {whole.dtype} "
                f"{whole.shape[1:]} in another: write all parts with one type and width"
            )
        whole[rows] = values


class _Block:
    """The feature block of one node type; CSR pieces are kept until the lengths of all rows are known."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.whole = _Whole()
        self.pieces: list[tuple[np.ndarray, sp.csr_matrix]] = []

    def add(self, rows: np.ndarray, block: FeatureBlock | None) -> None:
        if isinstance(block, np.ndarray):
            self.whole.put("features", rows, block, self.num_rows)
        elif block is not None:
            self.pieces.append((rows, block))

    def finish(self) -> FeatureBlock | None:
        if not self.pieces:
            return self.whole.arrays.get("features")
        first = self.pieces[0][1]
        lengths = np.zeros(self.num_rows, dtype=np.int64)
        for rows, block in self.pieces:
            lengths[rows] = np.diff(block.indptr)
        indptr = row_pointers(lengths, first.indptr.dtype)
        for rows, block in self.pieces:
            _, positions = row_positions(indptr, rows)
            for name, values in block_arrays(block).items():
                if name != ".indptr":
                    self.whole.put(name, positions, values, int(indptr[-1]))
        found = self.whole.arrays
        return csr_matrix(found[".data"], found[".indices"], indptr, (self.num_rows, first.shape[1]))
