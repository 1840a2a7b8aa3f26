"""One seed, one result: weights, history and ledger, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rig import Rig, blocks, rig

from farflung.team import PROFILES

METHODS = {
    "centralised": ("centralised", "random"),
    "random-tma": ("tma", "random"),
    "super-tma": ("tma", "supernode"),
    "psgd-pa": ("tma", "mincut"),
    "retexo": ("lazy", "random"),
    "retexo-mincut": ("lazy", "mincut"),
    "ggs": ("ggs", "random"),
    "ggs-sampled": ("ggs", "mincut"),
    "synchronous": ("synchronous", "random"),
    "bns": ("synchronous", "mincut"),
}


def once(name: str, seed: int, **options: object) -> Rig:
    method, by = METHODS[name]
    options = {"steps": 12, "interval": 4, "dropout": 0.4, "encoder": "sage", **options}
    if name == "ggs-sampled":
        options |= {"sample": {"fanouts": "3,2", "batch": 16}}
    if name == "bns":
        options |= {"boundary_rate": 0.3, "layers": 3}
    return rig(blocks(), method, by=by, parts=3, seed=seed, **options).train()


def same(one: Rig, other: Rig) -> None:
    for keep in ("last", "best"):
        assert one.vector(keep).tobytes() == other.vector(keep).tobytes()
    assert one.history == other.history
    assert one.diary.expected == other.diary.expected
    assert one.ledger == other.ledger
    assert one.team.now() == other.team.now()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_one_seed_gives_the_same_bits(name: str, dtype: str) -> None:
    first = once(name, 3, dtype=dtype)
    same(first, once(name, 3, dtype=dtype))
    other = once(name, 4, dtype=dtype)
    assert not np.array_equal(first.vector(), other.vector())
    assert [record.loss for record in first.history] != [record.loss for record in other.history]


@pytest.mark.parametrize("name", ["centralised", "random-tma", "psgd-pa", "ggs-sampled", "synchronous", "bns"])
def test_intervals_in_seconds_repeat_on_a_clock_of_fixed_costs(name: str) -> None:
    first = once(name, 3, interval="1s", time_limit="4s")
    same(first, once(name, 3, interval="1s", time_limit="4s"))
    assert not np.array_equal(first.vector(), once(name, 4, interval="1s", time_limit="4s").vector())


def test_lazy_time_limits_repeat_on_a_clock_of_fixed_costs() -> None:
    same(once("retexo", 3, time_limit="2s", steps=100), once("retexo", 3, time_limit="2s", steps=100))


@pytest.mark.parametrize("name", ["random-tma", "retexo"])
def test_faults_repeat(name: str) -> None:
    faults = "kill:1@1-2, nan:0@2"
    first = once(name, 3, faults=faults)
    same(first, once(name, 3, faults=faults))
    assert not np.array_equal(first.vector(), once(name, 3).vector())


@pytest.mark.parametrize("name", ["random-tma", "retexo", "ggs-sampled", "bns"])
def test_torch_and_numpy_generators_are_left_alone(name: str) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = once(name, 3)
    state = torch.random.get_rng_state()
    key, position = np.random.get_state()[1:3]  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(key, np.random.get_state()[1]) and position == np.random.get_state()[2]  # noqa: NPY002
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    same(first, once(name, 3))


def test_the_link_changes_nothing_but_the_time() -> None:
    near, far = once("retexo", 3), once("retexo", 3, link=PROFILES["proximity"])
    assert np.array_equal(near.vector(), far.vector())
    assert near.ledger == far.ledger
    assert near.team.now() < far.team.now()
