"""A report as one HTML file that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from farflung import __version__
from farflung.errors import InputError
from farflung.files import write_atomic
from farflung.report import conditions, results
from farflung.report.digest import Failure, Study, studies
from farflung.report.record import RunRecord
from farflung.report.view import Marks, Section


def write_report(
    records: Sequence[RunRecord], path: str | Path, *, failed: Sequence[Failure] = (), notes: Sequence[str] = ()
) -> None:
    """Write the report on `records` to `path`, whole or not at all.

    Args:
        failed: cells of comparisons that ended in an error.
        notes: remarks about what was read, one sentence each.

    Raises:
        InputError: no records, or a path that cannot be written.
        FarflungError: the disk refuses.
    """
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InputError(f"report {path} cannot be written ({what}): name a file, such as --out report.html")
    text = render(records, failed=failed, notes=notes)
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def render(records: Sequence[RunRecord], *, failed: Sequence[Failure] = (), notes: Sequence[str] = ()) -> str:
    """The page as text: the same records give the same page. Raises InputError where there are none."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    if not records:
        raise InputError("there is no finished run to report on: train first")
    found = studies(records, failed, notes)
    pages = [(study, _sections(study, f"s{place}-")) for place, study in enumerate(found)]
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ", ".join(dict.fromkeys(study.graph for study in found))
    return environment.get_template("report.html").render(title=names, pages=pages, version=__version__)


def _template(name: str) -> str:
    return resources.files("farflung.report").joinpath("templates", name).read_text(encoding="utf-8")


def _sections(study: Study, prefix: str) -> list[Section]:
    marks = Marks(prefix)
    every = (
        results.summary(study, marks),
        results.trouble(study),
        results.traffic(study, marks),
        results.clock(study, marks),
        results.learning(study, marks),
        results.kinds(study, marks),
        results.phases(study, marks),
        conditions.senders(study, marks),
        conditions.partition(study, marks),
        conditions.every_run(study, marks),
        conditions.settings(study, marks),
    )
    return [section for section in every if section is not None]
