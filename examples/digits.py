"""Digits in four parts: what a partition does to a graph, and what each method then makes of it.

Run it from anywhere: python examples/digits.py
"""

import farflung

# 1,797 handwritten digits, each joined to the 10 most similar ones. No download.
graph = farflung.load("digits")
print(graph.name, graph.num_nodes, "nodes", graph.num_edges, "directed edges")

# The same graph cut in three ways. An edge is kept if both its ends are in one part.
cuts = {by: farflung.cut(graph, by=by, parts=4, seed=0) for by in ("random", "supernode", "mincut")}
for by, parts in cuts.items():
    kept = (parts.assignment[graph.indices] == parts.assignment[graph.destinations()]).mean()
    print(f"{by:10} keeps {kept:.0%} of the edges")

# TMA trains on what is kept; RETEXO uses all edges, at the price of one exchange per layer.
# Methods choose their own partition from a graph; a partition given to them is respected.
runs = {
    "centralised": farflung.train(graph, method="centralised", seed=0),
    "tma, random": farflung.train(cuts["random"], method="random-tma", seed=0),
    "tma, min-cut": farflung.train(cuts["mincut"], method="psgd-pa", seed=0),
    "retexo, random": farflung.train(cuts["random"], method="retexo", seed=0),
}
for name, run in runs.items():
    print(f"{name:15} test accuracy {run.test['accuracy']:.3f}, {run.ledger.training() / 1e6:.1f} MB for training")

# Where RETEXO's bytes went: kind by kind, and the rows of features and embeddings layer by layer.
ledger = runs["retexo, random"].ledger
print(ledger.by_kind())
print({phase: size for phase, size in ledger.by_phase().items() if phase.startswith("exchange")})

# Predictions for every node, keyed by the ids that the graph came with.
predictions = runs["retexo, random"].predict()
print(predictions.ids[:5], predictions.labels[:5], graph.y[:5])
