"""Partitions on disk: a folder with manifest.json, assignment.npy and one folder of .npy files per part.

The manifest holds the format version, where the partition came from, and for each file its bytes, shape, dtype
and SHA-256. Opening memory-maps and compares sizes only; `StoredShards.verify_checksums` reads everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, overload

import numpy as np
from pydantic import BaseModel, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError, field_validator

from farflung.errors import InputError
from farflung.partition.arrays import from_arrays, to_arrays
from farflung.partition.shard import GraphInfo, Shard

FORMAT = 1
KIND = "farflung-partition"
MANIFEST = "manifest.json"
_CHUNK = 1 << 22


class _Entry(BaseModel):
    """One file in the manifest."""

    name: str
    file: str
    bytes: NonNegativeInt
    shape: list[NonNegativeInt]
    dtype: str
    sha256: str

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        path = PureWindowsPath(file)  # it knows both kinds of slashes, and drives
        if path.anchor or ".." in path.parts or "\0" in file:
            raise ValueError(f"'{file}' leads out of the folder")
        return file


class _Manifest(BaseModel):
    """What a manifest must hold to be read; there may be more."""

    parts: PositiveInt
    digest: str
    graph: GraphInfo
    files: dict[str, list[_Entry]]
    by: str = "given"
    options: dict[str, Any] | None = None
    seed: int | None = None
    part_names: list[str] | None = None


@dataclass(frozen=True, eq=False)
class Stored:
    """What `read` found in a folder."""

    assignment: np.ndarray
    shards: StoredShards
    manifest: dict[str, Any]
    clusters: np.ndarray | None


class StoredShards(Sequence[Shard]):
    """The shards of a folder; indexing opens one, memory-mapped, and keeps no hold on it."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.info = TypeAdapter(GraphInfo).validate_python(manifest["graph"])

    def __len__(self) -> int:
        return int(self.manifest["parts"])

    @overload
    def __getitem__(self, part: int) -> Shard: ...
    @overload
    def __getitem__(self, part: slice) -> list[Shard]: ...
    def __getitem__(self, part: int | slice) -> Shard | list[Shard]:
        if isinstance(part, slice):
            return [self[k] for k in range(*part.indices(len(self)))]
        if not -len(self) <= part < len(self):
            raise IndexError(f"part {part} of {len(self)}")
        part %= len(self)
        entries = self.manifest["files"][f"part-{part}"]
        arrays = {entry["name"]: open_array(self.folder, entry) for entry in entries}
        try:
            return from_arrays(part, len(self), self.info, arrays)
        except KeyError as error:
            raise InputError(
                f"{self.folder / MANIFEST}: part {part} lists no array {error}: write the partition again"
            ) from None

    def verify_checksums(self) -> None:
        """Read every file; `InputError` names the first whose SHA-256 differs from the manifest."""
        for entry in list_entries(self.manifest):
            path = check_size(self.folder, entry)
            if _sha256(path) != entry["sha256"]:
                raise InputError(
                    f"{path}: its contents differ from the checksum in {MANIFEST}: "
                    "copy the partition again or write it anew"
                )


