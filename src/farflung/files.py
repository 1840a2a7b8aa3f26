"""Files on disk: written whole or not at all, and a disk that refuses said in one sentence."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from farflung.errors import FarflungError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating-system error inside the block into a FarflungError about `path`, one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise FarflungError(
            f"{path} cannot be written ({reason}): make room or choose another --out; what was written before is whole"
        ) from error


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in its place: readers see old or new, never half.

    Its permissions are those that the umask leaves. Raises FarflungError where the disk refuses, and leaves what
    was at `path` as it was.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with disk_errors(path):
        try:
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode & 0o777
            write(temporary)
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
