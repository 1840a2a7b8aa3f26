"""The charts of a report, each an `<svg>` element (see `report.svg`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farflung.report.digest import Curve, Method
from farflung.report.svg import HEIGHT, PAPER, SERIES, WIDTH, draw, series
from farflung.report.units import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPXphd<>"
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
_BANDS = 6
"""Most methods for which the spread over seeds is drawn as a band: more would hide each other."""


def style(place: int) -> dict[str, Any]:
    """Line of the `place`-th method: a colour, a line style that changes when colours run out, a marker."""
    return {
        "color": series(place),
        "linestyle": _LINES[place // SERIES % len(_LINES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.6,
    }


def swatch(name: str, place: int) -> str:
    """A method's line and marker, for legends and tables."""

    def paint(figure: Figure) -> None:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.plot([0, 0.5, 1], [0, 0, 0], markevery=[1], **style(place))
        axes.set_xlim(0.02, 0.98)

    return draw(name, paint, width=0.5, height=0.2)


def tradeoff(name: str, methods: Sequence[Method]) -> str:
    """Test metric against training bytes (log): one marker per method, bars of one standard deviation."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="training bytes", ylabel=f"test {methods[0].metric}, %")
        sent = [method for method in methods if method.training_bytes() > 0]
        for method in methods:
            test = method.test()
            if test.mean is None:
                continue
            if method in sent:
                spread = None if test.sd is None else [100 * test.sd]
                look = {**style(method.place), "linestyle": "none", "markersize": 8}
                axes.errorbar([method.training_bytes()], [100 * test.mean], yerr=spread, capsize=3, **look)
            else:
                _level(axes, method, 100 * test.mean)
        if sent:
            _log(axes, size, [method.training_bytes() for method in sent], decades)
        axes.margins(0.12)

    return draw(name, paint)


def by_seed(name: str, methods: Sequence[Method]) -> str:
    """Test metric per method: a small dot per seed, a big marker for the mean."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel=f"test {methods[0].metric}, %")
        for row, method in enumerate(methods):
            test = method.test()
            axes.plot(
                [100 * v for v in test.known], [row] * len(test.known), "o", color=series(method.place), alpha=0.45
            )
            if test.mean is not None:
                axes.plot([100 * test.mean], [row], **{**style(method.place), "markersize": 9})
        _rows(axes, [method.name for method in methods])
        axes.margins(x=0.08)

    return draw(name, paint, height=_rows_height(len(methods)))


@dataclass(frozen=True)
class Scale:
    """A logarithmic axis of growing numbers: column of the curves, label, how numbers read, where ticks may be."""

    column: str
    label: str
    text: Callable[[float], str]
    ticks: Callable[[float, float], list[float]]


def against(name: str, methods: Sequence[Method], scale: Scale, *, close: bool = False) -> str:
    """Validation metric against bytes or time (log). Methods for which it stays 0 are levels.

    `close`: only the upper end, where the methods part.
    """

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel=scale.label, ylabel=f"val {methods[0].metric}, %")
        reached: list[float] = []
        tops: list[float] = []
        for method in methods:
            curve = method.curve("val")
            if not len(curve):
                continue
            x = curve.columns[scale.column]
            tops.append(100 * float(np.nanmax(curve.columns["val"])))
            if np.nanmax(x, initial=0) > 0:
                _line(axes, method, x, curve, "val", 100, banded=len(methods) <= _BANDS)
                reached.extend(x[np.isfinite(x) & (x > 0)])
            elif scale.column == "training_bytes":
                _level(axes, method, tops[-1])
        if reached:
            _log(axes, scale.text, reached, scale.ticks)
        if close and tops:
            room = max(0.5, 0.06 * max(tops), 1.2 * (max(tops) - min(tops)))
            axes.set_ylim(max(tops) - room, max(tops) + 0.08 * room)

    return draw(name, paint)


def learning(name: str, methods: Sequence[Method], of: str) -> str:
    """Validation metric or loss against optimiser steps."""

    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    def paint(figure: Figure) -> None:
        label = f"val {methods[0].metric}, %" if of == "val" else "training loss"
        axes = figure.add_subplot(xlabel="optimiser steps per trainer", ylabel=label)
        for method in methods:
            curve = method.curve(of)
            if len(curve):
                scale = 100 if of == "val" else 1
                _line(axes, method, curve.columns["steps"], curve, of, scale, banded=len(methods) <= _BANDS)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        losses = [v for line in axes.lines for v in np.asarray(line.get_ydata(), dtype=float) if v > 0]
        if of == "loss" and losses and max(losses) > 30 * min(losses):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(FixedLocator(decades(min(losses), max(losses))))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_locator(NullLocator())

    return draw(name, paint)


