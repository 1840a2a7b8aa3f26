"""Grouping, sums over seeds, and curves, against naive loops."""

import statistics

import numpy as np
import pytest
from report_records import made

from farflung.report.digest import POINTS, Failure, Spread, absences, studies


def test_seeds_of_one_method_are_summed_up():
    (study,) = studies([made(seed=seed) for seed in (2, 0, 1)])
    (method,) = study.methods
    assert [run.seed for run in method.runs] == [0, 1, 2]
    tests = [run.metrics["test"]["accuracy"] for run in method.runs]
    assert method.test().mean == pytest.approx(statistics.fmean(tests))
    assert method.test().sd == pytest.approx(statistics.stdev(tests))
    assert Spread((0.5, None)).mean == 0.5
    assert Spread((0.5, None)).sd is None
    assert Spread((None,)).mean is None


def test_time_and_bytes_to_a_share_of_the_own_best_equal_a_naive_search():
    (study,) = studies([made(seed=0, scale=3), made(seed=1, scale=3)])
    (method,) = study.methods
    seconds, sent = [], []
    for run in method.runs:
        scores = [record["val"]["accuracy"] for record in run.history]
        for place, score in enumerate(scores):
            if score >= 0.99 * max(scores):
                seconds.append(run.seconds["wan"][place])
                sent.append(run.training_bytes[place])
                break
    assert seconds[0] != seconds[1]
    assert method.seconds_to(0.99, "wan") == pytest.approx(sum(seconds) / 2)
    assert method.bytes_to(0.99) == sum(sent) / 2
    assert method.total_seconds("wan") == method.runs[0].seconds["wan"][-1]
    assert method.seconds_to(0.99, "nosuch") is None


def test_the_curve_of_equal_histories_is_their_mean_row_by_row():
    (study,) = studies([made(seed=0), made(seed=1)])
    (method,) = study.methods
    curve = method.curve("val")
    one, two = ([r["val"]["accuracy"] for r in run.history] for run in method.runs)
    assert curve.columns["val"] == pytest.approx([(a + b) / 2 for a, b in zip(one, two, strict=True)])
    assert curve.columns["val_sd"] == pytest.approx([statistics.stdev(pair) for pair in zip(one, two, strict=True)])
    assert curve.columns["training_bytes"].tolist() == method.runs[0].training_bytes
    assert curve.columns["seconds/wan"] == pytest.approx(method.runs[0].seconds["wan"])
    assert curve.columns["steps"].tolist() == [10 * (k + 1) for k in range(40)]
    assert (curve.phases[0], curve.rounds[-1]) == ("train", 40)


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    (study,) = studies([made(rounds=1234)])
    curve = study.methods[0].curve("val")
    assert len(curve) == POINTS
    assert curve.columns["steps"][[0, -1]].tolist() == [10, 12340]
    assert (np.diff(curve.columns["steps"]) > 0).all()


def test_rounds_without_a_score_and_seeds_of_unequal_length_have_a_curve_too():
    long, short = made(seed=0, rounds=40), made(seed=1, rounds=21)
    for record in long.history[::2]:
        record["val"] = None
    (study,) = studies([long, short])
    curve = study.methods[0].curve("val")
    assert len(curve) == 21
    assert np.isfinite(curve.columns["val"]).all()
    last = [run.history[-1]["val"]["accuracy"] for run in (long, short)]
    assert curve.columns["val"][-1] == pytest.approx(sum(last) / 2)
    for record in long.history + short.history:
        record["val"] = None
    assert len(study.methods[0].curve("val")) == 0


def test_one_label_with_two_settings_is_two_methods_and_says_how_they_differ():
    (study,) = studies([made(hidden="16"), made(hidden="32"), made(seed=1, hidden="32")])
    assert [(method.name, len(method.runs)) for method in study.methods] == [
        ("super-tma (model.hidden=16)", 1),
        ("super-tma (model.hidden=32)", 2),
    ]


def test_a_run_given_twice_counts_once():
    (study,) = studies([made(), made()])
    assert len(study.records) == 1
    assert "given twice" in study.notes[0]


def test_graphs_do_not_mix_and_failures_go_to_their_own():
    failed = [Failure("retexo", 0, "broken", "pubmed"), Failure("retexo", 1, "lost", "elsewhere")]
    one, two = studies([made(), made(graph="pubmed"), made(seed=1)], failed)
    assert (one.graph, len(one.records)) == ("cora", 2)
    assert (two.graph, len(two.records)) == ("pubmed", 1)
    assert [failure.error for failure in two.failed] == ["broken"]
    assert [failure.error for failure in one.failed] == ["lost"]


def test_absences_that_follow_each_other_are_one():
    gone = {k: {"1": f"dead: killed in or before round {k}"} for k in range(3, 9)}
    gone |= {4: {**gone[4], "2": "late"}, 20: {"1": "late"}}
    (study,) = studies([made(absent=gone)])
    assert [(a.trainer, a.why, a.first, a.last) for a in absences(study.methods[0])] == [
        ("1", "dead: killed in or before round 3", 4, 9),
        ("2", "late", 5, 5),
        ("1", "late", 21, 21),
    ]
