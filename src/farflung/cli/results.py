"""What is done with a run folder: `farflung evaluate`, `replay`, `predict` and `embed`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli import options as o


def evaluate(
    run: o.RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Score the saved model on its graph: the same figures as in metrics.json."""
    from farflung.report.tables import console, metrics_table
    from farflung.run.saved import SavedRun

    scores = SavedRun.open(run).evaluate("test", "val")
    if as_json:
        print(json.dumps(scores, indent=2))
    else:
        console().print(metrics_table(scores))


def predict(
    run: o.RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file to write.")] = Path(
        "predictions.parquet"
    ),
    all_classes: Annotated[bool, typer.Option("--all-classes", help="Also a column p_CLASS for each class.")] = False,
) -> None:
    """Write id, label and probability of every node, by original id (multi-label: a column per class)."""
    from farflung.run.saved import SavedRun

    predictions = SavedRun.open(run).predict()
    predictions.save(out, all_classes=all_classes)
    print(f"{len(predictions.ids)} nodes written to {out}")


def embed(
    run: o.RunPath,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Parquet file to write.")] = Path(
        "embeddings.parquet"
    ),
) -> None:
    """Write id and embedding of every node, by original id: what classes or links are scored from."""
    from farflung.run.saved import SavedRun

    embeddings = SavedRun.open(run).embed()
    embeddings.save(out)
    print(f"{len(embeddings.ids)} nodes written to {out}")


def replay(
    run: o.RunPath,
    link: Annotated[
        list[str] | None,
        typer.Option("--link", metavar="PROFILE", help="Link to time the run on, may be repeated; default: all named."),
    ] = None,
    to: Annotated[
        float | None, typer.Option("--to", metavar="SCORE", help="Validation score to reach, such as 0.9.")
    ] = None,
    share: Annotated[
        float, typer.Option("--share", min=0, max=1, help="Without --to: share of the run's own best score.")
    ] = 0.99,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Time a finished run on other links, from what it sent and how long it worked. Nothing is trained again."""
    from farflung.report.tables import console, replay_table
    from farflung.run.replay import Recorded
    from farflung.team import PROFILES, parse_profile

    recorded = Recorded.open(run)
    best = recorded.best
    score = to if to is not None or best is None else share * best
    rows = [recorded.told(parse_profile(text), score) for text in link or PROFILES]
    if as_json:
        print(json.dumps({"metric": recorded.metric, "best": best, "score": score, "links": rows}, indent=2))
    else:
        console().print(replay_table(str(run), recorded.metric, score, rows))
