import numpy as np
import pytest
import torch

from farflung.nn import ModelConfig, build_encoder, flat
from farflung.nn.optim import OptimConfig, adam


@pytest.mark.parametrize(
    ("decay", "first", "shrinks"),
    [("all", 0, [0, 1, 2]), ("first", 0, [0]), ("first", 1, []), ("all", 1, [0, 1, 2])],
)
def test_decay_shrinks_the_layers_that_it_is_for(decay, first, shrinks):
    encoder = build_encoder(ModelConfig(layers=3, hidden=4), 3, 2, True, 0, torch.float64)
    before = [{n: p.detach().clone() for n, p in layer.named_parameters()} for layer in encoder.layers]
    optimiser = adam(OptimConfig(lr=1e-3, weight_decay=0.1, decay=decay), encoder.layers, first)
    flat.set_gradients(encoder, np.zeros(len(flat.pack(encoder))))
    optimiser.step()
    for number, layer in enumerate(encoder.layers):
        for name, value in layer.named_parameters():
            old = before[number][name]
            if number in shrinks:
                # Adam's first step is lr * sign(g), and the penalty's gradient has the sign of the weight.
                torch.testing.assert_close(value, old - 1e-3 * old.sign(), rtol=1e-4, atol=1e-6)
            else:
                assert torch.equal(value, old)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_steps_equal_adam_by_hand(decay):
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    module = torch.nn.Linear(3, 1, bias=False).double()
    module.weight.data = weight.clone().reshape(1, 3)
    optimiser = adam(OptimConfig(lr=0.1, weight_decay=decay), [module])
    m = v = torch.zeros(3, dtype=torch.float64)
    for step in range(1, 6):
        gradient = torch.tensor([1.0, -1.0, 0.3 * step], dtype=torch.float64)
        flat.set_gradients(module, gradient.numpy())
        optimiser.step()
        g = gradient + decay * weight
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        weight = weight - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-8)
        torch.testing.assert_close(module.weight[0], weight, rtol=1e-10, atol=1e-12)
