"""What global sampling sends, counted one node and one edge at a time from the graph, the cut and the samples."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from rig import Rig, blocks, flat_vector, rig, tangled
from test_ggs import CUTS, sampled, trainers

from farflung.graph import Graph
from farflung.team import SERVER, TRAINING_KINDS

ID = COUNT = 4
"""Bytes of a row number, a node id, a number of in-edges."""


def counted(run: Rig, encoder: str) -> dict[str, Counter[tuple[int, int]]]:
    """Bytes of `neighbours` and `features` by (sender, receiver)."""
    part, graph = run.partition.assignment.tolist(), run.graph
    weighted = graph.edge_weight is not None
    found: dict[str, Counter[tuple[int, int]]] = {"neighbours": Counter(), "features": Counter()}
    for k, trainer in enumerate(trainers(run)):
        for step, targets, _ in trainer.seen:
            whole = sampled(run, encoder, k, step, targets)
            for block in reversed(whole):
                for row in range(block.num_destinations):
                    owner = part[block.nodes[row]]
                    if owner != k:
                        edges = int(block.indptr[row + 1] - block.indptr[row])
                        found["neighbours"][k, owner] += ID
                        found["neighbours"][owner, k] += COUNT + edges * (ID + (4 if weighted else 0))
            if targets.hidden is not None:
                for v in targets.hidden[1].tolist():
                    if part[v] != k:
                        found["neighbours"][k, part[v]] += 2 * ID
            asked = {v for v in whole[0].nodes.tolist() if part[v] != k}
            for v in asked:
                found["neighbours"][k, part[v]] += ID
                found["neighbours"][part[v], k] += 0 if encoder == "sage" else (8 + 4 if weighted else 4)
                found["features"][part[v], k] += row_bytes(graph, v)
            if sp.issparse(graph.x):
                for owner in {part[v] for v in asked}:
                    found["features"][owner, k] += 4
    return found


def row_bytes(graph: Graph, v: int) -> int:
    """A row's numbers; of a CSR matrix its values, columns and one pointer (and one for all)."""
    if sp.issparse(graph.x):
        return 8 * int(graph.x.indptr[v + 1] - graph.x.indptr[v]) + 4
    return 4 * graph.num_features


def sparse_blocks() -> Graph:
    graph = blocks(90)
    return graph.with_(features=(sp.csr_matrix(np.asarray(graph.x) * (np.abs(graph.x) > 1.2)),))


@pytest.mark.parametrize("links", [None, {"eval_negatives": 20}, {"eval_negatives": 20, "mask_targets": False}])
@pytest.mark.parametrize("sample", [{}, {"fanouts": "3,2", "batch": 6}])
@pytest.mark.parametrize("encoder", ["gcn", "sage"])
@pytest.mark.parametrize("graph", [tangled, sparse_blocks])
def test_bytes(graph, encoder: str, sample: dict, links: dict | None) -> None:  # type: ignore[no-untyped-def]
    for parts, by in CUTS:
        run = rig(
            graph(), "ggs", parts=parts, by=by, encoder=encoder, sample=sample, links=links, steps=4, interval=3
        ).train()
        table = run.ledger.table()
        for kind, expected in counted(run, encoder).items():
            rows = table["kind"] == kind
            sent: Counter[tuple[int, int]] = Counter()
            for sender, receiver, size in zip(
                table["sender"][rows].tolist(),
                table["receiver"][rows].tolist(),
                table["bytes"][rows].tolist(),
                strict=True,
            ):
                sent[sender, receiver] += size
            assert +sent == +expected, kind
            assert (parts == 1) == (not +sent)
        P = len(flat_vector(run.setting.model.state_dict()))
        assert run.ledger.total("weights") == run.ledger.total("gradients") == 4 * 4 * parts * P
        N = run.graph.num_nodes
        assert run.ledger.total("handshake") == 8 * N + parts * N, "ids up; an owner of one byte down, to each"
        assert run.ledger.total("evaluation") == 2 * 4 * P
        kinds = {kind for kind, size in run.ledger.by_kind().items() if size and kind in TRAINING_KINDS}
        assert kinds == {"weights", "gradients"} | ({"neighbours", "features"} if parts > 1 else set())
        assert all(SERVER in pair for pair in run.ledger.matrix()) == (parts == 1)


def test_nobody_is_asked_twice_for_a_node_in_a_hop() -> None:
    """Nor for its features in a step; nor anybody for its own nodes."""
    run = rig(blocks(), "ggs", parts=4, encoder="sage", sample={"fanouts": "4,4", "batch": 32}, steps=3, interval=3)
    asked: list[tuple[int, str, np.ndarray]] = []
    for k, trainer in enumerate(trainers(run)):
        before = trainer.on_requested

        def listening(message, k=k, before=before):  # type: ignore[no-untyped-def]
            asked.extend((k, name, rows) for name, rows in message.arrays.items())
            return before(message)

        trainer.on_requested = listening  # type: ignore[method-assign]
    run.train()
    assert len(asked) >= 3 * 3 * 4 * 2
    for k, name, rows in asked:
        assert name.split("/")[1] != str(k)
        assert len(np.unique(rows)) == len(rows) > 0


def test_an_mlp_fetches_nothing_for_nodes_and_features_alone_for_links() -> None:
    nodes = rig(blocks(), "ggs", encoder="mlp", steps=4, interval=4).train()
    assert nodes.ledger.total("neighbours") == nodes.ledger.total("features") == 0
    links = rig(blocks(), "ggs", encoder="mlp", steps=4, interval=4, links={"eval_negatives": 20}).train()
    features = links.ledger.total("features")
    assert features > 0 and features % (4 * 10) == 0
    assert links.ledger.total("neighbours") == ID * features // (4 * 10), "a number asked for each row, and no list"
