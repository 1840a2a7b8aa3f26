"""Loss, exact scores in chunks, and training negatives of link prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from farflung.errors import FarflungError
from farflung.graph.links import Links
from farflung.nn.decoders import DECODERS, build_decoder
from farflung.tasks.link_prediction import LinkConfig, LinkPrediction, score_links
from farflung.tasks.ranking import finish

N, WIDTH = 30, 6


def links(k: int, negatives: int, relations: int | None = None) -> Links:
    rng = np.random.default_rng(k)
    relation = None if relations is None else rng.integers(relations, size=k).astype(np.int16)
    return Links(
        rng.integers(N, size=k),
        rng.integers(N, size=k),
        rng.integers(N, size=(k, negatives)).astype(np.int32),
        relation,
    )


def test_loss_is_the_mean_cross_entropy_over_all_scores() -> None:
    torch.manual_seed(0)
    positive, negative = torch.randn(4, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    expected = (F.softplus(-positive).sum() + F.softplus(negative).sum()) / 16
    torch.testing.assert_close(LinkPrediction().loss(positive, negative), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("chunk", [1, 40, 10**6])
@pytest.mark.parametrize("relations", [None, 3])
def test_scores_in_chunks_equal_pairs_one_by_one(kind: str, chunk: int, relations: int | None) -> None:
    torch.manual_seed(0)
    decoder = build_decoder(kind, WIDTH, 3).double()
    h = torch.randn(N, WIDTH, dtype=torch.float64, requires_grad=True)
    given = links(11, 8, relations)
    state = score_links(decoder, h, given, chunk)
    for i in range(11):
        u, v = h[given.source[i]][None], h[given.destination[i]][None]
        relation = None if relations is None else torch.tensor([int(given.relation[i])])
        positive = decoder(u, v, relation).item()
        negative = [decoder(u, h[int(w)][None], relation).item() for w in given.negatives[i]]
        assert state["positive"][i] == pytest.approx(positive, rel=1e-12)
        assert state["negative"][i] == pytest.approx(negative[0], rel=1e-12)
        tied = sum(given.negatives[i] == given.destination[i])
        higher = sum(
            s > positive for w, s in zip(given.negatives[i], negative, strict=True) if w != given.destination[i]
        )
        assert state["ranks"][i] == 1 + higher + tied / 2


def test_a_collapsed_model_ranks_edges_in_the_middle() -> None:
    torch.manual_seed(0)
    h = torch.randn(1, 128).repeat(N, 1)
    state = score_links(build_decoder("mlp", 128, 1), h, links(7, 9), 25)
    assert state["ranks"].tolist() == [5.5] * 7


def test_nothing_to_score() -> None:
    state = score_links(build_decoder("dot", WIDTH, 1), torch.randn(N, WIDTH), links(0, 5), 100)
    assert state["ranks"].shape == (0,) and finish(state)["mrr"] is None


def test_embeddings_that_are_not_finite() -> None:
    h = torch.full((N, WIDTH), float("nan"))
    with pytest.raises(FarflungError, match="not finite"):
        score_links(build_decoder("dot", WIDTH, 1), h, links(3, 5), 100)


def test_count_takes_tensors_with_gradients() -> None:
    scores = torch.arange(4.0, requires_grad=True)
    state = LinkPrediction().count(scores[:2], scores.expand(2, 4))
    assert state["ranks"].tolist() == [4.5, 3.5]


@pytest.mark.parametrize("field", ["eval_negatives", "per_positive", "pool", "chunk"])
def test_options_have_ranges_and_descriptions(field: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        LinkConfig(**{field: 0})
    assert all(info.description for info in LinkConfig.model_fields.values())
