"""`farflung replay`: a finished run's time on other links."""

import json

import pytest

from command_line import complaint
from farflung import train
from farflung.cli import main
from farflung.run.folder import TIMELINE
from farflung.run.replay import Recorded
from farflung.team import PROFILES

SBM = "sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"


@pytest.fixture(scope="module", params=["retexo", "random-tma", "synchronous", "centralised"])
def run(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("replay") / "run"
    link = {} if request.param == "centralised" else {"link": "wan"}
    return train(SBM, method=request.param, hidden=8, steps=20, threads=1, out=out, **link)


def test_the_run_s_own_link_gives_its_own_clock(run):
    recorded = Recorded.open(run.folder)
    told = recorded.replay(PROFILES["wan"])
    assert told.seconds == [record.seconds for record in run.history]
    assert told.total == run.metrics["seconds"]["virtual"]


def test_slower_links_take_longer_and_the_score_is_reached_where_it_was(run, capsys):
    assert main(["replay", str(run.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_link = {row["link"]: row for row in found["links"]}
    assert list(by_link) == list(PROFILES)
    if run.config.method != "centralised":
        assert by_link["none"]["seconds"] < by_link["datacentre"]["seconds"] < by_link["wan"]["seconds"]
        assert by_link["datacentre"]["seconds"] < by_link["proximity"]["seconds"]
    scores = [r.val["accuracy"] for r in run.history if r.phase in ("train", "layer1")]
    best = max(scores)
    assert found["best"] == best and found["score"] == pytest.approx(0.99 * best)
    offset = len(run.history) - len(scores)
    first = next(i for i, score in enumerate(scores) if score >= 0.99 * best) + offset
    for row in by_link.values():
        assert row["round"] == run.history[first].round and 0 < row["seconds_to_score"] <= row["seconds"]


def test_a_score_that_was_never_reached(run, capsys):
    assert main(["replay", str(run.folder), "--to", "1.5", "--link", "wan", "--link", "edge"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith(("wan", "edge"))]
    assert [line[0] for line in lines] == ["wan", "edge"]
    assert all(line[-2:] == ["-", "-"] for line in lines)


def test_what_cannot_be_told(run, tmp_path, capsys):
    assert "no run folder" in complaint(capsys, "replay", str(tmp_path))
    assert "no link profile" in complaint(capsys, "replay", str(run.folder), "--link", "string")
    (run.folder / TIMELINE).rename(tmp_path / "kept")
    assert "train it again" in complaint(capsys, "replay", str(run.folder))
    (tmp_path / "kept").rename(run.folder / TIMELINE)
