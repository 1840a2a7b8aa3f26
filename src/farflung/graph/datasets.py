"""Graphs by name: built in, generated, downloaded, or found under the folder that FARFLUNG_DATA names."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from farflung.errors import InputError, did_you_mean
from farflung.graph.build import symmetrise
from farflung.graph.digits import digits
from farflung.graph.download import cached, ogbl_citation2, ogbn_products, planetoid, reddit
from farflung.graph.graph import Graph
from farflung.graph.npz import read_npz
from farflung.graph.sbm import block_model, parse_block_model

_SBM = "sbm:nodes=1000,classes=5,degree=10,homophily=0.8,features=32,seed=0"
_OGB = "" if find_spec("ogb") else "pip install 'farflung[ogb]'"


@dataclass(frozen=True)
class DatasetInfo:
    """A graph that `load` knows by name."""

    name: str
    about: str
    """One line: what it is and how big."""
    where: str
    """Where it comes from: `built in`, `generated`, `download`, or the path of the file."""
    needs: str = ""
    """The command that installs what is missing; empty: nothing is."""


@dataclass(frozen=True)
class _Named:
    info: DatasetInfo
    read: Callable[[], Graph]


def _download(name: str, about: str, read: Callable[[Path], Graph], needs: str = "") -> _Named:
    return _Named(DatasetInfo(name, about, "download", needs), lambda: cached(name, read))


_NAMED = {
    named.info.name: named
    for named in (
        _Named(
            DatasetInfo("digits", "1,797 handwritten digits, each joined to its 10 nearest", "built in"),
            digits,
        ),
        _download("planetoid-cora", "2,708 papers in 7 fields, public split", planetoid("Cora")),
        _download("planetoid-citeseer", "3,327 papers in 6 fields, public split", planetoid("CiteSeer")),
        _download("planetoid-pubmed", "19,717 papers in 3 fields, public split", planetoid("PubMed")),
        _download("reddit", "232,965 posts in 41 communities, 115M edges, public split", reddit),
        _download("ogbn-products", "2.4M products in 47 categories, 124M edges", ogbn_products, _OGB),
        _download("ogbl-citation2", "2.9M papers, 31M citations (link prediction)", ogbl_citation2, _OGB),
    )
}


def load(name_or_path: str | Path, *, symmetric: bool = False) -> Graph:
    """The graph called so: a name that `available` lists, `sbm:<parameters>`, or the path of a `.npz`.

    Args:
        symmetric: add the reverse of each edge that has none; `notes` says how many were added.

    Raises:
        InputError: if there is no such name or file (the message lists the names), or its contents are wrong.
        MissingExtraError: if an optional package is needed that is not installed.
    """
    text = str(name_or_path)
    kind, _, argument = text.partition(":")
    if kind == "sbm":
        graph = block_model(parse_block_model(argument))
    elif text in _NAMED:
        graph = _NAMED[text].read()
    elif text in (files := _files()):
        return read_npz(files[text], symmetric=symmetric)
    elif Path(text).suffix or os.sep in text:
        return read_npz(text, symmetric=symmetric)
    else:
        names = [*_NAMED, "sbm:...", *files]
        raise InputError(
            f"unknown dataset '{text}'{did_you_mean(text, names)}; there are {', '.join(names)}, or a .npz"
        )
    return symmetrise(graph) if symmetric else graph


def available() -> list[DatasetInfo]:
    """All graphs that can be loaded by name here; nothing is downloaded or read to find out."""
    generated = DatasetInfo(_SBM, "degree-corrected stochastic blocks with Gaussian features", "generated")
    found = [DatasetInfo(name, _about(path), str(path)) for name, path in _files().items() if name not in _NAMED]
    return [*(named.info for named in _NAMED.values()), generated, *found]


def _files() -> dict[str, Path]:
    """The `.npz` files under FARFLUNG_DATA by name; none where it is unset or no folder."""
    folder = os.environ.get("FARFLUNG_DATA", "")
    if not folder or not Path(folder).is_dir():
        return {}
    return {path.stem: path for path in sorted(Path(folder).glob("*.npz"))}


def _about(path: Path) -> str:
    """Counts of nodes and edges, from the headers of the file's arrays."""
    try:
        with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as arrays:
            names = arrays.files
            nodes = sum(
                int(arrays[n])
                for n in names
                if n.startswith(("num_nodes", "num_users", "num_items")) and n != "num_node_types"
            )
            edges = sum(_shape(archive, n)[1] for n in names if n.startswith("edge_index"))
            kinds = [
                ("edge_type", "typed edges"),
                ("node_types", "typed nodes"),
                ("y", "labels"),
                ("x", "features"),
            ]
            has = [
                word for key, word in kinds if key in names or any(n.startswith((f"{key}_", f"{key}__")) for n in names)
            ]
    except (OSError, ValueError, IndexError, zipfile.BadZipFile):
        return "cannot be read"
    return ", ".join([f"{nodes:,} nodes", f"{edges:,} edges", *has])


def _shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    """The shape of one array, without its values."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(file)[0]