def write(
    folder: Path,
    assignment: np.ndarray,
    shards: Sequence[Shard],
    manifest: Mapping[str, Any],
    clusters: np.ndarray | None,
) -> None:
    """Write a partition, all of it or nothing: to a new folder beside, synced to disk, then renamed.

    Raises:
        InputError: the folder is not empty and holds no partition, or it cannot be written.
    """
    check_target(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        work.mkdir()
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}): choose another folder") from error
    try:
        _write_files(work, assignment, shards, manifest, clusters)
        _put_in_place(work, folder)
    except OSError as error:
        raise InputError(
            f"{folder}: writing failed ({error.strerror}), nothing was changed: free space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_target(folder: Path) -> None:
    """Raise `InputError` where `folder` is a file, or a non-empty folder without a partition."""
    if folder.is_dir():
        if any(folder.iterdir()) and not is_partition(folder):
            raise InputError(
                f"{folder}: holds other files and no partition, so it is left alone: choose a new or empty folder"
            )
    elif folder.exists():
        raise InputError(f"{folder}: is a file, expected a folder to write to: choose another name")


def is_partition(folder: Path) -> bool:
    """Whether a folder holds a partition (of any format version)."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def read(folder: Path) -> Stored:
    """Open a partition without reading its contents, but for the manifest and the headers of two files.

    Raises:
        InputError: no partition there, another format version, or a file missing or of another size.
    """
    manifest = read_manifest(folder)
    for entry in list_entries(manifest):
        check_size(folder, entry)
    shards = StoredShards(folder, manifest)
    top = {entry["name"]: open_array(folder, entry) for entry in manifest["files"]["partition"]}
    return Stored(top["assignment"], shards, manifest, top.get("clusters"))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a partition folder. Raises `InputError` unless it is one that this version can read."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
        manifest = json.loads(text)
    except FileNotFoundError:
        raise InputError(
            f"{folder}: holds no {MANIFEST}, expected a folder written by `farflung partition`: check the path"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}): copy the partition again or write it anew") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
        raise InputError(f"{path}: describes no partition: pass a folder written by `farflung partition`")
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path}: format version {manifest.get('format')}, this Farflung reads version {FORMAT}: "
            "write the partition again, or use the Farflung that wrote it"
        )
    try:
        files = _Manifest.model_validate_json(text, strict=True).files
    except ValidationError as error:
        first = error.errors()[0]
        field, fault = ".".join(str(piece) for piece in first["loc"]), first["msg"].removeprefix("Value error, ")
        raise InputError(f"{path}: `{field}`: {fault}: copy the partition again or write it anew") from None
    needed = ("partition", *(f"part-{k}" for k in range(manifest["parts"])))
    missing = [f"files.{part}" for part in needed if part not in files]
    if not missing and "assignment" not in {entry.name for entry in files["partition"]}:
        missing = ["files.partition.assignment"]
    if missing:
        raise InputError(f"{path}: lacks '{missing[0]}': copy the partition again or write it anew")
    return manifest


def list_entries(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The entries of all files of a partition."""
    for entries in manifest["files"].values():
        yield from entries


def check_size(folder: Path, entry: Mapping[str, Any]) -> Path:
    """The path of a file, if it is there with the bytes that the manifest says; `InputError` otherwise."""
    path = folder / entry["file"]
    try:
        size = path.stat().st_size
    except OSError:
        raise InputError(f"{path}: is missing: copy the partition again or write it anew") from None
    if size != entry["bytes"]:
        raise InputError(
            f"{path}: has {size} bytes, expected {entry['bytes']}: copy the partition again or write it anew"
        )
    return path


def open_array(folder: Path, entry: Mapping[str, Any]) -> np.ndarray:
    """A file's array, memory-mapped read-only; its header must say what the manifest says."""
    path = check_size(folder, entry)
    try:
        array = np.load(path, mmap_mode="r" if 0 not in entry["shape"] else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read ({error}): copy the partition again or write it anew") from error
    if list(array.shape) != entry["shape"] or array.dtype.str != entry["dtype"]:
        raise InputError(
            f"{path}: holds {array.dtype.str} {list(array.shape)}, "
            f"expected {entry['dtype']} {entry['shape']}: copy the partition again or write it anew"
        )
    return array


def _write_files(
    work: Path,
    assignment: np.ndarray,
    shards: Sequence[Shard],
    manifest: Mapping[str, Any],
    clusters: np.ndarray | None,
) -> None:
    whole = {"assignment": assignment} if clusters is None else {"assignment": assignment, "clusters": clusters}
    files = {"partition": _write_arrays(work, "", whole)}
    info: GraphInfo | None = None
    for part, shard in enumerate(shards):
        info = shard.info
        files[f"part-{part}"] = _write_arrays(work, f"part-{part}", to_arrays(shard))
    written = {
        "kind": KIND,
        "format": FORMAT,
        **manifest,
        "graph": asdict(info) if info is not None else {},
        "files": files,
    }
    path = work / MANIFEST
    path.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(path)
    for folder in (*work.glob("part-*"), work):
        _sync(folder)


def _write_arrays(work: Path, folder: str, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Write arrays as .npy files; their entries for the manifest."""
    (work / folder).mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    for position, (name, array) in enumerate(arrays.items()):
        plain = re.fullmatch(r"[a-z_0-9.]{1,60}", name)
        file = Path(folder, f"{name if plain else f'column-{position}'}.npy")
        path = work / file
        np.save(path, array, allow_pickle=False)
        _sync(path)
        entries.append(
            {
                "name": name,
                "file": file.as_posix(),
                "bytes": path.stat().st_size,
                "shape": list(array.shape),
                "dtype": array.dtype.str,
                "sha256": _sha256(path),
            }
        )
    return entries


def _put_in_place(work: Path, folder: Path) -> None:
    """Rename the finished folder to its name; a partition already there is moved aside, then removed."""
    old = work.with_name(work.name + "-old")
    if folder.exists():
        folder.rename(old)
    try:
        work.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    """Flush a file or a folder to disk; that some systems cannot do so for folders is no failure."""
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
