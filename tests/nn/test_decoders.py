"""Decoders: formulas, many candidates at once, and the model they complete."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farflung.errors import InputError
from farflung.nn import ModelConfig, build_encoder
from farflung.nn import decoders as module
from farflung.nn.decoders import DECODERS, Decoder, DistMult, HadamardMLP, LinkModel, build_decoder
from farflung.nn.optim import OptimConfig, adam

RELATIONS = 3


def decoder(kind: str, width: int, dtype: torch.dtype = torch.float64) -> Decoder:
    torch.manual_seed(0)
    return build_decoder(kind, width, RELATIONS).to(dtype)


def naive(model: Decoder, u: np.ndarray, v: np.ndarray, relation: int) -> float:
    """The score of one pair, by the formula."""
    if isinstance(model, DistMult):
        return float(sum(a * r * b for a, r, b in zip(u, model.relations[relation].tolist(), v, strict=True)))
    if not isinstance(model, HadamardMLP):
        return float(sum(a * b for a, b in zip(u, v, strict=True)))
    hidden = model.hidden.weight.detach().numpy() @ (u * v) + model.hidden.bias.detach().numpy()
    hidden = np.where(hidden > 0, hidden, model.activation.weight.item() * hidden)
    return float(model.out.weight.detach().numpy()[0] @ hidden + model.out.bias.item())


@pytest.mark.parametrize("kind", DECODERS)
def test_scores_follow_the_formula(kind: str) -> None:
    model = decoder(kind, 5)
    u, v = torch.randn(2, 7, 5, dtype=torch.float64)
    relation = torch.arange(7) % RELATIONS
    expected = [naive(model, a.numpy(), b.numpy(), int(r)) for a, b, r in zip(u, v, relation, strict=True)]
    np.testing.assert_allclose(model(u, v, relation).detach(), expected, rtol=1e-12)
    plain = [naive(model, a.numpy(), b.numpy(), 0) for a, b in zip(u, v, strict=True)]
    np.testing.assert_allclose(model(u, v).detach(), plain, rtol=1e-12)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("block", [1, 40, 1 << 18])
@pytest.mark.parametrize(("sources", "candidates"), [(0, 4), (1, 1), (6, 3), (2, 50)])
def test_candidates_are_scored_as_pairs_are(
    kind: str, block: int, sources: int, candidates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    model = decoder(kind, 5)
    h = torch.randn(20, 5, dtype=torch.float64)
    source = torch.randint(20, (sources,))
    chosen = torch.randint(20, (sources, candidates), dtype=torch.int32)
    relation = torch.randint(RELATIONS, (sources,))
    got = model.score_candidates(h, source, chosen, relation)
    assert got.shape == (sources, candidates) and not got.requires_grad
    for j in range(candidates):
        expected = model(h[source], h[chosen[:, j].long()], relation)
        torch.testing.assert_close(got[:, j], expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 64, 100, 256])
@pytest.mark.parametrize("shape", [(1, 10), (7, 11), (3, 1001), (1, 3001)])
def test_equal_embeddings_tie_to_the_bit(kind: str, dtype: torch.dtype, width: int, shape: tuple[int, int]) -> None:
    model = decoder(kind, width, dtype)
    h = torch.randn(1, width, dtype=dtype).repeat(50, 1)
    scores = model.score_candidates(h, torch.zeros(shape[0], dtype=torch.int64), torch.randint(50, shape))
    assert len(scores.unique()) == 1


@pytest.mark.parametrize("kind", ["mlp", "distmult"])
def test_initial_weights_come_from_the_global_generator(kind: str) -> None:
    torch.manual_seed(1)
    first, other = build_decoder(kind, 4, 2), build_decoder(kind, 4, 2)
    torch.manual_seed(1)
    again = build_decoder(kind, 4, 2)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not torch.equal(pairs[0][0], pairs[0][2])


def test_a_graph_without_edge_types_has_one_relation() -> None:
    relations = dict(build_decoder("distmult", 4, 0).named_parameters())["relations"]
    assert relations.shape == (1, 4)


def test_unknown_decoder() -> None:
    with pytest.raises(InputError, match="unknown decoder 'bilinear'; decoders are mlp, dot, distmult"):
        build_decoder("bilinear", 4, 1)


@pytest.mark.parametrize("kind", DECODERS)
def test_model_lists_its_decoder_as_the_last_layer(kind: str) -> None:
    encoder = build_encoder(ModelConfig(hidden=4, dropout=0.25), 3, 4, False, 0, torch.float32)
    model = LinkModel(encoder, build_decoder(kind, 4, 1))
    assert model.layers == [*encoder.layers, model.decoder]
    assert model.aggregation == "mean" and model.dropout == 0.25
    held = {id(p) for layer in model.layers for p in layer.parameters()}
    assert held == {id(p) for p in model.parameters()}
    optimiser = adam(OptimConfig(), model.layers)
    h = torch.randn(6, 4, requires_grad=True)
    model.decoder(h[:3], h[3:]).sum().backward()
    optimiser.step()
    assert h.grad is not None and torch.isfinite(h.grad).all()
