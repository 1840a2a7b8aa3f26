"""What the tests of the methods share: small graphs, one call that trains, trainers that show what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from farflung.graph import Graph, choose_split, load
from farflung.graph.links import split_links
from farflung.kernels.sampling import Block
from farflung.methods import centralised, ggs, lazy, llcg, synchronous, tma
from farflung.methods.base import Keeper, Round, Setting
from farflung.methods.config import TrainConfig
from farflung.methods.ggs_trainer import GGSTrainer
from farflung.methods.lazy_links import LazyLinkTrainer
from farflung.methods.lazy_trainer import LazyTrainer
from farflung.methods.synchronous_trainer import SynchronousTrainer
from farflung.methods.tma_trainer import TMATrainer
from farflung.nn import ModelConfig
from farflung.nn.config import Facts
from farflung.nn.optim import OptimConfig
from farflung.partition import Partition, Shard, build_shards, partition
from farflung.run.evaluator import LinkEvaluator, NodeEvaluator, evaluator_for
from farflung.tasks import ranking
from farflung.tasks.batches import SampleConfig
from farflung.tasks.link_prediction import LinkConfig
from farflung.tasks.metrics import names
from farflung.tasks.seeds import Targets
from farflung.team import PROFILES, Clock, FaultPlan, FixedCostClock, Ledger, LinkProfile, Message
from farflung.team.local import LocalTeam
from farflung.trainer import Trainer, TrainerSpec


class OpenTMATrainer(TMATrainer):
    """Answers `reveal` with its weights and the state of its Adam, and `gradient` with the gradient at some weights."""

    def on_reveal(self, message: Message) -> Message:
        states = [self.optimiser.state.get(p, {}) for p in self.model.parameters()]
        flat = {
            name: np.concatenate([s[name].numpy().reshape(-1) for s in states]) if all(states) else np.empty(0)
            for name in ("exp_avg", "exp_avg_sq")
        }
        steps = {int(s["step"]) for s in states if s}
        weights = torch.cat([v.reshape(-1) for v in self.model.state_dict().values()]).numpy().copy()
        return Message(
            "reveal",
            {"steps": sorted(steps)},
            {"weights": weights, "weights/exp_avg": flat["exp_avg"], "weights/exp_avg_sq": flat["exp_avg_sq"]},
        )


class OpenLazyTrainer(LazyTrainer):
    """Answers `reveal` with the embeddings of its inner nodes and, as the last one, the output of the last layer."""

    def on_reveal(self, message: Message) -> Message:
        layer = self.model.layers[-1]
        vector = message.arrays["weights"]
        at = 0
        with torch.no_grad():
            for p in layer.state_dict().values():
                p.copy_(torch.from_numpy(vector[at : at + p.numel()].copy()).reshape(p.shape))
                at += p.numel()
            logits = layer.predict(self.gathered)
        hidden = {f"embeddings/{i}": np.asarray(h) for i, h in enumerate(self.embeddings[1:], start=1)}
        return Message("reveal", {}, {**hidden, "embeddings/logits": logits.numpy()})


class OpenGGSTrainer(GGSTrainer):
    """Keeps in `seen` of each step its number, its targets, and its blocks, the first layer's first."""

    def __init__(self, shard: Shard, spec: TrainerSpec, clock: Clock) -> None:
        self.seen: list[tuple[int, Targets, list[Block]]] = []
        super().__init__(shard, spec, clock)
        self.seen.clear()

    def on_take_features(self, message: Message) -> Message:
        answer = super().on_take_features(message)
        if self.turn is not None and not self.turn.spoilt:
            self.seen.append((self.turn.step, self.turn.targets, self.turn.growth.blocks[::-1]))
        return answer


METHODS = {
    "tma": tma,
    "lazy": lazy,
    "centralised": centralised,
    "llcg": llcg,
    "synchronous": synchronous,
    "ggs": ggs,
}
TRAINERS: dict[str, type[Trainer]] = {
    "lazy": OpenLazyTrainer,
    "synchronous": SynchronousTrainer,
    "ggs": OpenGGSTrainer,
}


