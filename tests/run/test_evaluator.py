import numpy as np
import pytest
import scipy.sparse as sp
import torch

from farflung.errors import InputError
from farflung.graph import Graph, Split
from farflung.nn import ModelConfig, flat, graph_adjacency
from farflung.nn.optim import OptimConfig
from farflung.run.evaluator import NodeEvaluator
from farflung.trainer import TrainerSpec

N = 40


def graph(num_classes: int = 3, multilabel: bool = False, val: int = 15) -> Graph:
    rng = np.random.default_rng(0)
    masks = np.zeros((3, N), bool)
    masks[0, :10], masks[1, 10 : 10 + val], masks[2, 10 + val :] = True, True, True
    y = rng.integers(0, 2, (N, num_classes)).astype(np.uint8) if multilabel else rng.integers(0, num_classes, N)
    x = rng.standard_normal((N, 5)).astype(np.float32)
    return Graph.from_edges(*rng.integers(0, N, (2, 120)), num_nodes=N, x=x, y=y, split=Split(*masks), name="tiny")


def spec(num_classes: int = 3, multilabel: bool = False, encoder: str = "gcn", dtype: str = "float64") -> TrainerSpec:
    return TrainerSpec(
        target="farflung.trainer:Trainer",
        model=ModelConfig(encoder=encoder, hidden=6),
        optim=OptimConfig(),
        num_features=5,
        num_classes=num_classes,
        multilabel=multilabel,
        heads=False,
        seed=3,
        dtype=dtype,
    )


def accuracy(logits: np.ndarray, y: np.ndarray, mask: np.ndarray) -> float:
    rows = [v for v in range(N) if mask[v]]
    if y.ndim == 2:
        return sum(((logits[v] > 0) == y[v].astype(bool)).all() for v in rows) / len(rows)
    return sum(max(range(logits.shape[1]), key=lambda c: logits[v, c]) == y[v] for v in rows) / len(rows)


@pytest.mark.parametrize("encoder", ["gcn", "sage", "mlp"])
@pytest.mark.parametrize(("num_classes", "multilabel"), [(3, False), (2, False), (2, True)])
def test_metrics_of_each_mask_equal_a_naive_count(encoder, num_classes, multilabel):
    tiny = graph(num_classes, multilabel)
    evaluator = NodeEvaluator(tiny, spec(num_classes, multilabel, encoder))
    weights = {name: value + 0.1 for name, value in evaluator.model.state_dict().items()}
    logits = evaluator.logits(weights)
    metrics = evaluator.metrics(weights, "train", "val", "test")
    assert list(metrics) == ["train", "val", "test"]
    for mask, found in metrics.items():
        assert found["accuracy"] == accuracy(logits, tiny.y, getattr(tiny.split, mask))
        assert ("roc_auc" in found) == (num_classes == 2 and not multilabel)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_are_exact_inference_in_the_run_dtype_and_sparse_features_agree(dtype):
    tiny, mine = graph(), spec(dtype=dtype)
    evaluator, model = NodeEvaluator(tiny, mine), mine.build_model()
    weights = {name: value * 1.5 for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    matrix = graph_adjacency("gcn", tiny, np.dtype(dtype))
    expected = model.infer(matrix, model.prepare(matrix, torch.from_numpy(tiny.x.astype(dtype)))).numpy()
    logits = evaluator.logits(weights)
    assert logits.dtype == dtype
    np.testing.assert_array_equal(logits, expected)
    sparse = NodeEvaluator(tiny.with_(features=(sp.csr_matrix(tiny.x),)), mine)
    np.testing.assert_allclose(sparse.logits(weights), logits, rtol=1e-4, atol=1e-5)
    assert (evaluator.logits(mine.build_model().state_dict()) != logits).any()


def test_validate_scores_a_flat_vector_on_the_validation_mask():
    evaluator = NodeEvaluator(graph(), spec())
    weights = spec().build_model().state_dict()
    vector = flat.pack(evaluator.model)
    assert evaluator.validate(vector) == evaluator.metrics(weights, "val")["val"]


def test_an_empty_mask_gives_none_not_zero():
    evaluator = NodeEvaluator(graph(num_classes=2, val=0), spec(2))
    found = evaluator.metrics(evaluator.model.state_dict(), "val", "test")
    assert found["val"] == {"accuracy": None, "f1_micro": None, "f1_macro": None, "roc_auc": None}
    assert found["test"]["accuracy"] is not None


def test_a_graph_without_features_is_refused_in_one_line():
    with pytest.raises(InputError, match="'tiny' has no features") as error:
        NodeEvaluator(graph().with_(features=(None,)), spec())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", ["y", "split"])
def test_without_labels_or_split_there_are_logits_but_no_metrics(missing):
    unlabelled = graph().with_(y=None, split=None) if missing == "y" else graph().with_(split=None)
    evaluator = NodeEvaluator(unlabelled, spec())
    weights = evaluator.model.state_dict()
    assert evaluator.logits(weights).shape == (N, 3)
    with pytest.raises(InputError, match="'tiny' has no labels or no split") as error:
        evaluator.metrics(weights, "val")
    assert "\n" not in str(error.value)
