"""From a run's configuration to what its trainers must know."""

from __future__ import annotations

import numpy as np

from farflung.graph import Graph
from farflung.graph.links import LinkSplit
from farflung.methods.presets import preset
from farflung.nn.config import Facts
from farflung.nn.model import encoder_of
from farflung.run.config import RunConfig
from farflung.trainer import TrainerSpec


def trainer_spec(config: RunConfig, graph: Graph, links: LinkSplit | None = None) -> TrainerSpec:
    """What every trainer must know, and what builds the model again. `links`: those to be predicted, if any."""
    procedure = preset(config.method).procedure
    nodes = config.task == "node-classification"
    target = procedure.trainer if nodes else procedure.link_trainer or procedure.trainer
    types = [graph.edge_type, *(() if links is None else (links.val.relation, links.test.relation))]
    spec = TrainerSpec(
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
        facts=_facts(config, graph),
        boundary_rate=config.train.boundary_rate,
        num_relations=1 + max(0 if some is None else int(some.max(initial=0)) for some in types),
    )
    if not config.model.is_native:
        from farflung.nn.pyg_check import check_layer  # PyG takes seconds to import

        for layer in encoder_of(spec.build_model()).layers:
            check_layer(layer, spec.facts, spec.torch_dtype)
    return spec


def _facts(config: RunConfig, graph: Graph) -> Facts:
    """What convolutions of PyG must know of the whole graph."""
    if config.model.is_native:
        return Facts()
    degrees = np.bincount(np.diff(graph.indptr)).tolist() if config.model.encoder.startswith("PNA") else ()
    return Facts(edge_features=0 if graph.edge_attr is None else graph.edge_attr.shape[1], degrees=tuple(degrees))
