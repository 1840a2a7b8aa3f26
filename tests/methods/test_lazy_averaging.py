"""Lazy training that averages weights over an interval: against gradients per step, a plain loop, and the formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracle import dense_matrix, hidden
from rig import Rig, blocks, flat_vector, rig
from test_bytes import boundaries, layer_parameters, training_kinds

from farflung.errors import AllTrainersLostError, InputError
from farflung.nn import ModelConfig, build_encoder
from farflung.tasks.node_classification import NodeClassification


def averaged(**options: object) -> Rig:
    """12 steps for each of two layers, an average every 4."""
    options = {"parts": 3, "steps": 24, "interval": 4, "lazy": "weights", "dtype": "float64", "keep": "last", **options}
    return rig(blocks(), "lazy", **options).train()


def with_batches(run: Rig, batch: int) -> Rig:
    """The same run, not yet trained, in which a step sees `batch` rows of each trainer."""
    spec = run.team._spec
    sample = spec.sample.model_copy(update={"batch": batch})
    run.team._spec = spec.model_copy(update={"sample": sample})
    for trainer in run.team._trainers.values():
        trainer.spec = run.team._spec
    return run


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize(("encoder", "keep"), [("gcn", "last"), ("gcn", "best"), ("gat", "best")])
def test_one_trainer_that_sends_each_step_is_one_that_sends_gradients(
    encoder: str, keep: str, batch: int | None, clip: float | None
) -> None:
    """Dropout and batches are drawn alike, and whose Adam it is makes no difference: equal to the bit."""
    options = {
        "parts": 1,
        "steps": 24,
        "dropout": 0.4,
        "dtype": "float64",
        "keep": keep,
        "lr": 0.05,
        "encoder": encoder,
    }
    runs = []
    for lazy in ("weights", "gradients"):
        run = rig(blocks(), "lazy", interval=1, lazy=lazy, **options)
        if batch is not None:
            with_batches(run, batch)
        clipped(run, clip)
        runs.append(run.train())
    one, other = runs
    assert np.array_equal(one.vector(keep), other.vector(keep))
    assert [r.val for r in one.history] == [r.val for r in other.history]
    assert [r.best for r in one.history] == [r.best for r in other.history]
    assert np.allclose([r.loss for r in one.history], [r.loss for r in other.history], rtol=1e-12, atol=0)
    free = rig(blocks(), "lazy", **options).train()
    assert np.array_equal(free.vector(keep), one.vector(keep)) == (batch is None and clip is None)


def clipped(run: Rig, clip: float | None) -> None:
    """Limit the norm of all gradients, whoever steps."""
    optim = run.setting.optim.model_copy(update={"clip": clip})
    object.__setattr__(run.setting, "optim", optim)
    run.team._spec = run.team._spec.model_copy(update={"optim": optim})
    for trainer in run.team._trainers.values():
        trainer.spec = run.team._spec


@pytest.mark.parametrize("aggregation", ["mean", "examples"])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_it_is_the_plain_loop(encoder: str, aggregation: str) -> None:
    """Each trainer alone on its own rows of the frozen inputs of the whole graph; then a mean."""
    graph = blocks()
    assignment = np.minimum(np.arange(240) // 30, 2)
    run = averaged(encoder=encoder, aggregation=aggregation, assignment=assignment, steps=22, weight_decay=0.01)
    model = build_encoder(
        ModelConfig(encoder=encoder, layers=2, hidden=16, dropout=0.0),  # type: ignore[arg-type]
        graph.num_features,
        graph.num_classes,
        True,
        0,
        torch.float64,
    )
    matrix = dense_matrix(encoder, graph, assignment)
    rows = [np.flatnonzero(graph.split.train & (assignment == k)) for k in range(3)]
    n = [len(r) for r in rows]
    assert len(set(n)) > 1
    shares = torch.tensor([1.0] * 3 if aggregation == "mean" else n, dtype=torch.float64)
    h, losses = torch.from_numpy(graph.x.astype(np.float64)), []
    for number, layer in enumerate(model.layers):
        last = number == 1
        adams: list[dict[str, object]] = [{}, {}, {}]
        for steps in (4, 4, 3):
            start = [p.detach().clone() for p in layer.parameters()]
            found, last_losses = [], []
            for k in range(3):
                for p, value in zip(layer.parameters(), start, strict=True):
                    p.data.copy_(value)
                adam = torch.optim.Adam(layer.parameters(), lr=0.01, weight_decay=0.01)
                if adams[k]:
                    adam.load_state_dict(adams[k])
                for _ in range(steps):
                    adam.zero_grad()
                    out = hidden(layer, layer.conv, h, matrix, last)
                    out = out if last else layer.head(out)
                    loss = F.cross_entropy(out[rows[k]], torch.from_numpy(graph.y[rows[k]]))
                    loss.backward()
                    adam.step()
                adams[k] = adam.state_dict()
                last_losses.append(loss.item())
                found.append([p.detach().clone() for p in layer.parameters()])
            for i, p in enumerate(layer.parameters()):
                p.data = sum(found[k][i] * shares[k] for k in range(3)) / shares.sum()
            losses.append(sum(v * m for v, m in zip(last_losses, n, strict=True)) / sum(n))
        if not last:
            h = hidden(layer, layer.conv, h, matrix, last).detach()
    assert np.allclose([record.loss for record in run.history], losses, rtol=0, atol=1e-9)
    assert np.abs(run.vector() - flat_vector(model.state_dict())).max() <= 1e-9


def test_decay_of_the_first_layer_alone() -> None:
    """The second layer begins with the same embeddings as under the full penalty, and goes on without it."""
    options = {"parts": 1, "interval": 4, "steps": 24, "lazy": "weights", "dtype": "float64", "keep": "last"}
    both, first, none = (
        rig(blocks(), "lazy", weight_decay=amount, decay=which, **options).train().vector()  # type: ignore[arg-type]
        for amount, which in ((0.5, "all"), (0.5, "first"), (0.0, "all"))
    )
    size = 10 * 16 + 16 + 2 * 16 + 16 * 3 + 3
    assert np.array_equal(first[:size], both[:size]) and not np.array_equal(first[:size], none[:size])
    assert not np.array_equal(first[size:], both[size:])


def test_dropout_is_fresh_in_each_step_of_each_trainer() -> None:
    run = rig(blocks(), "lazy", parts=2, steps=16, interval=4, dropout=0.4, lazy="weights")
    keys: list[int] = []
    for trainer in run.team._trainers.values():
        for layer in trainer.model.layers:

            def predict(gathered, key=None, layer=layer):  # type: ignore[no-untyped-def]
                keys.extend([] if key is None else [key])
                return type(layer).predict(layer, gathered, key)

            layer.predict = predict
    run.train()
    assert len(keys) == len(set(keys)) == 2 * 16


@pytest.mark.parametrize(("interval", "rounds"), [(1, [12, 11]), (4, [3, 3]), (5, [3, 3]), (11, [2, 1]), (50, [1, 1])])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_bytes(encoder: str, interval: int, rounds: list[int]) -> None:
    """8 W sum_l ceil(T_l / s) P_l for s steps per interval, and the exchanges as ever."""
    graph, W = blocks(), 3
    run = averaged(encoder=encoder, interval=interval, hidden=8, steps=23, dtype="float32")
    b = sum(len(nodes) for nodes in boundaries(graph, run.partition.assignment).values())
    widths = [graph.num_features, 8, graph.num_classes]
    P = layer_parameters(encoder, widths, graph.num_classes)
    assert [math.ceil(T / interval) for T in (12, 11)] == rounds
    assert training_kinds(run) == {
        "features": 4 * b * widths[0],
        "embeddings": 4 * b * 8,
        "weights": 8 * W * sum(r * p for r, p in zip(rounds, P, strict=True)),
    }
    assert run.ledger.total("evaluation") == 4 * W * sum(P)
    assert len(run.history) == sum(rounds)
    assert [expected[2] for expected in run.diary.expected] == [sum(rounds)] * sum(rounds)


def test_intervals_are_cut_where_a_layer_ends() -> None:
    run = averaged(steps=11, interval=4)
    assert [(record.phase, record.steps[0]) for record in run.history] == [
        ("layer0", 4),
        ("layer0", 2),
        ("layer1", 4),
        ("layer1", 1),
    ]
    assert run.team.now() == 11 / 8


def test_fewer_steps_than_layers() -> None:
    run = averaged(steps=1, layers=3)
    assert [(record.phase, dict(record.steps)) for record in run.history] == [("layer0", dict.fromkeys(range(3), 1))]


def test_intervals_in_seconds() -> None:
    """A step takes 1/8 s; each of two layers has 2.5 s, cut at its end."""
    run = averaged(interval="1s", time_limit="5s", steps=1, faults="slow:1@0=2x")
    assert [(record.phase, dict(record.steps)) for record in run.history] == [
        (phase, {0: n, 1: n // 2, 2: n}) for phase in ("layer0", "layer1") for n in (8, 8, 4)
    ]
    assert run.team.now() == 5.0
    assert [expected[2:] for expected in run.diary.expected] == [(None, 1.0), (None, 1.0), (None, 0.5)] * 2


def test_each_layer_has_a_round_whatever_the_time() -> None:
    run = averaged(interval="1s", time_limit="0.001s", layers=3)
    assert [record.phase for record in run.history] == ["layer0", "layer1", "layer2"]
    assert all(set(record.steps.values()) == {1} for record in run.history)


def test_an_interval_in_seconds_wants_a_time_limit() -> None:
    with pytest.raises(InputError, match=r"^[^\n]*2s[^\n]*time limit[^\n]*$"):
        averaged(interval="2s")


@pytest.mark.parametrize("options", [{}, {"interval": "1s", "time_limit": "3s"}, {"faults": "kill:1@1-2, nan:0@2"}])
@pytest.mark.parametrize("batch", [None, 5])
def test_one_seed_gives_the_same_bits(options: dict[str, object], batch: int | None) -> None:
    def once(seed: int) -> Rig:
        settings: dict[str, object] = {"steps": 24, "interval": 4, "lazy": "weights", "dropout": 0.4, **options}
        run = rig(blocks(), "lazy", parts=3, seed=seed, **settings)  # type: ignore[arg-type]
        return (run if batch is None else with_batches(run, batch)).train()

    one, same, other = once(3), once(3), once(4)
    for keep in ("last", "best"):
        assert one.vector(keep).tobytes() == same.vector(keep).tobytes()
    assert one.history == same.history and one.ledger == same.ledger and one.team.now() == same.team.now()
    assert not np.array_equal(one.vector(), other.vector())


@pytest.mark.parametrize("aggregation", ["mean", "examples", "median", "trimmed-mean", "nesterov"])
def test_every_aggregation_learns(aggregation: str) -> None:
    run = averaged(aggregation=aggregation, steps=80, keep="best", lr=0.02)
    assert run.keeper.best_score is not None and run.keeper.best_score > 0.7


def test_batches_of_all_rows_are_all_rows() -> None:
    whole = averaged()
    huge = with_batches(rig(blocks(), "lazy", steps=24, interval=4, lazy="weights", dtype="float64", keep="last"), 240)
    assert np.array_equal(huge.train().vector(), whole.vector())


class Watched(NodeClassification):
    """Notes which training rows it sees, and the mean loss over them."""

    def watch(self, run: Rig, k: int) -> list[tuple[list[int], float]]:
        trainer = run.team._trainers[k]
        labels, seen = trainer.train_targets, []
        trainer.train_targets = torch.arange(len(labels))
        trainer.task = self

        def loss(logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            found = F.cross_entropy(logits, labels[rows])
            seen.append((rows.tolist(), found.item()))
            return found

        object.__setattr__(self, "loss", loss)
        return seen


@pytest.mark.parametrize("lazy", ["weights", "gradients"])
def test_batches_are_drawn_anew_from_the_training_rows_without_repeats(lazy: str) -> None:
    run = with_batches(rig(blocks(), "lazy", parts=2, steps=8, interval=2, lazy=lazy), 5)
    seen = [Watched(3).watch(run, k) for k in range(2)]
    run.train()
    for k in range(2):
        rows = [tuple(rows) for rows, _ in seen[k]]
        assert len(rows) == len(set(rows)) == 8
        assert all(len(set(r)) == 5 and min(r) >= 0 and max(r) < len(run.team._trainers[k].rows["train"]) for r in rows)
    assert [rows for rows, _ in seen[0]] != [rows for rows, _ in seen[1]]


def test_gradients_of_batches_count_by_the_share_of_all_rows() -> None:
    """The loss whose gradient is sent is the batch's mean times n_k / n."""
    assignment = np.minimum(np.arange(240) // 60, 1)
    run = with_batches(rig(blocks(), "lazy", assignment=assignment, parts=2, steps=2, layers=1, dtype="float64"), 5)
    seen = [Watched(3).watch(run, k) for k in range(2)]
    run.train()
    n = [len(trainer.rows["train"]) for trainer in run.team._trainers.values()]
    assert n[0] != n[1]
    for t, record in enumerate(run.history):
        means = [seen[k][t][1] for k in range(2)]
        assert record.loss == pytest.approx((n[0] * means[0] + n[1] * means[1]) / sum(n), rel=1e-12)


def whole(run: Rig, rounds: int) -> None:
    """Finite weights, and as many rounds as there should be."""
    assert np.isfinite(run.vector("last")).all() and np.isfinite(run.vector("best")).all()
    assert len(run.history) == rounds
    assert all(record.loss is None or math.isfinite(record.loss) for record in run.history)


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize(
    ("faults", "gone"),
    [
        ("kill:1@0", {0, 1, 2, 3, 4, 5}),
        ("kill:1@2", {2, 3, 4, 5}),
        ("kill:1@1-2", {1, 2}),
        ("kill:1@3-4", {3, 4}),
        ("kill:1@4-5", {4, 5}),
        ("delay:1@1=100s", {1}),
        ("delay:1@3-5=inf", {3, 4}),
        ("nan:1@1,nan:1@4", {1, 4}),
    ],
)
def test_failures_are_named_and_weights_stay_finite(faults: str, gone: set[int], keep: str) -> None:
    run = averaged(faults=faults, deadline="50s", keep=keep)
    whole(run, 6)
    assert {record.round for record in run.history if 1 not in record.steps} == gone
    assert all(set(record.absent) == {1} for record in run.history if record.round in gone)
    assert all(set(record.steps) >= {0, 2} for record in run.history)


def test_what_failures_are_called() -> None:
    run = averaged(faults="kill:1@1-2,nan:2@1,delay:0@4=100s", deadline="50s")
    assert run.history[1].absent.keys() == {1, 2} and "killed" in run.history[1].absent[1]
    assert run.history[1].absent[2] == "refused: its weights are not finite"
    assert run.history[2].absent == {1: "came back, catching up"}
    assert "late" in run.history[4].absent[0]


class NoLoss(NodeClassification):
    """Its loss is not a number, five times from `asked` = 0 on."""

    asked: float = 0

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        NoLoss.asked += 1
        return super().loss(logits, targets) * (float("nan") if NoLoss.asked <= 5 else 1.0)


def test_an_aggregation_goes_on_with_those_present() -> None:
    """Where trainer 1 is refused each time: the mean of the other two, as if it had no labels."""
    run = rig(blocks(), "lazy", layers=1, steps=12, interval=4, lazy="weights", dtype="float64", keep="last")
    NoLoss.asked = -math.inf
    run.team._trainers[1].task = NoLoss(3)
    run.train()
    graph = blocks()
    split = graph.split
    train = split.train & (run.partition.assignment != 1)
    other = rig(
        graph.with_(split=type(split)(train, split.val, split.test)),
        "lazy",
        assignment=run.partition.assignment,
        layers=1,
        steps=12,
        interval=4,
        lazy="weights",
        dtype="float64",
        keep="last",
    ).train()
    assert np.array_equal(run.vector(), other.vector())


def test_a_loss_that_is_not_a_number_ends_the_interval_and_is_got_over() -> None:
    """The trainer's Adam is spoilt with it: it begins with a fresh one."""
    run = rig(blocks(), "lazy", steps=60, interval=4, lazy="weights", keep="last")
    NoLoss.asked = 0
    run.team._trainers[1].task = NoLoss(3)
    run.train()
    whole(run, 16)
    for record in run.history[:5]:
        assert record.absent == {1: "refused: its loss is not finite"} and record.steps == {0: 4, 2: 4}
    assert all(record.absent == {} and record.steps[1] > 0 for record in run.history[5:])


def test_trainers_without_labels_weigh_nothing() -> None:
    graph = blocks()
    assignment = np.where(graph.split.train, 0, 1 + np.arange(240) % 2)
    run = averaged(assignment=assignment, aggregation="examples")
    assert [dict(record.steps) for record in run.history] == [{0: 4, 1: 0, 2: 0}] * 6
    assert np.array_equal(run.vector(), averaged(assignment=assignment, aggregation="median").vector())


def test_when_all_die_the_run_ends_at_once() -> None:
    with pytest.raises(AllTrainersLostError, match="train, round 2"):
        averaged(faults=", ".join(f"kill:{k}@2" for k in range(3)))


@pytest.mark.parametrize("faults", ["", "kill:1@0-1", "kill:1@1-2", "kill:1@2-3", "delay:1@2=100s"])
def test_all_embed_with_the_chosen_weights(faults: str) -> None:
    """A trainer's own weights after its steps are not those of the round: the ones sent count."""
    for lr in (0.01, 1.0):
        for keep in ("best", "last"):
            run = averaged(faults=faults, keep=keep, lr=lr, deadline="50s", dropout=0.4)
            model = run.setting.model
            model.load_state_dict(run.keeper.chosen(keep))
            layer, x = model.layers[0], torch.from_numpy(run.graph.x.astype(np.float64))
            matrix = dense_matrix("gcn", run.graph, run.partition.assignment)
            central = hidden(layer, layer.conv, x, matrix, False).detach().numpy()
            for shard, held in zip(run.partition.shards, run.reveal(weights=np.zeros(51)), strict=True):
                assert np.abs(held.arrays["embeddings/1"] - central[shard.inner]).max() <= 1e-9


def test_best_rounds_are_scored_where_they_are() -> None:
    """The score of a round is that of the weights it led to, on the whole graph."""
    run = rig(blocks(), "lazy", steps=24, interval=4, lazy="weights", layers=1, dtype="float64", lr=0.05)
    kept: list[dict[str, float | None]] = []
    run.diary.after = lambda record: kept.append(dict(run.evaluator.validate(run.vector("last"))))
    run.train()
    assert len(kept) == 6
    for record, val in zip(run.history, kept, strict=True):
        assert record.val["accuracy"] == pytest.approx(val["accuracy"])