@dataclass
class Diary:
    """A journal that keeps everything, and calls `after` at the end of each round."""

    after: Callable[[Round], None] | None = None
    rounds: list[Round] = field(default_factory=list)
    expected: list[tuple[str, int, int | None, float | None]] = field(default_factory=list)

    def expect(self, phase: str, round: int, rounds: int | None, seconds: float | None) -> None:
        self.expected.append((phase, round, rounds, seconds))

    def round(self, record: Round) -> None:
        self.rounds.append(record)
        if self.after is not None:
            self.after(record)


@dataclass
class Rig:
    """A setting that is ready to train."""

    graph: Graph
    partition: Partition
    team: LocalTeam
    evaluator: NodeEvaluator | LinkEvaluator
    keeper: Keeper
    diary: Diary
    setting: Setting
    method: str

    def train(self) -> Rig:
        METHODS[self.method].train(self.setting)
        return self

    @property
    def ledger(self) -> Ledger:
        return self.team.ledger

    @property
    def history(self) -> list[Round]:
        return self.diary.rounds

    def vector(self, keep: str = "last") -> np.ndarray:
        return flat_vector(self.keeper.chosen(keep))

    def logits(self, keep: str = "last") -> np.ndarray:
        assert isinstance(self.evaluator, NodeEvaluator)
        return self.evaluator.logits(self.keeper.chosen(keep))

    def reveal(self, **arrays: np.ndarray) -> list[Message]:
        """What each trainer holds."""
        replies = self.team.broadcast(Message("reveal", {}, arrays))
        assert all(reply.done for reply in replies)
        return [reply.message for reply in replies]  # type: ignore[misc]


