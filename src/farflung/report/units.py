"""Numbers as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in powers of 1000: `999 B`, `1.23 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def seconds(value: float) -> str:
    """A time: `0.25 s`, `12.3 s`, `2 min 5 s`, `1 h 2 min`."""
    if value < 60:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
