"""The trainer's side of global graph sampling: it samples around its own seeds over the whole graph, gives its own
nodes' in-edges and features to whoever asks, and answers each step with a gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from farflung.graph import FeatureBlock
from farflung.kernels.sampling import Places
from farflung.methods.remote_blocks import Book, Growth, Lists, Owned, sound_degrees, sound_lists
from farflung.nn import flat
from farflung.nn.blocks import embed
from farflung.nn.model import encoder_of
from farflung.partition import Shard
from farflung.seeding import derive
from farflung.tasks.seeds import Targets, build_seeds
from farflung.team import Clock, Message
from farflung.team.rows import from_arrays, senders, sound, to_arrays
from farflung.trainer import Trainer, TrainerSpec


@dataclass
class _Turn:
    """One step, as far as it has come."""

    step: int
    targets: Targets
    growth: Growth
    pairs: dict[int, np.ndarray]
    """Edges to hide, by owner of their destination: global ids of sources and rows at the owner, int32 [2, k]."""
    rows: dict[int, FeatureBlock] = field(default_factory=dict)
    degrees: dict[int, Lists] = field(default_factory=dict)
    spoilt: set[int] = field(default_factory=set)
    """Owners that gave nothing, or nothing that can be worked with: the step has no gradient then."""

    @property
    def going_on(self) -> bool:
        """Whether there is still something to ask for."""
        return not self.spoilt


class GGSTrainer(Trainer):
    """Holds a part, and works on a sample of the whole graph. The optimiser is the server's."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        super().__init__(shard, spec, clock)
        self.encoder = encoder_of(self.model)
        self.aggregations = [layer.aggregation for layer in self.encoder.layers]
        self.owned = Owned(shard, self.encoder.aggregation, spec.sample, len(self.aggregations))
        self.seeds = build_seeds(shard, spec)
        self.book: Book | None = None
        self.places = Places(shard.info.num_nodes)
        self.turn: _Turn | None = None
        """None: before the first step, and where there is nothing to learn from."""
        self.requests: dict[int, np.ndarray] = {}
        """Inner nodes that peers ask about, by peer, int32 [r]."""
        self.concealed: dict[int, np.ndarray] = {}
        """Edges that peers must not see in the step they are at, as `_Turn.pairs`."""
        self._warm_up()

    def on_hello(self, message: Message) -> Message:
        """Which nodes this trainer has, and how many training examples."""
        sizes = {"train": self.seeds.examples, "per_epoch": self.seeds.per_epoch}
        return Message("hello", sizes, {"handshake": self.shard.inner})

    def on_book(self, message: Message) -> Message:
        """Take the owner of every node."""
        self.book = Book(message.arrays["handshake"], self.shard.num_parts)
        return Message("book")

    # Asking: what this trainer wants of others.

    def on_ask_neighbours(self, message: Message) -> Message:
        """Ask the owners of the nodes so far for their in-edges, in the first hop of a step with those to be hidden."""
        turn = self._turn(message.scalars["step"])
        if turn is None or not turn.going_on:
            return Message(message.verb)
        first = not turn.growth.blocks
        arrays = self._wanted(turn)
        if first:
            arrays |= {f"neighbours/{j}/hide": pairs for j, pairs in turn.pairs.items() if j != self.shard.part}
        return Message(message.verb, {}, arrays)

    def on_take_neighbours(self, message: Message) -> Message:
        """Grow by the in-edges that the owners drew, and by those drawn here."""
        turn = self.turn
        if turn is None or not turn.going_on:
            return Message(message.verb)
        lists: dict[int, Lists] = {}
        for owner in turn.growth.groups.owners:
            rows = turn.growth.groups.rows_of(owner)
            if owner == self.shard.part:
                self.owned.hide(turn.pairs.get(owner))
                lists[owner] = self.owned.lists(rows, message.scalars["hop"], self._key(owner, turn.step))
                continue
            lists[owner] = _of_peer(message.arrays, "neighbours", owner)
            if not sound_lists(lists[owner], self.owned, len(rows), len(self.places)):
                turn.spoilt.add(owner)
        if turn.going_on:
            turn.growth.add(lists)
        return Message(message.verb)

    def on_ask_features(self, message: Message) -> Message:
        """Ask the owners of all nodes of the sample for their features."""
        turn = self._turn(message.scalars["step"])
        if turn is None or not turn.going_on:
            return Message(message.verb)
        return Message(message.verb, {}, self._wanted(turn))

    def on_take_features(self, message: Message) -> Message:
        """Take the features of all nodes of the sample, and their degrees where GCN wants them."""
        turn, width = self.turn, self.owned.x.shape[1]
        if turn is None or not turn.going_on:
            return Message(message.verb)
        features = {name: array for name, array in message.arrays.items() if name.startswith("features/")}
        heard = senders(features)
        for owner in turn.growth.groups.owners:
            rows = turn.growth.groups.rows_of(owner)
            if owner == self.shard.part:
                self.owned.hide(turn.pairs.get(owner))
                turn.rows[owner], turn.degrees[owner] = self.owned.features(rows), self.owned.degrees(rows)
                continue
            if owner in heard:
                turn.rows[owner] = from_arrays(features, owner, width)
                turn.degrees[owner] = _of_peer(message.arrays, "neighbours", owner)
            if not (owner in heard and self._sound(turn.rows[owner], turn.degrees[owner], len(rows))):
                turn.spoilt.add(owner)
        return Message(message.verb)

    def _sound(self, rows: FeatureBlock, degrees: Lists, count: int) -> bool:
        whole = rows.shape[0] == count and sound(rows, self.owned.x.shape[1])
        return whole and sound_degrees(degrees, self.owned, count)

    def _wanted(self, turn: _Turn) -> dict[str, np.ndarray]:
        """The rows of the sample's nodes at each other owner, int32."""
        groups = turn.growth.groups
        return {f"neighbours/{j}": groups.rows_of(j) for j in groups.owners if j != self.shard.part}

    # Giving: what others want of this trainer.

    def on_requested(self, message: Message) -> Message:
        """Remember which rows peers ask about, as far as they exist."""
        self.requests = {}
        for peer in senders(message.arrays):
            rows, pairs = message.arrays.get(f"neighbours/{peer}"), message.arrays.get(f"neighbours/{peer}/hide")
            if rows is not None and self._exist(rows) and (pairs is None or self._exist(pairs[-1])):
                self.requests[peer] = rows
                self.concealed |= {} if pairs is None else {peer: pairs}
        return Message("requested")

    def _exist(self, rows: np.ndarray) -> bool:
        return rows.ndim == 1 and rows.dtype.kind == "i" and bool(((rows >= 0) & (rows < self.shard.num_inner)).all())

    def on_give_neighbours(self, message: Message) -> Message:
        """Draw the in-edges of the rows that peers ask about, each in the peer's own sample."""
        hop, step = message.scalars["hop"], message.scalars["step"]
        arrays: dict[str, np.ndarray] = {}
        for peer, rows in self.requests.items():
            self.owned.hide(self.concealed.get(peer))
            lists = self.owned.lists(rows, hop, self._key(peer, step))
            arrays |= {f"neighbours/{peer}/{name}": array for name, array in lists.items()}
        return Message(message.verb, {}, arrays)

    def on_give_features(self, message: Message) -> Message:
        """The features, and for GCN the degrees, of the rows that peers ask about; it is the last fetch of a step."""
        arrays: dict[str, np.ndarray] = {}
        for peer, rows in self.requests.items():
            self.owned.hide(self.concealed.get(peer))
            arrays |= to_arrays(f"features/{peer}", self.owned.features(rows))
            degrees = self.owned.degrees(rows)
            arrays |= {f"neighbours/{peer}/{name}": array for name, array in degrees.items()}
        self.concealed = {}
        return Message(message.verb, {}, arrays)

    # Learning.

    def on_gradient(self, message: Message) -> Message:
        """The gradient of the mean loss over this step's seeds, at the weights sent, and how many seeds these are.

        Zeros, and no seeds, where there are none or an owner gave nothing useful: `spoilt` names it.
        """
        flat.load(self.model, message.arrays["weights"])
        self.model.zero_grad()
        turn = self._turn(message.scalars["step"])
        told: dict[str, object] = {"loss": None, "seeds": 0}
        if turn is not None and turn.spoilt:
            told["spoilt"] = sorted(turn.spoilt)
        elif turn is not None:
            loss = self._loss(turn, message.scalars["round"], message.scalars["number"])
            loss.backward()
            value = loss.item()
            finite = math.isfinite(value)
            told = {"loss": value if finite else None, "seeds": turn.targets.count, "finite": finite}
            self.clock.worked("step")
        return Message("gradient", told, {"gradients": flat.pack_gradients(self.model)})

    def _loss(self, turn: _Turn, round: int, number: int) -> torch.Tensor:
        batch = turn.growth.batch(self.aggregations, turn.rows, turn.degrees, self.spec.torch_dtype)
        key = derive(self.spec.seed, "dropout", round, self.shard.part, number)
        return turn.targets.loss(self.model, embed(self.encoder, batch, key))

    def _turn(self, step: int) -> _Turn | None:
        """The turn of step number `step`, begun if it is new; None: nothing to learn from."""
        if self.seeds.examples and (self.turn is None or self.turn.step != step):
            assert self.book is not None
            targets = self.seeds.draw(step)
            pairs = {} if targets.hidden is None else self._by_owner(self.book, *targets.hidden)
            self.turn = _Turn(step, targets, Growth(self.book, self.places, targets.nodes), pairs)
        return self.turn

    def _by_owner(self, book: Book, sources: np.ndarray, destinations: np.ndarray) -> dict[int, np.ndarray]:
        """Edges by the owner of their destination, as `_Turn` has them."""
        groups, sources = book.group(destinations), sources.astype(np.int32)
        return {j: np.stack([sources[groups.positions(j)], groups.rows_of(j)]) for j in groups.owners}

    def _key(self, part: int, step: int) -> int:
        """What names the sample of trainer `part` in a step."""
        return derive(self.spec.seed, "sample", part, step)

    # The first of its kind in a process makes a throw-away step, so that no clock counts the compiling of kernels.

    def _warm_up(self) -> None:
        """A step in which this trainer stands in for the others: a row asked of them is one of its own."""
        shard, spec = self.shard, self.spec
        variant = (spec.task, spec.model, spec.sample, spec.dtype, shard.edge_weight is None, type(shard.x))
        if not self.seeds.examples or (*variant, shard.num_parts > 1) in _WARM:
            return
        other = (shard.part + 1) % shard.num_parts
        owner = np.full(shard.info.num_nodes, other, dtype=np.min_scalar_type(shard.num_parts - 1))
        owner[shard.inner] = shard.part
        self.on_book(Message("book", {}, {"handshake": owner}))
        place = {"step": 0, "round": 0, "number": 0}
        for hop in range(len(self.aggregations) - self.aggregations.count("none")):
            self._ask_oneself("neighbours", {**place, "hop": hop})
        self._ask_oneself("features", place)
        self.on_gradient(Message("gradient", place, {"weights": flat.pack(self.model)}))
        self.model.zero_grad()
        self.book, self.turn, self.requests, self.concealed = None, None, {}, {}
        _WARM.add((*variant, shard.num_parts > 1))

    def _ask_oneself(self, what: str, scalars: Mapping[str, int]) -> None:
        asked = self.handle(Message(f"ask-{what}", scalars)).arrays
        rows = {name: a % np.int32(self.shard.num_inner) for name, a in asked.items() if not name.endswith("hide")}
        self.on_requested(Message("requested", {}, rows))
        given = self.handle(Message(f"give-{what}", scalars))
        self.handle(Message(f"take-{what}", scalars, given.arrays))


_WARM: set[tuple[object, ...]] = set()
"""What has run in this process: its kernels are compiled."""


def _of_peer(arrays: Mapping[str, np.ndarray], kind: str, peer: int) -> Lists:
    """What a peer sent of one kind, by the rest of its name."""
    start = f"{kind}/{peer}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
