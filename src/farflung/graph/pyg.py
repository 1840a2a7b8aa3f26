"""PyTorch Geometric's `Data` to a `Graph` and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from farflung.errors import InputError
from farflung.graph.build import EDGE_FIELDS, from_edges
from farflung.graph.checks import check_ids
from farflung.graph.graph import MASKS, FeatureBlock, Graph, Split
from farflung.graph.values import as_ids

if TYPE_CHECKING:
    from torch_geometric.data import Data

_TAKEN = {"x", "y", "edge_index", "num_nodes", "node_type", "original_id", *EDGE_FIELDS}


def from_pyg(data: Data, *, duplicates: str = "keep", name: str = "graph") -> Graph:
    """A `Graph` from a homogeneous `Data`; edges stay as directed there.

    `x` may be dense or sparse. Masks become `public_splits`: [N] one, [N, S] one per column. Other attributes
    with one number per node (per edge, if named `edge_...`) become columns. Multi-labels are `y` [N, C].

    Raises:
        InputError: if the number of nodes is not stated (by `x`, `y` or `num_nodes`), on `HeteroData`, on an
            `original_id` given twice, and on whatever `Graph.from_edges` refuses.
    """
    if getattr(data, "edge_types", None) is not None and not hasattr(data, "edge_index"):
        raise InputError("from_pyg: HeteroData is not read; use `data.to_homogeneous()`")
    if data.edge_index is None:
        raise InputError(
            "from_pyg: `edge_index` is missing; from `adj_t` make it with `torch.stack(adj_t.coo()[1::-1])`"
        )
    source, destination = _numpy(data.edge_index)
    num_nodes = _num_nodes(data)
    fields: dict[str, Any] = {
        key: _numpy(getattr(data, key)) for key in (*EDGE_FIELDS, "node_type") if getattr(data, key, None) is not None
    }
    if data.x is not None:
        fields["x"] = _features(data.x)
    if data.y is not None:
        y = _numpy(data.y)
        fields["y"] = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if "class_names" in data:
        fields["class_names"] = tuple(data["class_names"])
    if fields.get("edge_attr") is not None and fields["edge_attr"].ndim == 1:
        fields["edge_attr"] = fields["edge_attr"][:, None]
    columns, edge_columns = _columns(data, num_nodes, len(source))
    graph = from_edges(
        source,
        destination,
        num_nodes=num_nodes,
        duplicates=duplicates,
        public_splits=_splits(data),
        columns=columns,
        edge_columns=edge_columns,
        name=name,
        **fields,
    )
    if "original_id" in data:
        graph = graph.with_(ids=as_ids(data["original_id"], "original_id"))
        check_ids(graph)
    return graph


def to_pyg(graph: Graph) -> Data:
    """A `Data` with the fields of a graph of one node type, edges in the order of the graph.

    Masks are those of `split`, or where none is chosen the public ones ([N, S] if there are several).
    Original ids are under `original_id` (a tensor, or a list of strings), columns under their names (edge columns with
    `edge_` before them); CSR features become a sparse tensor. Arrays are copied.
    """
    from torch_geometric.data import Data

    if len(graph.features) != 1:
        raise InputError(f"to_pyg: graph '{graph.name}' has {len(graph.features)} node types, `Data` holds one")
    data = Data(
        edge_index=torch.from_numpy(np.stack([graph.indices, graph.destinations()]).astype(np.int64)),
        num_nodes=graph.num_nodes,
    )
    if graph.x is not None:
        data.x = _tensor(graph.x)
    for key in ("y", "node_type", *EDGE_FIELDS):
        if getattr(graph, key) is not None:
            data[key] = _tensor(getattr(graph, key))
    splits = (graph.split,) if graph.split is not None else graph.public_splits
    for part in MASKS if splits else ():
        masks = np.stack([getattr(split, part) for split in splits], axis=1)
        data[f"{part}_mask"] = _tensor(masks[:, 0] if len(splits) == 1 else masks)
    if graph.ids is not None:
        data.original_id = graph.ids.tolist() if graph.ids.dtype.kind == "U" else _tensor(graph.ids)
    if graph.class_names is not None:
        data.class_names = list(graph.class_names)
    for prefix, columns in (("", graph.columns), ("edge_", graph.edge_columns)):
        for key, column in columns.items():
            data[f"{prefix}{key}"] = column.tolist() if column.dtype.kind == "U" else _tensor(column)
    return data


def _num_nodes(data: Data) -> int:
    """As stated by the data; never the largest id + 1, which would lose isolated nodes."""
    if "num_nodes" in data:
        return int(data.num_nodes)
    for key in ("x", "y"):
        if getattr(data, key) is not None:
            return int(getattr(data, key).shape[0])
    raise InputError("from_pyg: `data` has neither x, y nor num_nodes; set `data.num_nodes`")


def _splits(data: Data) -> tuple[Split, ...]:
    present = [part for part in MASKS if getattr(data, f"{part}_mask", None) is not None]
    if not present:
        return ()
    if len(present) < len(MASKS):
        raise InputError(f"from_pyg: `data` has a {present[0]}_mask but not all of train, val and test; add the rest")
    masks = [_numpy(data[f"{part}_mask"]) for part in MASKS]
    width = max(mask.shape[1] if mask.ndim == 2 else 1 for mask in masks)
    columns = [mask if mask.ndim == 2 else np.repeat(mask[:, None], width, axis=1) for mask in masks]
    return tuple(Split(*(mask[:, i] for mask in columns)) for i in range(width))


def _columns(data: Data, num_nodes: int, num_edges: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    columns, edge_columns = {}, {}
    for key, value in data:
        if key in _TAKEN or key.endswith("_mask") or not torch.is_tensor(value) or value.dim() != 1:
            continue
        if key.startswith("edge_") and len(value) == num_edges:
            edge_columns[key.removeprefix("edge_")] = _numpy(value)
        elif len(value) == num_nodes:
            columns[key] = _numpy(value)
    return columns, edge_columns


def _features(x: Any) -> FeatureBlock:
    """Dense, torch-sparse (any layout) or torch_sparse.SparseTensor features as an array or CSR."""
    if hasattr(x, "to_scipy"):
        return x.to_scipy(layout="csr")
    if x.layout == torch.strided:
        return _numpy(x)
    csr = x.to_sparse_csr()
    parts = (_numpy(csr.values()), _numpy(csr.col_indices()), _numpy(csr.crow_indices()))
    return sp.csr_matrix(parts, shape=tuple(x.shape))


def _tensor(value: FeatureBlock) -> torch.Tensor:
    if isinstance(value, sp.csr_matrix):
        indptr, indices, data = (torch.from_numpy(np.array(a)) for a in (value.indptr, value.indices, value.data))
        return torch.sparse_csr_tensor(indptr, indices, data, size=value.shape, check_invariants=False)
    return torch.from_numpy(np.array(value))


def _numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if torch.is_tensor(tensor) else np.asarray(tensor)
