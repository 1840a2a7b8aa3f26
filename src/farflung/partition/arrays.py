"""A shard as named arrays and back: how it is written to disk, handed out and counted.

Names are field names; `features.<t>` (dense) or `features.<t>.data/.indices/.indptr` (CSR), `split.<mask>`,
`public_splits.<i>.<mask>`, `columns.<name>`, `edge_columns.<name>`. What is None has no array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from farflung.graph import FeatureBlock, Split
from farflung.graph.build import EDGE_FIELDS
from farflung.graph.graph import MASKS
from farflung.partition.shard import GraphInfo, Shard

LAYOUT = ("inner", "halo", "halo_ptr", "indptr", "indices", "degree", "boundary", "boundary_ptr")
NODE = ("y", "node_type", "ids")


def node_arrays(shard: Shard) -> dict[str, np.ndarray]:
    """What inner nodes carry besides features, each [n, ...], by name."""
    found = {name: getattr(shard, name) for name in NODE if getattr(shard, name) is not None}
    if shard.split is not None:
        found.update(_masks("split", shard.split))
    for i, split in enumerate(shard.public_splits):
        found.update(_masks(f"public_splits.{i}", split))
    found.update({f"columns.{name}": column for name, column in shard.columns.items()})
    return found


def edge_arrays(shard: Shard) -> dict[str, np.ndarray]:
    """What edges carry besides their ends, each [e, ...], by name."""
    found = {name: getattr(shard, name) for name in EDGE_FIELDS if getattr(shard, name) is not None}
    found.update({f"edge_columns.{name}": column for name, column in shard.edge_columns.items()})
    return found


def block_arrays(block: FeatureBlock | None) -> dict[str, np.ndarray]:
    """The arrays of a feature block: {'': dense}, or data, indices and indptr of a CSR; none of None."""
    if block is None:
        return {}
    if isinstance(block, np.ndarray):
        return {"": block}
    return {".data": block.data, ".indices": block.indices, ".indptr": block.indptr}


def to_arrays(shard: Shard) -> dict[str, np.ndarray]:
    """All arrays of a shard by name, as they are (no copies)."""
    found = {name: getattr(shard, name) for name in LAYOUT}
    found.update(node_arrays(shard))
    found.update(edge_arrays(shard))
    for t, block in enumerate(shard.features):
        found.update({f"features.{t}{suffix}": array for suffix, array in block_arrays(block).items()})
    return found


def from_arrays(part: int, num_parts: int, info: GraphInfo, arrays: Mapping[str, np.ndarray]) -> Shard:
    """The shard that `to_arrays` took apart. Raises KeyError where an array of the layout is missing."""
    optional: dict[str, Any] = {name: arrays.get(name) for name in NODE + EDGE_FIELDS}
    num_public = len({name.split(".")[1] for name in arrays if name.startswith("public_splits.")})
    return Shard(
        part=part,
        num_parts=num_parts,
        **{name: arrays[name] for name in LAYOUT},
        features=tuple(_block(arrays, t, width) for t, width in enumerate(info.feature_widths)),
        **optional,
        split=split_of(arrays, "split"),
        public_splits=tuple(
            split for i in range(num_public) if (split := split_of(arrays, f"public_splits.{i}")) is not None
        ),
        columns=_named(arrays, "columns."),
        edge_columns=_named(arrays, "edge_columns."),
        info=info,
    )


def setup_bytes(shard: Shard) -> int:
    """Bytes of all arrays of a shard: what handing it out costs."""
    return sum(int(array.nbytes) for array in to_arrays(shard).values())


def split_of(arrays: Mapping[str, np.ndarray], name: str) -> Split | None:
    """The split stored as `<name>.train`, `.val`, `.test`; None where there is none."""
    if f"{name}.train" not in arrays:
        return None
    return Split(**{mask: arrays[f"{name}.{mask}"] for mask in MASKS})


def csr_matrix(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> sp.csr_matrix:
    """A CSR matrix of exactly these arrays (SciPy's constructor scans them and may change index types)."""
    matrix = sp.csr_matrix(shape, dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def _named(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _masks(name: str, split: Split) -> dict[str, np.ndarray]:
    return {f"{name}.{mask}": getattr(split, mask) for mask in MASKS}


def _block(arrays: Mapping[str, np.ndarray], t: int, width: int | None) -> FeatureBlock | None:
    name = f"features.{t}"
    if width is None:
        return None
    if name in arrays:
        return arrays[name]
    data, indices, indptr = (arrays[f"{name}.{key}"] for key in ("data", "indices", "indptr"))
    return csr_matrix(data, indices, indptr, (len(indptr) - 1, width))
