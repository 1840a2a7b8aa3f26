import numpy as np
import pytest
import torch
from torch import nn

from farflung.nn import ModelConfig, build_encoder, flat


def model(heads: bool = True, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    return build_encoder(ModelConfig(hidden=4, activation="prelu"), 3, 2, heads, seed, dtype)


MODULES = [model(), model(heads=False, dtype=torch.float64), nn.PReLU(), nn.Identity(), nn.Linear(2, 3, bias=False)]


@pytest.mark.parametrize("module", MODULES)
def test_pack_is_the_state_in_order_and_a_copy(module):
    vector = flat.pack(module)
    state = list(module.state_dict().values())
    expected = np.concatenate([value.numpy().reshape(-1) for value in state]) if state else np.empty(0, np.float32)
    np.testing.assert_array_equal(vector, expected)
    assert vector.dtype == expected.dtype
    vector += 1
    np.testing.assert_array_equal(flat.pack(module), expected)


@pytest.mark.parametrize("module", MODULES)
def test_unpack_undoes_pack_and_copies(module):
    vector = flat.pack(module)
    state = flat.unpack(module, vector)
    assert state.keys() == module.state_dict().keys()
    vector += 1
    for name, value in module.state_dict().items():
        assert torch.equal(state[name], value)


def test_load_sets_all_of_the_state():
    one, other = model(seed=1), model(seed=2)
    vector = flat.pack(one)
    flat.load(other, vector)
    np.testing.assert_array_equal(flat.pack(other), vector)
    vector += 1
    np.testing.assert_array_equal(flat.pack(other), flat.pack(one))


def test_a_wide_vector_loads_into_a_narrow_module():
    module = model()
    flat.load(module, flat.pack(module).astype(np.float64) + 0.5)
    assert flat.pack(module).dtype == np.float32
    np.testing.assert_allclose(flat.pack(module), flat.pack(model()) + 0.5, rtol=1e-6)


def test_gradients_there_and_back_zero_where_there_is_none():
    module = model()
    count = sum(p.numel() for p in module.parameters())
    np.testing.assert_array_equal(flat.pack_gradients(module), np.zeros(count))
    vector = np.arange(count, dtype=np.float64)
    flat.set_gradients(module, vector)
    assert all(p.grad.dtype == p.dtype and p.grad.shape == p.shape for p in module.parameters())
    vector += 1
    packed = flat.pack_gradients(module)
    np.testing.assert_array_equal(packed, np.arange(count))
    packed += 1
    np.testing.assert_array_equal(flat.pack_gradients(module), np.arange(count))


@pytest.mark.parametrize("function", [flat.unpack, flat.load, flat.set_gradients])
@pytest.mark.parametrize("change", [-5, -1, 1, 7])
def test_another_length_is_refused(function, change):
    module = model()
    count = len(flat.pack(module))
    with pytest.raises(ValueError, match=f"{count + change} numbers does not fit a module of {count}"):
        function(module, np.zeros(count + change, np.float32))