def stacked(name: str, rows: Mapping[str, Mapping[str, float]], places: Mapping[str, int], *, share: bool) -> str:
    """Bytes of each row by its parts, as bars: in all, or (`share`) in per cent of the row's own total.

    `places`: colour of each part. The total stands behind the bar.
    """

    from matplotlib.ticker import MaxNLocator

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="per cent of its own bytes" if share else "bytes sent")
        for row, parts in enumerate(rows.values()):
            total = sum(parts.values())
            left = 0.0
            for part, place in places.items():
                width = parts.get(part, 0.0) * (100 / total if share and total else 1)
                if width:
                    hatch = ("", "////", "....")[place // SERIES % 3]
                    axes.barh(row, width, 0.66, left, color=series(place), edgecolor=PAPER, linewidth=0.5, hatch=hatch)
                left += width
            axes.annotate(size(total), (left, row), (4, 0), textcoords="offset points", va="center", fontsize=9.5)
        _rows(axes, list(rows))
        if share:
            axes.set_xlim(0, 128)
            axes.set_xticks([0, 25, 50, 75, 100])
        else:
            axes.margins(x=0.22)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_formatter(lambda value, _: size(value))

    return draw(name, paint, height=_rows_height(len(rows)))


def patch(name: str, place: int) -> str:
    """A part's colour and hatch, for legends."""

    def paint(figure: Figure) -> None:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.barh(0, 1, 1, color=series(place), edgecolor=PAPER, hatch=("", "////", "....")[place // SERIES % 3])
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.5, 0.5)

    return draw(name, paint, width=0.25, height=0.18)


def heat(name: str, title: str, endpoints: Sequence[str], sent: np.ndarray) -> str:
    """Who sent how much to whom: rows send, columns receive, [n, n] bytes, log shades.

    A fixed blue whose opacity grows with the bytes reads on light and dark pages alike.
    """

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(title=title, xlabel="received by", ylabel="sent by")
        known = sent[sent > 0]
        high = math.log10(max(known.max(initial=0), 1))
        low = min(math.log10(max(known.min(initial=math.inf), 1)), high - 1) if len(known) else high - 1
        shade = np.where(sent > 0, 0.15 + 0.6 * (np.log10(np.maximum(sent, 1)) - low) / (high - low), 0)
        colours = np.zeros((*sent.shape, 4))
        colours[..., :3] = 0.16, 0.5, 0.85
        colours[..., 3] = np.clip(shade, 0, 1)
        axes.imshow(colours, interpolation="none")
        axes.grid(False)
        edges = np.arange(1, len(endpoints)) - 0.5
        axes.hlines(edges, -0.5, len(endpoints) - 0.5, color=PAPER, linewidth=1.2)
        axes.vlines(edges, -0.5, len(endpoints) - 0.5, color=PAPER, linewidth=1.2)
        axes.set(xlim=(-0.5, len(endpoints) - 0.5), ylim=(len(endpoints) - 0.5, -0.5))
        every = max(1, -(-len(endpoints) // 12))
        shown = [place for place in range(len(endpoints)) if place < 2 or (place - 2) % every == 0]
        axes.set_xticks(shown, [endpoints[place] for place in shown], rotation=90, fontsize=9.5)
        axes.set_yticks(shown, [endpoints[place] for place in shown], fontsize=9.5)
        if len(endpoints) <= 5:
            for (row, column), value in np.ndenumerate(sent):
                if value:
                    axes.annotate(size(value), (column, row), ha="center", va="center", fontsize=9)

    return draw(name, paint, height=WIDTH * 0.92)


def parts(name: str, nodes: Sequence[int], halo: Sequence[int]) -> str:
    """Inner nodes and halo of each part, stacked."""

    from matplotlib.ticker import MaxNLocator

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot(xlabel="part", ylabel="nodes")
        place = np.arange(len(nodes))
        axes.bar(place, nodes, 0.8, color=series(0), label="inner nodes")
        axes.bar(place, halo, 0.8, np.asarray(nodes), color=series(4), alpha=0.75, label="halo nodes")
        axes.grid(False, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=2, frameon=False)

    return draw(name, paint, height=HEIGHT * 0.9)


def _line(axes: Axes, method: Method, x: np.ndarray, curve: Curve, of: str, scale: float, *, banded: bool) -> None:
    y, sd = scale * curve.columns[of], scale * curve.columns[f"{of}_sd"]
    shown = np.isfinite(x) & np.isfinite(y)
    if not shown.any():
        return
    x, y, sd = (_apart(values[shown], curve, shown) for values in (x, y, sd))
    if banded and len(method.runs) > 1:
        axes.fill_between(x, y - sd, y + sd, color=series(method.place), alpha=0.16, linewidth=0)
    axes.plot(x, y, markevery=_marked(len(x), method.place), **style(method.place))


def _apart(values: np.ndarray, curve: Curve, shown: np.ndarray) -> np.ndarray:
    """`values` of the points shown, with a gap between two phases: layers do not go on from each other's score."""
    phases = [phase for phase, there in zip(curve.phases, shown, strict=True) if there]
    changes = [place for place in range(1, len(phases)) if phases[place] != phases[place - 1]]
    return np.insert(values, changes, np.nan)


def _marked(count: int, place: int) -> list[int]:
    """About six markers per line, shifted from method to method, the last point among them."""
    every = max(1, count // 6)
    return sorted({*range((place * every // 7) % every if every > 1 else 0, count, every), count - 1})


def _level(axes: Axes, method: Method, y: float) -> None:
    """A method that sends nothing has no place on a logarithmic axis: a level across the chart."""
    axes.axhline(y, color=series(method.place), linestyle=(0, (4, 3)), linewidth=1.4)
    place = 0.06 + 0.05 * (method.place % 4)
    axes.plot([place], [y], transform=axes.get_yaxis_transform(), **{**style(method.place), "linestyle": "none"})


def _log(
    axes: Axes, text: Callable[[float], str], values: Sequence[float], ticks: Callable[[float, float], list[float]]
) -> None:
    """A logarithmic x axis with few, readable labels."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axes.set_xscale("log")
    low, high = min(values), max(values)
    if high <= low:
        low, high = low / 2, high * 2
        axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(ticks(low, high)))
    axes.xaxis.set_major_formatter(lambda value, _: text(value))
    axes.xaxis.set_minor_locator(NullLocator())


def decades(low: float, high: float) -> list[float]:
    """At most five powers of ten from low to high; where these are too few, 1, 2 and 5 of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return _few(low, high, [10.0**p for p in powers], [m * 10.0**p for p in powers for m in (1, 2, 5)])


def clock_ticks(low: float, high: float) -> list[float]:
    """The same for seconds: from a minute on, minutes, hours and days."""
    powers = range(min(1, math.floor(math.log10(low))), 2)
    minute, hour, day = 60.0, 3600.0, 86400.0
    coarse = [*(10.0**p for p in powers), minute, 10 * minute, hour, 10 * hour, *(day * 10.0**p for p in range(6))]
    finer = [*(m * 10.0**p for p in powers for m in (1, 2, 5) if m * 10.0**p < minute)]
    finer += [m * minute for m in (1, 2, 5, 10, 20, 30)] + [m * hour for m in (1, 2, 5, 10)]
    return _few(low, high, coarse, [*finer, *(m * day * 10.0**p for p in range(6) for m in (1, 2, 5))])


def _few(low: float, high: float, coarse: Sequence[float], finer: Sequence[float], most: int = 5) -> list[float]:
    for ticks in (coarse, finer):
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 2:
            return inside[:: -(-len(inside) // most)]
    return [low, high]


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Names down the side, the first on top."""
    axes.set_yticks(range(len(names)), [_lines(name) for name in names], linespacing=1.0, fontsize=9.5)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _lines(name: str, most: int = 20) -> str:
    """A name on two lines where it is long: its options below, cut in the middle."""
    if len(name) <= most:
        return name
    at = next((place for place, sign in enumerate(name) if sign in "[("), 0)
    return "\n".join(_cut(part.strip(), most) for part in (name[:at], name[at:]) if part.strip())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most // 2 - 1] + "…" + text[-(most - most // 2) :]


def _rows_height(count: int) -> float:
    return max(1.5, 0.75 + 0.32 * count)
