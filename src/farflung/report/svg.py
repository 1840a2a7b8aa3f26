"""Charts as SVG that lives inside a page: text stays text, colours are the page's CSS variables, ids are its own.

Colours are drawn as stand-ins (`ink`, `series(3)`, ...) and exchanged for variables afterwards, so that one drawing
serves light and dark pages. The same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#fe0100", "#fe0101", "#fe0102", "#fe0103"
"""Stand-ins for the colours of text and axes, of quieter text, of grid lines, and of the page behind."""
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
SERIES = 7
"""Colours that can be told apart, also by the colour-blind (see the style sheet); then line styles change."""
WIDTH, HEIGHT = 4.2, 3.1
"""Inches: narrow, so that text is readable where the page is as wide as a phone."""

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "image.composite_image": False,
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "hatch.color": PAPER,
}


def series(place: int) -> str:
    """Stand-in for the colour of the `place`-th of the things that a chart compares."""
    return f"#fe02{place % SERIES:02x}"


def draw(name: str, paint: Callable[[Figure], None], *, width: float = WIDTH, height: float = HEIGHT) -> str:
    """What `paint` puts on a figure of `width` x `height` inches, as an `<svg>` element.

    `name`: of the figure on its page, a prefix of the ids in it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_RC, "svg.hashsalt": name})
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        target = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(target, format="svg", metadata=nothing, transparent=True)
    return _for_page(target.getvalue(), name)


def _for_page(text: str, name: str) -> str:
    """matplotlib's file as an element of a page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|<metadata.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", lambda tag: _tidy(tag[0]), text)
    text = re.sub(r">\s+<", "><", text)
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    return f'<svg viewBox="{box[1]}" aria-hidden="true">' + text[text.index(">") + 1 :].strip()


def _tidy(tag: str) -> str:
    """One tag with the page's colours and font, and numbers no finer than can be seen."""
    tag = tag.replace("xlink:href", "href")
    if not tag.startswith("<image"):
        tag = re.sub(r"\s+", " ", tag)
        tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag)
        tag = re.sub(r"(\.\d*?)0+(?=[\s\")])", r"\1", tag)
        tag = re.sub(r"(\d)\.(?=[\s\")])", r"\1", tag)
        tag = re.sub(r" ?font-family: [^;]*;", "", tag)
        tag = tag.replace(" L ", "L").replace(" z ", "z").replace("M ", "M")
        tag = re.sub(r"rotate\(-?0 [^)]*\)", "", tag).replace(' transform=""', "")
    else:
        tag = tag.replace("\n", "")
    for stand_in, variable in _VARIABLES.items():
        tag = tag.replace(stand_in, variable)
    return re.sub(r"#fe02([0-9a-f]{2})", lambda found: f"var(--c{int(found[1], 16)})", tag)
