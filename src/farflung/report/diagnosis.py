"""The diagnosis of a partition, on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from farflung.report.tables import listing

_PER_PART = {
    "nodes": "nodes_per_part",
    "in-edges": "edges_per_part",
    "halo": "halo_per_part",
    "boundary rows": "boundary_per_part",
}
_SHOWN_PARTS = 32


def diagnosis_view(report: Mapping[str, Any]) -> Group:
    """Figures of the whole, a table by part, and warnings; `report` as `inspect_partition` gives it."""
    views: list[Any] = [_whole(report), _by_part(report)]
    views.extend(Text(f"note: {warning}", style="yellow") for warning in report["warnings"])
    return Group(*views)


def _whole(report: Mapping[str, Any]) -> Table:
    kept = _share(report["kept_share"])
    if report["kept_share_expected"] is not None:
        sd = "" if report["kept_share_sd"] is None else f" ± {100 * report['kept_share_sd']:.2f}"
        kept += f" (formula: {_share(report['kept_share_expected'])}{sd})"
    clusters = [] if report["clusters"] is None else [("super-nodes", f"{report['clusters']:,}")]
    rows = [
        ("nodes", f"{report['nodes']:,}"),
        ("directed edges", f"{report['edges']:,} ({report['loops']:,} loops; {report['pairs']:,} undirected pairs)"),
        ("balance, largest over mean", f"nodes {report['node_balance']:.3f}, edges {_number(report['edge_balance'])}"),
        *clusters,
        ("pairs kept inside parts", kept),
        ("halo nodes per node", f"{report['halo_ratio']:.3f}"),
        ("label divergence", _number(report["label_divergence"])),
        ("feature divergence", _number(report["feature_divergence"])),
        ("degree divergence", _number(report["degree_divergence"])),
        ("gradient bias", _relative(report["gradient_bias"], report["gradient_bias_relative"])),
        ("gradient spread", _relative(report["gradient_spread"], report["gradient_spread_relative"])),
    ]
    return listing(f"{report['graph']}: {report['parts']} parts, {report['by']}", ["", ""], rows)


def _by_part(report: Mapping[str, Any]) -> Table:
    masks: Mapping[str, Sequence[int]] = report["masks"] or {}
    columns = {**{title: report[key] for title, key in _PER_PART.items()}, **masks}
    names = report["part_names"] or [str(part) for part in range(report["parts"])]
    shown = min(report["parts"], _SHOWN_PARTS)
    rows = [[names[part], *(f"{values[part]:,}" for values in columns.values())] for part in range(shown)]
    if shown < report["parts"]:
        rows.append([f"… {report['parts'] - shown} more (--json has all)", *("" for _ in columns)])
    return listing("", ["part", *columns], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"


def _relative(value: float | None, relative: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" + ("" if relative is None else f" ({relative:.3f} of the gradient's norm)")
