"""What a report's page is made of: sections with charts and tables; and how numbers stand in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farflung.report import figures
from farflung.report.digest import Method, Spread, Study


@dataclass(frozen=True)
class Cell:
    """A field of a table; `mark` is a method's line and marker, SVG."""

    text: str
    mark: str = ""


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """Rows of texts or `Cell`s; the first `texts` columns are words, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    texts: int = 1
    open: bool = False
    """Whether it is shown at once; else behind its title."""


@dataclass(frozen=True)
class Chart:
    """A drawing with what it shows."""

    svg: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page. `legend`: mark and text of each entry."""

    key: str
    title: str
    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    legend: Sequence[Cell] = ()
    points: Sequence[str] = ()
    """Remarks, as a list."""


class Marks:
    """Draws each method's mark once for every place that shows it: ids on a page are unique."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._drawn = 0

    def name(self, of: str) -> str:
        """A name for a figure that no other has."""
        self._drawn += 1
        return f"{self._prefix}{of}{self._drawn}"

    def method(self, method: Method) -> Cell:
        """The method's name behind its mark."""
        return Cell(method.name, figures.swatch(self.name("m"), method.place))

    def part(self, text: str, place: int) -> Cell:
        """The name of a part of a bar behind its colour."""
        return Cell(text, figures.patch(self.name("k"), place))


def legend(study: Study, marks: Marks) -> list[Cell]:
    """All methods with their marks; none where there is only one."""
    return [marks.method(method) for method in study.methods] if len(study.methods) > 1 else []


def percent(spread: Spread) -> str:
    """`81.20 ± 0.40`, of shares; its spaces do not break."""
    if spread.mean is None:
        return "-"
    return f"{100 * spread.mean:.2f}" + ("" if spread.sd is None else f"\u00a0±\u00a0{100 * spread.sd:.2f}")


def times(most: float, own: float) -> str:
    """How many times fewer `own` is."""
    if not own:
        return "sends none" if most else "-"
    ratio = most / own
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.1f}x"


def known(value: float | None, text: Callable[[float], str]) -> str:
    """`text(value)`, or a dash."""
    return "-" if value is None or not np.isfinite(value) else text(float(value))


def number(value: float, form: str) -> str:
    """A number, or a dash where it is not known."""
    return form.format(value) if np.isfinite(value) else "-"


def means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Means by name over `rows`; what a row lacks is 0 there."""
    every = list(rows)
    names = dict.fromkeys(name for row in every for name in row)
    return {name: sum(row.get(name, 0) for row in every) / len(every) for name in names}
