"""`farflung report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Run folders, and folders of `farflung compare`.", show_default=False),
]


def report(
    folders: Folders,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page on runs and comparisons: scores, bytes, time, parts, settings. It needs no network."""
    from farflung.report.collect import report_on
    from farflung.report.units import size

    found = report_on(folders, out)
    runs = len(found.records)
    failed = f" and {len(found.failed)} failed cells" if found.failed else ""
    print(f"{runs} run{'' if runs == 1 else 's'}{failed} in {out}, {size(out.stat().st_size)}")
