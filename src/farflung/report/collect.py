"""What is there to report on: records from run folders and from folders of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farflung.errors import InputError
from farflung.report.digest import Failure
from farflung.report.page import write_report
from farflung.report.record import RunRecord
from farflung.run.compare import CELLS, RESULT
from farflung.run.folder import CONFIG, read_json


@dataclass(frozen=True)
class Found:
    """Runs, cells that failed, and remarks about what was left out, one sentence each."""

    records: tuple[RunRecord, ...]
    failed: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()


def report_on(folders: Iterable[str | Path], out: str | Path) -> Found:
    """Write the report on what `folders` hold to the file `out`; what went into it.

    Raises InputError as `collect` and `write_report`.
    """
    found = collect(folders)
    write_report(found.records, out, failed=found.failed, notes=found.notes)
    return found


def collect(folders: Iterable[str | Path]) -> Found:
    """The runs in run folders and in folders of comparisons, in their order.

    Raises InputError for a folder that is neither, and where nothing has finished in any of them.
    """
    found = [_one(Path(folder)) for folder in folders]
    together = Found(
        tuple(record for one in found for record in one.records),
        tuple(failure for one in found for failure in one.failed),
        tuple(note for one in found for note in one.notes),
    )
    if not together.records:
        why = f" ({together.notes[0].rstrip('.')})" if together.notes else ""
        reason = f"; the first failure: {together.failed[0].error}" if together.failed else ""
        raise InputError(f"nothing has finished that could be reported on{why}{reason}")
    return together


def _one(folder: Path) -> Found:
    if (folder / CONFIG).is_file():
        return Found((RunRecord.open(folder),))
    if (folder / CELLS).is_dir():
        return _comparison(folder)
    what = "there is nothing at" if not folder.exists() else "there is no run and no comparison in"
    raise InputError(f"{what} {folder}: name a folder that `farflung train --out` or `farflung compare` made")


def _comparison(folder: Path) -> Found:
    cells = [_cell(path) for path in sorted((folder / CELLS).glob("*.json"))]
    order, notes = _asked(folder)
    if order is not None:
        there = {(cell["label"], cell["seed"]): cell for cell in cells}
        cells = [there.pop(key) for key in order if key in there]
        if there:
            notes.append(f"{len(there)} cells of other methods or seeds in {folder} are left out: {RESULT} lacks them.")
    records, failed, bare = [], [], 0
    for cell in cells:
        if "error" in cell:
            graph = str((cell.get("config") or {}).get("graph", ""))
            failed.append(Failure(str(cell["label"]), int(cell["seed"]), str(cell["error"]), graph))
        elif cell.get("record") is None:
            bare += 1
        else:
            records.append(RunRecord.from_dict(cell["record"]))
    if bare:
        notes.append(
            f"{bare} cells of {folder} were made by an earlier version that kept no history: remove their files and "
            "call `farflung compare` again."
        )
    return Found(tuple(records), tuple(failed), tuple(notes))


def _cell(path: Path) -> Mapping[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not {"label", "seed"} <= content.keys():
        raise InputError(f"{path} is no cell of a comparison: remove it")
    return content


def _asked(folder: Path) -> tuple[Sequence[tuple[str, int]] | None, list[str]]:
    """Labels and seeds of the last complete comparison in their order; None where it was broken off."""
    if not (folder / RESULT).is_file():
        return None, [f"The comparison in {folder} has not come to its end: these are the cells that have."]
    content = read_json(folder / RESULT)
    order = [(row["label"], seed) for row in content["methods"] for seed in row["seeds"]]
    return [*order, *((one["label"], one["seed"]) for one in content["failed"])], []
