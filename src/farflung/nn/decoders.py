"""Decoders: from the embeddings of two nodes to the score of an edge between them; and the model they are part of.

Each is a function of the product of a query, made of the source, and the destination's embedding: what one source is
to be scored against is gathered and multiplied in blocks that stay in cache.

Legend for shapes: N nodes, d width of the embeddings, k pairs or sources, K candidates of each source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn

from farflung.errors import InputError
from farflung.nn.adjacency import Aggregation
from farflung.nn.encoder import Encoder

_BLOCK = 1 << 18
"""Numbers in a block of gathered embeddings: 1 MiB in float32."""


class Decoder(nn.Module):
    """Scores pairs of nodes by their embeddings: `score(query(h_u, r) * h_v)`."""

    def query(self, source: torch.Tensor, relation: torch.Tensor | None) -> torch.Tensor:
        """What a destination's embedding is multiplied with, [k, d]."""
        return source

    def score(self, product: torch.Tensor) -> torch.Tensor:
        """Scores [k] of products [k, d]."""
        raise NotImplementedError

    def forward(
        self, source: torch.Tensor, destination: torch.Tensor, relation: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores [k] of pairs [k, d], [k, d]; `relation` int64 [k]: their edge types, None: all of type 0."""
        return self.score(self.query(source, relation) * destination)

    @torch.no_grad()
    def score_candidates(
        self, h: torch.Tensor, source: torch.Tensor, candidates: torch.Tensor, relation: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores [k, K] of many destinations for each source: `forward` up to rounding, without autograd.

        Candidates with equal embeddings get equal scores, to the bit, so that ties are ties.

        Args:
            h: embeddings [N, d].
            source: int64 [k].
            candidates: int32 or int64 [k, K], the destinations; K >= 1.
            relation: int64 [k], or None: all of type 0.
        """
        (sources, width), dim = candidates.shape, h.shape[1]
        query = self.query(h[source], relation)
        scores = h.new_empty(sources, width)
        columns = min(width, max(1, _BLOCK // dim))
        rows = min(max(1, sources), max(1, _BLOCK // (dim * columns)))
        buffer = h.new_zeros(_padded(rows * columns), dim)
        for i in range(0, sources, rows):
            for j in range(0, width, columns):
                chosen = candidates[i : i + rows, j : j + columns]
                count = chosen.numel()
                gathered = torch.index_select(h, 0, chosen.reshape(-1), out=buffer[:count])
                gathered.view(*chosen.shape, dim).mul_(query[i : i + rows].unsqueeze(1))
                block = self.score(buffer[: _padded(count)])[:count]
                scores[i : i + rows, j : j + columns] = block.view(chosen.shape)
        return scores


def _padded(rows: int) -> int:
    """A multiple of 64: BLAS sums the odd rows at the end of a matrix in another order."""
    return -(-rows // 64) * 64


class Dot(Decoder):
    """`<h_u, h_v>`."""

    def score(self, product: torch.Tensor) -> torch.Tensor:
        return product.sum(dim=1)


class DistMult(Dot):
    """`<h_u, diag(r), h_v>` with a vector r per relation (Yang et al., arXiv 1412.6575)."""

    def __init__(self, num_relations: int, width: int) -> None:
        """`num_relations`, `width` >= 1; vectors by Glorot and Bengio's uniform rule."""
        super().__init__()
        self.relations = nn.Parameter(torch.empty(num_relations, width))
        nn.init.xavier_uniform_(self.relations)

    def query(self, source: torch.Tensor, relation: torch.Tensor | None) -> torch.Tensor:
        return source * (self.relations[0] if relation is None else self.relations[relation])


class HadamardMLP(Decoder):
    """`Linear(d, 1)(PReLU(Linear(d, d)(h_u * h_v)))`, the decoder of TMA (arXiv 2305.09887); no relations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.activation = nn.PReLU()
        self.out = nn.Linear(width, 1)

    def score(self, product: torch.Tensor) -> torch.Tensor:
        hidden = self.activation(self.hidden(product))
        return (hidden * self.out.weight).sum(dim=1) + self.out.bias  # `self.out(hidden)`, but each row summed alike


DECODERS: dict[str, Callable[[int, int], Decoder]] = {
    "mlp": lambda width, num_relations: HadamardMLP(width),
    "dot": lambda width, num_relations: Dot(),
    "distmult": lambda width, num_relations: DistMult(max(1, num_relations), width),
}


def build_decoder(kind: str, width: int, num_relations: int) -> Decoder:
    """A decoder of embeddings of `width` by its name in `DECODERS`; weights come from torch's global generator.

    `num_relations`: edge types of the graph; 0 where it has none. Raises InputError for an unknown name.
    """
    if kind not in DECODERS:
        raise InputError(f"unknown decoder '{kind}'; decoders are {', '.join(DECODERS)}")
    return DECODERS[kind](width, num_relations)


class LinkModel(nn.Module):
    """An encoder whose last layer gives embeddings, and a decoder; in lazy training also one for each layer before."""

    def __init__(self, encoder: Encoder, decoder: Decoder, heads: Sequence[Decoder] = ()) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleList(heads)

    def decoder_of(self, layer: int) -> Decoder:
        """The decoder of what layer number `layer` passes on."""
        return cast("Decoder", self.heads[layer]) if layer < len(self.heads) else self.decoder

    @property
    def layers(self) -> list[nn.Module]:
        """The encoder's layers, first to last, then the decoder."""
        return [*self.encoder.layers, self.decoder]

    @property
    def aggregation(self) -> Aggregation:
        return self.encoder.aggregation

    @property
    def dropout(self) -> float:
        """Share of a layer's aggregated input that is dropped."""
        return self.encoder.dropout
