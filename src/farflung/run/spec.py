"""From a run's configuration to what its trainers must know."""

from __future__ import annotations

from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.methods.presets import preset
from farflung.run.config import RunConfig
from farflung.trainer import TrainerSpec


def trainer_spec(config: RunConfig, graph: Graph, links: LinkSplit | None = None) -> TrainerSpec:
    """What every trainer must know, and what builds the model again. `links`: those to be predicted, if any."""
    procedure = preset(config.method).procedure
    nodes = config.task == "node-classification"
    target = procedure.trainer if nodes else procedure.link_trainer or procedure.trainer
    types = [graph.edge_type, *(() if links is None else (links.val.relation, links.test.relation))]
    return TrainerSpec(
        target=target,
        model=config.model,
        optim=config.optim,
        num_features=graph.num_features,
        num_classes=graph.num_classes if nodes else 0,
        multilabel=graph.multilabel and nodes,
        heads=procedure.heads,
        seed=config.seed,
        dtype=config.dtype,
        task=config.task,
        links=config.links,
        sample=config.sample,
        directed=links is not None and links.directed,
        num_relations=1 + max(0 if some is None else int(some.max(initial=0)) for some in types),
    )
