"""Links between digits in three parts: hide some edges, learn from the rest, find the hidden ones again.

Run it from anywhere: python examples/links.py
"""

import tempfile
from pathlib import Path

import numpy as np

import farflung
from farflung.run.saved import SavedRun

# 1,797 handwritten digits, each joined to the 10 most similar ones. No download.
graph = farflung.load("digits")

# 5 % of the pairs are kept for validation and 5 % for the test; no trainer sees them, in either direction.
# SuperTMA deals small clusters out to three trainers. Each learns alone, from batches of its own edges and a sample
# of their neighbourhoods; every 10 steps the server averages the weights.
options = {"task": "link-prediction", "hidden": 64, "fanouts": "10,10", "batch": 1024, "steps": 200, "seed": 0}
folder = Path(tempfile.mkdtemp(prefix="farflung-")) / "links"
run = farflung.train(graph, method="super-tma", out=folder, **options)

# Each hidden edge is ranked among 1,000 destinations that its source has no edge to. Ties count half.
links = run.metrics["links"]
print(f"{links['train']} pairs to learn from, {links['test']} to find, each among {links['negatives']} negatives")
print(f"mean reciprocal rank: test {run.test['mrr']:.3f}, validation {run.val['mrr']:.3f}")
print(f"found in the first ten: {run.test['hits@10']:.0%}")
print(f"sent for training: {run.ledger.training() / 1e6:.1f} MB, all of it weights")

# The same with one trainer that holds the whole graph.
whole = farflung.train(graph, method="centralised", **options)
print(f"one trainer: test {whole.test['mrr']:.3f}")

# What links are scored from: an embedding of every node, keyed by the ids that the graph came with.
embeddings = SavedRun.open(folder).embed()
print(embeddings.rows.shape, embeddings.ids[:5])

# Digits whose embeddings point the same way should be the same digit, though no label was used.
unit = embeddings.rows / np.linalg.norm(embeddings.rows, axis=1, keepdims=True)
likeness = unit @ unit.T
np.fill_diagonal(likeness, -1)
nearest = likeness.argmax(axis=1)
print(f"nearest embedding has the same label: {(graph.y[nearest] == graph.y).mean():.0%}")
