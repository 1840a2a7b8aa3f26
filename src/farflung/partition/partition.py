"""A partition: which part each node is in, and the shards, in memory or memory-mapped from a folder."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from farflung.errors import InputError
from farflung.graph import Graph
from farflung.graph.checks import check_values
from farflung.partition import store
from farflung.partition.assign import cut
from farflung.partition.check import check_shards
from farflung.partition.config import PartitionConfig
from farflung.partition.reassembly import reassemble
from farflung.partition.shard import Shard
from farflung.partition.shards import build_shards, check_assignment

TOOLS = ("farflung", "numpy", "pymetis")


@dataclass(eq=False)
class Partition:
    """An assignment with its shards; make one with `partition`, `Partition.of` or `Partition.open`."""

    assignment: np.ndarray
    """int32 [N]: the part of each node."""
    shards: Sequence[Shard]
    """One per part; those of a folder are opened, memory-mapped, each time they are indexed."""
    manifest: dict[str, Any] = field(default_factory=dict)
    """`parts`, `by`, `options`, `seed`, `digest`, `part_names`, `tools`; from disk also `format` and `files`."""
    clusters: np.ndarray | None = None
    """int32 [N]: the super-node of each node, of a `supernode` partition."""
    _graph: Graph | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        assignment: np.ndarray,
        num_parts: int,
        *,
        by: str = "given",
        options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        clusters: np.ndarray | None = None,
        part_names: Sequence[str] | None = None,
    ) -> Partition:
        """Cut `graph` by an assignment, integer [N], 0..num_parts-1; the rest says where it came from.

        Raises:
            InputError: the assignment does not fit the graph.
        """
        assignment = check_assignment(assignment, graph.num_nodes, num_parts)
        manifest = {
            "parts": num_parts,
            "by": by,
            "options": dict(options or {}),
            "seed": seed,
            "digest": digest(assignment),
            "part_names": None if part_names is None else list(part_names),
            "tools": tool_versions(),
        }
        shards = build_shards(graph, assignment, num_parts)
        return cls(assignment, shards, manifest, clusters, _graph=graph)

    @property
    def num_parts(self) -> int:
        return len(self.shards)

    @property
    def by(self) -> str:
        """How it was cut: `random`, `mincut`, `supernode` or `given`."""
        return str(self.manifest.get("by", "given"))

    @property
    def digest(self) -> str:
        """SHA-256 of the assignment, hexadecimal: equal partitions have equal digests."""
        return digest(self.assignment)

    def graph(self) -> Graph:
        """The whole graph, reassembled from the shards on first use and kept; those of a folder are verified first.

        Raises:
            InputError: as `verify`, or where features or weights are not finite, or an id is given twice.
        """
        if self._graph is None:
            if isinstance(self.shards, store.StoredShards):
                self.verify()
            graph = reassemble(self.shards)
            check_values(graph)
            self._graph = graph
        return self._graph

    def save(self, path: str | Path) -> None:
        """Write the partition to a folder, all of it or nothing; a partition already there is replaced.

        Raises:
            InputError: the folder holds something else, or cannot be written; of an opened partition also as `verify`,
                lest damage gets checksums of its own.
        """
        if isinstance(self.shards, store.StoredShards):
            self.verify()
        store.write(Path(path), self.assignment, self.shards, self.manifest, self.clusters)

    @classmethod
    def open(cls, path: str | Path) -> Partition:
        """Open a folder written by `save`, memory-mapped: sizes are checked, contents are left to `verify` and `graph`.

        Raises:
            InputError: no partition, another format version, or a missing or truncated file.
        """
        opened = store.read(Path(path))
        return cls(opened.assignment, opened.shards, opened.manifest, opened.clusters)

    def verify(self) -> None:
        """Read everything: checksums of all files, ranges, and that halos and boundaries of all shards agree.

        Raises:
            InputError: what is wrong first, by file or by part and field.
        """
        if isinstance(self.shards, store.StoredShards):
            self.shards.verify_checksums()
        if self.manifest.get("digest", self.digest) != self.digest:
            where = self.shards.folder / store.MANIFEST if isinstance(self.shards, store.StoredShards) else "partition"
            raise InputError(
                f"{where}: `digest` is not that of the assignment: copy the partition again or write it anew"
            )
        check_shards(self.shards, self.assignment)


def partition(graph: Graph, by: str = "random", parts: int | None = 4, seed: int = 0, **options: Any) -> Partition:
    """Cut a graph into parts.

    Args:
        graph: the whole graph.
        by: `random`, `mincut`, `supernode` or `given`.
        parts: number of parts; `given` takes it from the data.
        seed: seed of the partition; one seed gives the same partition on any machine.
        options: further fields of `PartitionConfig`: `clusters`, `balance`, `given`.

    Raises:
        InputError: unknown options, more parts than nodes, given parts that do not fit.
        PartitionerError: METIS failed.
    """
    try:
        config = PartitionConfig.model_validate({"by": by, "parts": parts, **options})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(piece) for piece in first["loc"]) or "options"
        known = ", ".join(PartitionConfig.model_fields)
        raise InputError(f"partition: option `{where}`: {first['msg'].lower()}: the options are {known}") from error
    return cut_graph(graph, config, seed)


def cut_graph(graph: Graph, config: PartitionConfig, seed: int) -> Partition:
    """As `partition`, from a `PartitionConfig`; its own seed, where set, goes before `seed`."""
    found = cut(graph, config, seed)
    return Partition.of(
        graph,
        found.assignment,
        found.num_parts,
        by=config.by,
        options=config.model_dump(exclude={"by", "parts", "seed"}, exclude_none=True),
        seed=seed if config.seed is None else config.seed,
        clusters=found.clusters,
        part_names=found.part_names,
    )


def digest(assignment: np.ndarray) -> str:
    """SHA-256 of an assignment as little-endian int32, hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(assignment, dtype="<i4").tobytes()).hexdigest()


def tool_versions() -> dict[str, str]:
    """Versions of what a partition depends on."""
    versions = {"python": platform.python_version()}
    for tool in TOOLS:
        try:
            versions[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError:
            versions[tool] = "not installed"
    return versions
