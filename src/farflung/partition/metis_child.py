"""The child process of `farflung.partition.metis`: reads .npy files, calls METIS, writes parts.npy.

Run as a file, so that it starts without the rest of Farflung: metis_child.py FOLDER PARTS SEED RECURSIVE
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pymetis


def main(folder: Path, num_parts: int, seed: int, recursive: bool) -> None:
    """Cut the graph in `folder` and write the part of each node, int32 [N], beside it."""
    dtype = pymetis.zero_copy_dtype()
    xadj = np.load(folder / "xadj.npy", allow_pickle=False)
    if xadj[-1] > np.iinfo(dtype).max:
        raise SystemExit(f"{xadj[-1]} edges are more than this build of METIS can count")
    given = folder / "vweights.npy"
    weights = np.load(given, allow_pickle=False) if given.exists() else None
    if weights is not None and weights.sum(dtype=np.float64) > np.iinfo(dtype).max:
        raise SystemExit(f"weights of nodes that sum to {weights.sum()} are more than this build of METIS can count")
    _, parts = pymetis.part_graph(
        num_parts,
        pymetis.CSRAdjacency(
            adj_starts=xadj.astype(dtype),
            adjacent=np.load(folder / "adjncy.npy", allow_pickle=False).astype(dtype, copy=False),
        ),
        vweights=None if weights is None else weights.astype(dtype),
        recursive=recursive,
        options=pymetis.Options(seed=seed),
    )
    np.save(folder / "parts.npy", np.asarray(parts, dtype=np.int32), allow_pickle=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
