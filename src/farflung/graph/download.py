"""Public graphs through the downloads of PyTorch Geometric and OGB, kept afterwards in our own format."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from farflung.errors import InputError, MissingExtraError
from farflung.graph.build import from_edges
from farflung.graph.graph import Graph, Split
from farflung.graph.npz import read_npz
from farflung.graph.pyg import from_pyg
from farflung.graph.store import save_graph

_ARRAY_PARTS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "LongStorage"),
}
"""All that may be built from OGB's files of split edges: plain arrays."""

_SPARSE_BELOW = 0.1
"""Share of non-zero features under which they are kept as CSR."""


def cache_dir() -> Path:
    """Where downloads are kept: FARFLUNG_CACHE, or `~/.cache/farflung`."""
    return Path(os.environ.get("FARFLUNG_CACHE") or Path.home() / ".cache" / "farflung")


def cached(name: str, read: Callable[[Path], Graph]) -> Graph:
    """The graph `name` from our cache, or downloaded by `read(folder)` and kept there.

    What the libraries leave behind is pickled; it is read at most once, right after the download.
    Raises `InputError` if the download fails.
    """
    path = cache_dir() / f"{name}.npz"
    if path.is_file():
        return read_npz(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        graph = read(cache_dir() / "raw").with_(name=name)
    except OSError as error:
        raise InputError(f"'{name}' could not be downloaded to {path.parent} ({error}); check the network") from error
    save_graph(graph, path)
    return graph


def planetoid(name: str) -> Callable[[Path], Graph]:
    """Reads one of Cora, CiteSeer, PubMed with its public split (Yang et al., ICML 2016)."""

    def read(folder: Path) -> Graph:
        from torch_geometric.datasets import Planetoid

        graph = from_pyg(Planetoid(str(folder / "planetoid"), name)[0])
        x = sp.csr_matrix(graph.x)
        return graph.with_(features=(x,)) if x.nnz < _SPARSE_BELOW * np.prod(x.shape) else graph

    return read


def reddit(folder: Path) -> Graph:
    """Reddit posts (Hamilton et al., NeurIPS 2017)."""
    from torch_geometric.datasets import Reddit

    return from_pyg(Reddit(str(folder / "reddit"))[0])


def ogbn_products(folder: Path) -> Graph:
    """Amazon products (Hu et al., NeurIPS 2020), undirected, with OGB's split by sales rank."""
    dataset = _ogb("nodeproppred", "NodePropPredDataset", "ogbn-products", folder)
    graph, labels = dataset[0]
    split = dataset.get_idx_split()
    rows = np.arange(graph["num_nodes"])
    masks = [np.isin(rows, np.asarray(split[part])) for part in ("train", "valid", "test")]
    y = np.nan_to_num(labels[:, 0], nan=-1).astype(np.int64)
    return from_edges(
        *graph["edge_index"],
        num_nodes=graph["num_nodes"],
        symmetric=True,
        x=graph["node_feat"].astype(np.float32, copy=False),
        y=y,
        public_splits=(Split(*masks),),
    )


def ogbl_citation2(folder: Path) -> Graph:
    """Citations between papers (Hu et al., NeurIPS 2020), directed.

    All edges are in the graph; edge column `split` says 0 training, 1 validation, 2 test. The negatives that
    OGB publishes for validation and test are not kept.
    """
    dataset = _ogb("linkproppred", "LinkPropPredDataset", "ogbl-citation2", folder)
    graph = dataset[0]
    parts = [read_arrays(Path(dataset.root, "split", "time", f"{p}.pt")) for p in ("train", "valid", "test")]
    ends = [np.stack([part["source_node"], part["target_node"]]) for part in parts]
    source, destination = np.concatenate(ends, axis=1)
    return from_edges(
        source,
        destination,
        num_nodes=graph["num_nodes"],
        x=graph["node_feat"].astype(np.float32, copy=False),
        columns={"year": graph["node_year"][:, 0]},
        edge_columns={"split": np.repeat(np.arange(3, dtype=np.uint8), [e.shape[1] for e in ends])},
    )


class _ArraysOnly(pickle.Unpickler):
    """Builds plain arrays and refuses everything else, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise InputError(f"a downloaded file holds {module}.{name}, not only arrays, and is refused")
        return super().find_class(module, name)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """A torch file of arrays by name, read with nothing but `_ARRAY_PARTS`; `InputError` on any other content."""
    reader = SimpleNamespace(
        __name__="arrays", Unpickler=_ArraysOnly, load=lambda file, **how: _ArraysOnly(file, **how).load()
    )
    found = torch.load(path, pickle_module=reader, weights_only=False)
    return {name: np.asarray(value) for name, value in found.items()}


def _ogb(module: str, reader: str, name: str, folder: Path) -> Any:
    """OGB's own dataset object, made from its raw files even if an interrupted run left a pickle."""
    try:
        datasets = import_module(f"ogb.{module}")
    except ImportError:
        raise MissingExtraError(f"'{name}' needs the package ogb: pip install 'farflung[ogb]'") from None
    left_over = folder / "ogb" / name.replace("-", "_") / "processed" / "data_processed"
    left_over.unlink(missing_ok=True)
    return getattr(datasets, reader)(name, root=str(folder / "ogb"))
