import numpy as np
import pytest
import torch

from farflung.seeding import derive, generator, torch_seed


def test_seeds_are_the_same_everywhere_and_for_ever():
    assert derive(0, "init") == 2434554855615985730
    assert derive(7, "dropout", 1, 2, 3) == 7350978024432006816
    assert derive(np.int64(7), "dropout", np.int32(1), np.int64(2), 3) == derive(7, "dropout", 1, 2, 3)


def test_seeds_differ_by_seed_purpose_and_place_and_fit_63_bits():
    every = [
        derive(seed, purpose, *place)
        for seed in (0, 1, 11)
        for purpose in ("init", "dropout")
        for place in ((), (0,), (1,), (1, 1), (11,), (1, 1, 1), (1, 11), (11, 1))
    ]
    assert len(set(every)) == len(every)
    assert all(0 <= seed < 2**63 for seed in every)


def test_generator_repeats_and_leaves_the_global_one_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = generator(3, "split", 1).random(5), generator(3, "split", 1).random(5)
    np.testing.assert_array_equal(one, two)
    assert (one != generator(3, "split", 2).random(5)).all()
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_torch_seed_repeats_and_restores_the_state_even_after_an_error():
    before = torch.get_rng_state()
    draws = []
    for _ in range(2):
        with torch_seed(3, "init"):
            draws.append(torch.rand(5))
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        before = torch.get_rng_state()
    assert torch.equal(*draws)
    with pytest.raises(KeyError), torch_seed(3, "init"):
        torch.rand(1)
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)
