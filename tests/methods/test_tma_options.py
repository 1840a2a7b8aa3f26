"""What TMA offers beyond a mean of weights: other aggregations, soup, moments, parts dealt anew, batches, clipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import blocks, rig

from farflung.methods.aggregate import mean_moments
from farflung.methods.tma_trainer import TMATrainer
from farflung.nn.optim import load_moments, pack_moments
from farflung.partition import setup_bytes
from farflung.tasks.batches import Batches


def test_batches_show_every_example_once_per_epoch() -> None:
    batches = Batches(4097, 1024, seed=3, part=1)
    assert batches.per_epoch == 5
    epochs = [np.concatenate([batches[5 * e + i] for i in range(5)]) for e in range(3)]
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(4097))
    assert [len(batches[i]) for i in range(5)] == [1024] * 4 + [1]
    assert not np.array_equal(epochs[0], epochs[1])
    again = Batches(4097, 1024, seed=3, part=1)
    assert np.array_equal(again[12], batches[12]), "a step's batch depends on what was asked for before it"
    assert not np.array_equal(Batches(4097, 1024, seed=3, part=2)[0], again[0])


@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat", "mlp"])
def test_one_batch_of_full_neighbourhoods_is_full_batch_training(encoder: str) -> None:
    options = {"parts": 3, "encoder": encoder, "dtype": "float64", "steps": 12, "interval": 4}
    full = rig(blocks(), "tma", **options).train()
    batch = rig(blocks(), "tma", sample={"batch": 10_000}, **options).train()
    assert np.allclose(full.vector(), batch.vector(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gat"])
def test_sampled_training_repeats_and_learns(encoder: str, replace: bool) -> None:
    options = {"encoder": encoder, "steps": 60, "interval": 20, "dropout": 0.2}
    sample = {"fanouts": "3,3", "batch": 16, "replace": replace}
    runs = [rig(blocks(), "tma", sample=sample, **options).train() for _ in range(2)]
    assert np.array_equal(runs[0].vector(), runs[1].vector())
    assert runs[0].history[-1].val["accuracy"] > 0.6, "three classes: 1/3 is chance"
    other = rig(blocks(), "tma", sample=sample, seed=1, **options).train()
    assert not np.array_equal(runs[0].vector(), other.vector())


def test_uneven_parts_make_their_own_steps() -> None:
    """A part of 9 training nodes and one of 70, batches of 8: nobody waits for anybody, every step counts."""
    graph = blocks()
    assignment = (np.arange(graph.num_nodes) >= 25).astype(np.int32)
    one = rig(graph, "tma", parts=2, assignment=assignment, steps=20, interval=7, sample={"batch": 8}).train()
    assert [dict(record.steps) for record in one.history] == [{0: 7, 1: 7}, {0: 7, 1: 7}, {0: 6, 1: 6}]
    assert np.isfinite(one.vector()).all()


@pytest.mark.parametrize("aggregation", ["examples", "median", "trimmed-mean", "nesterov"])
def test_aggregations_train(aggregation: str) -> None:
    one = rig(blocks(), "tma", parts=4, steps=40, interval=5, aggregation=aggregation, outer_lr=0.7).train()
    plain = rig(blocks(), "tma", parts=4, steps=40, interval=5).train()
    assert not np.array_equal(one.vector(), plain.vector())
    assert one.history[-1].val["accuracy"] > 0.6
    assert one.ledger.training() == plain.ledger.training(), "every aggregation sends the same"


def test_a_robust_aggregation_survives_a_trainer_that_sends_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TMATrainer.on_train

    def garbage(self, message):  # type: ignore[no-untyped-def]
        answer = honest(self, message)
        if self.shard.part == 1:
            answer.arrays["weights"][:] = 1e6
        return answer

    monkeypatch.setattr(TMATrainer, "on_train", garbage)
    scores = {
        name: rig(blocks(), "tma", parts=4, steps=40, interval=5, aggregation=name).train().history[-1].val["accuracy"]
        for name in ("mean", "median", "trimmed-mean")
    }
    assert scores["median"] > 0.6
    assert scores["trimmed-mean"] > 0.6
    assert scores["mean"] < 0.5


def test_soup_is_no_worse_on_validation_and_is_metered() -> None:
    plain = rig(blocks(), "tma", steps=30, interval=10).train()
    mixed = rig(blocks(), "tma", steps=30, interval=10, soup=True).train()
    assert mixed.keeper.best_score >= plain.keeper.best_score
    last = mixed.history[-1]
    assert last.phase == "soup"
    assert last.val["accuracy"] == max(mixed.keeper.best_score, last.val["accuracy"])
    evaluated = mixed.ledger.by_kind()["evaluation"] // plain.vector().nbytes
    assert evaluated > 3 + 3, "each of four candidates is scored, and each mixture"


def test_averaged_moments_are_equal_everywhere() -> None:
    one = rig(blocks(), "tma", steps=8, interval=4, moments="average").train()
    held = one.reveal()
    for name in ("weights/exp_avg", "weights/exp_avg_sq"):
        assert all(np.array_equal(h.arrays[name], held[0].arrays[name]) for h in held)
        assert np.abs(held[0].arrays[name]).max() > 0
    plain = rig(blocks(), "tma", steps=8, interval=4).train()
    own = plain.reveal()
    assert not np.array_equal(own[0].arrays["weights/exp_avg"], own[1].arrays["weights/exp_avg"])
    size = plain.vector().nbytes
    assert one.ledger.by_kind()["weights"] == plain.ledger.by_kind()["weights"] + 3 * 2 * 2 * 2 * size


def test_parts_dealt_anew_are_sent_and_trained_on() -> None:
    one = rig(blocks(), "tma", steps=12, interval=3, redeal=2).train()
    still = rig(blocks(), "tma", steps=12, interval=3).train()
    assert not np.array_equal(one.vector(), still.vector())
    dealt = one.setting.deal(1)  # before round 2, of 0..3; none in the end, when nobody trains any more
    expected = sum(setup_bytes(shard) for shard in dealt)
    more = one.ledger.by_kind()["setup"] - still.ledger.by_kind()["setup"]
    assert more == expected
    trainers = one.team._trainers
    assert [trainers[k].deal for k in range(3)] == [1, 1, 1]
    assert all(np.array_equal(trainers[k].shard.inner, dealt[k].inner) for k in range(3))


def test_a_trainer_that_comes_back_after_a_deal_gets_weights_and_part() -> None:
    one = rig(blocks(), "tma", steps=15, interval=3, redeal=1, faults="kill:1@1-3").train()
    assert [sorted(record.absent) for record in one.history] == [[], [1], [1], [], []]
    trainer = one.team._trainers[1]
    assert trainer.deal == 4
    assert np.array_equal(trainer.shard.inner, one.setting.deal(4)[1].inner)
    vectors = [message.arrays["weights"] for message in one.reveal()]
    assert all(np.array_equal(v, one.vector()) for v in vectors)


def test_gradients_are_clipped_from_an_epoch_on() -> None:
    limit = 1e-3
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(parameters, most):  # type: ignore[no-untyped-def]
        assert most == limit
        norms.append(float(clip(list(parameters), most)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", record)
        clipped = rig(blocks(), "tma", parts=1, steps=6, interval=3, clip=limit).train()
    assert len(norms) == 6
    assert min(norms) > limit
    plain = rig(blocks(), "tma", parts=1, steps=6, interval=3).train()
    assert not np.array_equal(clipped.vector(), plain.vector())


@pytest.mark.parametrize(
    ("redeal", "faults"),
    [(1, "delay:1@2=inf"), (1, "delay:1@3=9s"), (2, "kill:1@3-5"), (3, "kill:1@4-5"), (1, "kill:0@2-3")],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_remote_negatives_of_parts_that_are_dealt_anew(redeal: int, faults: str, seed: int) -> None:
    """Whoever was late or away when parts went out neither asks nor gives before it holds its new one."""
    one = rig(
        blocks(),
        "tma",
        encoder="sage",
        links={"eval_negatives": 10, "negatives": "global", "pool": 400},
        sample={"batch": 16},
        steps=12,
        interval=2,
        redeal=redeal,
        deadline=5.0,
        faults=faults,
        seed=seed,
    ).train()
    assert np.isfinite(one.vector()).all()
    assert not one.history[-1].absent
    assert {trainer.deal for trainer in one.team._trainers.values()} == {-(-6 // redeal) - 1}
    for trainer in one.team._trainers.values():
        assert trainer.objective._num_inner == trainer.shard.num_inner


def test_moments_of_trainers_with_other_numbers_of_steps_can_be_averaged() -> None:
    """A constant gradient: whatever the counts of steps, the next step after averaging is one of length lr."""
    lr, sizes = 0.01, []
    trainers = []
    for steps in (1000, 1000, 10):
        parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
        optimiser = torch.optim.Adam([parameter], lr=lr, fused=True)
        for _ in range(steps):
            parameter.grad = torch.full_like(parameter, 0.3)
            optimiser.step()
        trainers.append((parameter, optimiser))
    mean = mean_moments([pack_moments(optimiser) for _, optimiser in trainers])
    for parameter, optimiser in trainers:
        load_moments(optimiser, mean)
        before = parameter.detach().clone()
        parameter.grad = torch.full_like(parameter, 0.3)
        optimiser.step()
        sizes.append(float((before - parameter.detach()).max()) / lr)
    assert sizes == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)


def test_the_last_weights_are_the_last_averaged_ones_not_the_soup() -> None:
    plain = rig(blocks(), "tma", steps=30, interval=10).train()
    mixed = rig(blocks(), "tma", steps=30, interval=10, soup=True).train()
    assert np.array_equal(mixed.vector("last"), plain.vector("last"))
    assert mixed.history[-1].val.keys() == plain.history[-1].val.keys()
    if mixed.history[-1].best:
        assert mixed.evaluator.validate(mixed.vector("best")) == mixed.history[-1].val
