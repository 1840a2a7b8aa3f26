"""Parts that come with the data: a node column, or a file with one integer per node."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from farflung.errors import InputError
from farflung.graph import Graph


def read_given(graph: Graph, source: str | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """The part of each node, int32 [N], and for a column the value that each part stands for.

    A column holds integers or strings; its distinct values, sorted, become parts 0..M-1. A file (.npy, or
    .npz with one array or one called `assignment`) holds parts 0..M-1, in the order of the graph's nodes.

    Raises:
        InputError: nothing of that name, or a column or file that is no assignment of this graph's nodes.
    """
    if source is None:
        raise InputError(
            f"partition by 'given': nothing is named: pass given=COLUMN ({_list_columns(graph)}) or a .npy/.npz file"
        )
    if source in graph.columns:
        return _from_column(np.asarray(graph.columns[source]), source)
    path = Path(source)
    if path.suffix not in (".npy", ".npz"):
        raise InputError(
            f"partition by 'given': graph '{graph.name}' has no column '{source}' ({_list_columns(graph)}), "
            "and it is no .npy/.npz file: name one of these"
        )
    return _from_file(path, graph.num_nodes), None


def _from_column(column: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    if column.ndim != 1 or column.dtype.kind not in "iuUb":
        raise InputError(
            f"partition by 'given': column '{name}' is {column.dtype} of shape {column.shape}, expected "
            "one integer or string per node: choose another column"
        )
    values, parts = np.unique(column, return_inverse=True)
    return parts.astype(np.int32), tuple(str(value) for value in values)


def _from_file(path: Path, num_nodes: int) -> np.ndarray:
    parts = _load(path)
    if parts.shape != (num_nodes,):
        raise InputError(
            f"{path}: found an array of shape {parts.shape}, expected ({num_nodes},): "
            "write one part per node, in the order of the graph's nodes"
        )
    if parts.dtype.kind not in "iu":
        raise InputError(f"{path}: found {parts.dtype}, expected integers: write the parts as 0, 1, 2, ...")
    wrong = np.flatnonzero((parts < 0) | (parts >= max(num_nodes, 1)))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{path}: row {row} holds part {parts[row]}, expected 0..{num_nodes - 1}: number the parts from 0"
        )
    return parts.astype(np.int32)


def _load(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            if len(names) != 1 and "assignment" not in names:
                raise InputError(
                    f"{path}: holds the arrays {', '.join(names) or 'none'}: keep one, or call it 'assignment'"
                )
            found = loaded["assignment" if "assignment" in names else names[0]]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: check the path") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}): write it with numpy.save as plain integers") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: holds no array: write it with numpy.savez as plain integers")
    return found


def _list_columns(graph: Graph) -> str:
    return "columns: " + (", ".join(graph.columns) if graph.columns else "none")