def flat_vector(weights) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Named weights as one vector, in their order."""
    return torch.cat([value.reshape(-1) for value in weights.values()]).numpy()


def rig(
    graph: Graph,
    method: str,
    *,
    by: str = "random",
    parts: int = 3,
    assignment: Sequence[int] | np.ndarray | None = None,
    encoder: str = "gcn",
    layers: int = 2,
    hidden: int = 16,
    dropout: float = 0.0,
    norm: str = "layer",
    first: str = "conv",
    residual: bool = False,
    dtype: str = "float32",
    seed: int = 0,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    decay: str = "all",
    link: LinkProfile = PROFILES["none"],
    faults: str = "",
    costs: dict[str, float] | None = None,
    sample: dict[str, object] | None = None,
    links: dict[str, object] | None = None,
    clip: float | None = None,
    model: dict[str, object] | None = None,
    facts: Facts = Facts(),  # noqa: B008
    clip_from: int = 1,
    **train: object,
) -> Rig:
    """Everything for one run; `costs`: seconds per unit of work, by default a step takes 1/8 s.

    `links`: options of link prediction, which takes the place of node classification; `model`: further options of it.
    """
    split = None
    if links is not None:
        split = split_links(graph, "random:0.8/0.1/0.1", int(links.get("eval_negatives", 20)), seed)  # type: ignore[call-overload]
        graph = split.graph.with_(split=None)
    parts = 1 if method == "centralised" else parts
    cut = (
        partition(graph, by=by, parts=parts, seed=seed)
        if assignment is None
        else Partition.of(graph, np.asarray(assignment, dtype=np.int32), parts)
    )
    target = TRAINERS.get(method, OpenTMATrainer)
    if method == "lazy" and split is not None:
        target = LazyLinkTrainer
    options = TrainConfig.model_validate(train)
    spec = TrainerSpec(
        target=f"{target.__module__}:{target.__name__}",
        model=ModelConfig.model_validate(
            {
                "encoder": encoder,
                "layers": layers,
                "hidden": hidden,
                "dropout": dropout,
                "norm": norm,
                "first": first,
                "residual": residual,
                **(model or {}),
            }
        ),
        optim=OptimConfig(lr=lr, weight_decay=weight_decay, decay=decay, clip=clip, clip_from=clip_from),  # type: ignore[arg-type]
        num_features=graph.num_features,
        num_classes=graph.num_classes if split is None else 0,
        multilabel=graph.multilabel,
        heads=method == "lazy",
        seed=seed,
        dtype=dtype,
        task="node-classification" if split is None else "link-prediction",
        sample=SampleConfig.model_validate(sample or {}),
        links=LinkConfig.model_validate(links or {}),
        directed=split is not None and split.directed,
        facts=facts,
        boundary_rate=options.boundary_rate,
    )
    evaluator = evaluator_for(graph, spec, split)
    whole = Partition.of(graph, np.zeros(graph.num_nodes, dtype=np.int32), 1)
    team = LocalTeam(
        cut.shards,
        spec,
        score=evaluator.validate,
        link=link,
        faults=FaultPlan.parse(faults),
        clock=FixedCostClock({"step": 0.125} if costs is None else costs),
        colocated=method == "centralised",
        whole=lambda: whole.shards[0],
    )
    metric = (names(graph.num_classes, graph.multilabel) if split is None else ranking.names())[0]
    keeper, diary = Keeper(metric), Diary()
    setting = Setting(
        team=team,
        model=spec.build_model(),
        journal=diary,
        keeper=keeper,
        optim=spec.optim,
        train=options,
        deal=lambda number: partition(graph, by=by, parts=parts, seed=seed + number).shards,
    )
    return Rig(graph, cut, team, evaluator, keeper, diary, setting, method)


@lru_cache(maxsize=1)
def digits() -> Graph:
    """The digits graph with a random split: dense features, 10 classes."""
    return choose_split(load("digits"), "random", 0)


@lru_cache(maxsize=4)
def blocks(nodes: int = 240, classes: int = 3) -> Graph:
    """A block model with a random split: dense features."""
    name = f"sbm:nodes={nodes},classes={classes},degree=6,homophily=0.8,features=10,seed=1"
    return choose_split(load(name), "random", 0)


@lru_cache(maxsize=1)
def tangled() -> Graph:
    """Directed edges, loops, a duplicate and isolated nodes; weights on the edges; 40 nodes."""
    rng = np.random.default_rng(3)
    source, destination = rng.integers(0, 34, 90), rng.integers(0, 34, 90)
    source = np.concatenate([source, [5, 6, 6, source[0]]])
    destination = np.concatenate([destination, [5, 6, 6, destination[0]]])
    graph = Graph.from_edges(
        source,
        destination,
        num_nodes=40,
        x=rng.normal(size=(40, 7)).astype(np.float32),
        y=np.arange(40) % 3,
        edge_weight=rng.uniform(0.5, 2, len(source)).astype(np.float32),
        name="tangled",
    )
    return choose_split(graph, "random:0.4/0.3/0.3", 0)


def induced(graph: Graph, nodes: np.ndarray) -> Graph:
    """The graph of some nodes (ascending) and the edges among them, one edge after the other."""
    place = {int(v): i for i, v in enumerate(nodes)}
    indptr, indices = [0], []
    weights = []
    for v in nodes:
        for e in range(graph.indptr[v], graph.indptr[v + 1]):
            if int(graph.indices[e]) in place:
                indices.append(place[int(graph.indices[e])])
                weights.append(None if graph.edge_weight is None else graph.edge_weight[e])
        indptr.append(len(indices))
    return Graph(
        indptr=np.array(indptr, dtype=np.int64),
        indices=np.array(indices, dtype=graph.indices.dtype),
        features=(graph.x[nodes],),  # type: ignore[index]
        y=graph.y[nodes],  # type: ignore[index]
        class_names=tuple(str(c) for c in range(graph.num_classes)),
        edge_weight=None if graph.edge_weight is None else np.array(weights, dtype=np.float32),
        name="induced",
    )


__all__ = ["blocks", "build_shards", "digits", "flat_vector", "induced", "rig", "tangled"]
