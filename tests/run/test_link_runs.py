"""Runs that predict links: the folder, the same run again, parts on disk, and graphs of all kinds."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import farflung
from farflung.errors import FarflungError, InputError
from farflung.graph import Graph, load
from farflung.graph.store import save_graph
from farflung.methods.presets import PRESETS, preset
from farflung.partition import Partition, Shard
from farflung.run.config import read_yaml, resolve
from farflung.run.folder import RunFolder, read_json
from farflung.run.saved import SavedRun
from farflung.run.train import Run, execute, train
from farflung.tasks import ranking

GRAPH = "sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"
SMALL = {
    "task": "link-prediction",
    "method": "random-tma",
    "split": "random:0.8/0.1/0.1",
    "steps": 4,
    "interval": "2steps",
    "hidden": 8,
    "batch": 64,
    "fanouts": "3,3",
    "eval_negatives": 10,
    "threads": 1,
}
ABLE = [name for name, one in PRESETS.items() if "link-prediction" in one.tasks]
Edge = tuple[int, int]


def options(method: str) -> dict:
    """A short run of any method; the papers' settings are cut down to a small graph."""
    found = {**SMALL, "method": method}
    if preset(method).uses_option("partition.parts"):
        found["parts"] = 3
    if "clusters" in preset(method).for_links.get("partition", {}):
        found |= {"clusters": 20, "time_limit": None}
    if preset(method).uses_option("train.lazy"):  # two steps a layer, and no neighbours to sample
        found |= {"lazy": "weights"}
        del found["fanouts"]
    return found


def edges_of(graph: Graph) -> list[Edge]:
    return list(zip(graph.indices.tolist(), graph.destinations().tolist(), strict=True))


def edges_in(shard: Shard) -> list[Edge]:
    """All in-edges that a trainer holds, by global id."""
    ids = np.concatenate([shard.inner, shard.halo])
    return [
        (int(ids[u]), int(shard.inner[v]))
        for v in range(shard.num_inner)
        for u in shard.indices[shard.indptr[v] : shard.indptr[v + 1]]
    ]


def pair(edge: Edge) -> Edge:
    return min(edge), max(edge)


def held_out(saved: SavedRun) -> set[Edge]:
    """Pairs to validate or test on."""
    assert saved.links is not None
    sets = (saved.links.val, saved.links.test)
    return {pair(e) for s in sets for e in zip(s.source.tolist(), s.destination.tolist(), strict=True)}


def weights_of(run: Run) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in run.model.state_dict().values()])


def tiny(num_nodes: int = 60, symmetric: bool = True, **fields) -> Graph:  # type: ignore[no-untyped-def]
    """A random graph with features of four numbers."""
    rng = np.random.default_rng(0)
    fields = {"x": rng.standard_normal((num_nodes, 4)).astype(np.float32), **fields}
    ends = rng.integers(0, num_nodes, (2, 3 * num_nodes))
    return Graph.from_edges(*ends, num_nodes=num_nodes, symmetric=symmetric, name="tiny", **fields)


@pytest.mark.parametrize("method", ABLE)
def test_every_method_that_can_leaves_a_folder_that_scores_and_trains_the_same(method, tmp_path):
    run = train(GRAPH, out=tmp_path / "run", **options(method))
    metrics = read_json(tmp_path / "run" / "metrics.json")
    assert metrics == run.metrics
    pairs = len({pair(edge) for edge in edges_of(load(GRAPH))})
    share = round(0.1 * pairs)
    expected = {"train": pairs - 2 * share, "val": share, "test": share, "negatives": 10, "directed": False}
    assert metrics["links"] == expected
    assert run.config.metric == "mrr"
    assert metrics["rounds"] == len(run.history) == (tmp_path / "run" / "history.jsonl").read_text().count("\n") == 2
    assert all(tuple(record.val) == ranking.names() for record in run.history)
    last = run.history[-1].phase  # in lazy training the last layer's
    assert run.val["mrr"] == max(record.val["mrr"] for record in run.history if record.phase == last)

    saved = SavedRun.open(tmp_path / "run")
    assert saved.evaluate() == {"val": run.val, "test": run.test}
    assert len(held_out(saved)) == 2 * share
    manifest = RunFolder.open(tmp_path / "run").manifest()
    assert manifest["seeds"]["run"] == 0
    assert manifest["model"]["task"] == "link-prediction"
    assert manifest["graph"]["edges"] == run.graph.num_edges == 2 * (pairs - 2 * share)
    for one in (run, saved):
        with pytest.raises(InputError, match=r"predicts links.*farflung embed") as error:
            one.predict()
        assert "\n" not in str(error.value)

    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")), out=tmp_path / "again")
    assert again.config == run.config
    assert (again.metrics["test"], again.metrics["val"]) == (run.test, run.val)
    assert [record.val for record in again.history] == [record.val for record in run.history]
    assert again.ledger == run.ledger
    model = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert model[0] == model[1]


@pytest.mark.parametrize("method", [name for name in PRESETS if name not in ABLE])
def test_methods_that_cannot_are_refused_naming_those_that_can(method):
    with pytest.raises(InputError, match=f"method '{method}' cannot do task 'link-prediction'") as error:
        train(GRAPH, method=method, task="link-prediction")
    assert ", ".join(ABLE) in str(error.value) and "\n" not in str(error.value)


def test_links_and_negatives_depend_on_the_seed_and_on_nothing_else(tmp_path):
    def links(name: str, **changes):  # type: ignore[no-untyped-def]
        train(GRAPH, out=tmp_path / name, **{**SMALL, **changes})
        return SavedRun.open(tmp_path / name).links

    first = links("two", parts=2)
    for one in (
        links("five", parts=5),
        links("whole", method="centralised"),
        links("mlp", encoder="mlp", fanouts="full"),
    ):
        for name in ("source", "destination", "negatives"):
            assert np.array_equal(getattr(one.test, name), getattr(first.test, name))
            assert np.array_equal(getattr(one.val, name), getattr(first.val, name))
    other = links("seed", parts=2, seed=1)
    assert not np.array_equal(other.test.source, first.test.source)
    assert not np.array_equal(other.test.negatives, first.test.negatives)
    true = {pair(edge) for edge in edges_of(load(GRAPH))}
    for u, row in zip(first.test.source.tolist(), first.test.negatives.tolist(), strict=True):
        assert all(w != u and pair((u, w)) not in true for w in row)


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_trainer_holds_a_link_to_be_predicted_in_either_direction(on_disk, tmp_path):
    given = GRAPH
    if on_disk:
        farflung.cut(load(GRAPH), by="random", parts=3, seed=4).save(tmp_path / "parts")
        given = str(tmp_path / "parts")
    run = train(given, out=tmp_path / "run", **{**SMALL, "features": "gaussian:4"})
    saved = SavedRun.open(tmp_path / "run")
    assert saved.evaluate()["test"] == run.test
    hidden = held_out(saved)
    held = [edge for shard in run.partition.shards for edge in edges_in(shard)]
    assert run.partition.num_parts == 3
    assert not hidden & {pair(edge) for edge in held}
    assert sorted(held) == sorted(edge for edge in edges_of(load(GRAPH)) if pair(edge) not in hidden)

    degree = np.zeros(run.graph.num_nodes)
    for _, v in held:
        degree[v] += 1
    column = np.concatenate([np.asarray(shard.x)[:, -1] for shard in run.partition.shards])
    inner = np.concatenate([shard.inner for shard in run.partition.shards])
    assert np.allclose(column, np.log1p(degree)[inner])
    assert not np.allclose(column, np.log1p(load(GRAPH).in_degree())[inner])


def test_parts_in_memory_are_kept_with_the_links_in_them(tmp_path):
    parts = farflung.cut(load(GRAPH), by="supernode", clusters=20, parts=3, seed=2)
    run = train(parts, out=tmp_path / "run", **SMALL)
    assert run.partition.digest == parts.digest
    kept = Partition.open(tmp_path / "run" / "partition").graph()
    assert sorted(edges_of(kept)) == sorted(edges_of(load(GRAPH)))
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert again.metrics["test"] == run.test


@pytest.mark.parametrize("strings", [False, True])
def test_embeddings_come_back_under_the_original_ids(strings, tmp_path):
    ids = np.array([f"node-{(7 * i) % 60:02d}" for i in range(60)]) if strings else 1000 - np.arange(60)
    run = train(tiny().with_(ids=ids), out=tmp_path / "run", **SMALL)
    embeddings = SavedRun.open(tmp_path / "run").embed()
    assert np.array_equal(run.embed().rows, embeddings.rows) and np.array_equal(run.embed().ids, ids)
    embeddings.save(tmp_path / "embeddings.parquet")
    table = pq.read_table(tmp_path / "embeddings.parquet")
    assert table.column_names == ["id", "embedding"]
    assert table["id"].to_pylist() == ids.tolist()
    rows = np.array(table["embedding"].to_pylist(), dtype=np.float32)
    assert rows.shape == (60, 8) and np.array_equal(rows, embeddings.rows)
    assert np.isfinite(rows).all() and len(np.unique(rows, axis=0)) == 60
    with pytest.raises(InputError, match="no place for a file"):
        embeddings.save(tmp_path / "none" / "x.parquet")


def test_a_node_classifier_embeds_by_its_last_hidden_layer(tmp_path):
    train(GRAPH, method="retexo", parts=2, steps=4, hidden=6, threads=1, out=tmp_path / "run")
    saved = SavedRun.open(tmp_path / "run")
    assert saved.embed().rows.shape == (150, 6)


def test_all_scores_equal_is_the_mean_of_the_best_and_the_worst_rank():
    """Equal features and no message passing: equal embeddings; 9 negatives make rank 5.5."""
    graph = tiny(x=np.ones((60, 3), dtype=np.float32))
    for decoder in ("mlp", "dot", "distmult"):
        run = train(
            graph, **{**SMALL, "encoder": "mlp", "eval_negatives": 9, "links.decoder": decoder, "fanouts": "full"}
        )
        assert run.test["mrr"] == pytest.approx(1 / 5.5, abs=1e-12)
        assert (run.test["hits@1"], run.test["hits@10"], run.test["roc_auc"]) == (0, 1, 0.5)


def test_scores_that_are_not_finite_are_an_error_not_the_first_rank(tmp_path):
    with pytest.raises(FarflungError, match=r"not finite.*lower the learning rate"):
        train(GRAPH, out=tmp_path / "run", **{**SMALL, "lr": 1e30, "interval": "1steps"})
    metrics = read_json(tmp_path / "run" / "metrics.json")
    assert metrics["complete"] is False and metrics["test"] is None
    assert RunFolder.open(tmp_path / "run").read_checkpoint().best_score is None


def test_fewer_links_than_trainers_are_scored_and_none_are_null(tmp_path):
    pairs = len({pair(edge) for edge in edges_of(tiny()) if edge[0] != edge[1]})
    one = f"random:{1 - 1.2 / pairs}/0/{1.2 / pairs}"
    run = train(tiny(), out=tmp_path / "run", **{**SMALL, "split": one, "parts": 5})
    assert (run.metrics["links"]["val"], run.metrics["links"]["test"]) == (0, 1)
    assert set(run.val.values()) == {None} and run.test["mrr"] > 0
    assert run.metrics["best_round"] is None
    saved = SavedRun.open(tmp_path / "run")
    assert saved.evaluate() == {"val": run.val, "test": run.test}
    assert read_json(tmp_path / "run" / "metrics.json")["val"] == dict.fromkeys(ranking.names())


def test_rounds_are_judged_on_some_links_and_the_result_on_all():
    some, every = (train(GRAPH, **{**SMALL, "val_pairs": n}) for n in (5, None))
    assert [record.val for record in some.history] != [record.val for record in every.history]
    assert [r.val == every.val for r in every.history if r.round == every.metrics["best_round"]] == [True]
    assert np.array_equal(weights_of(train(GRAPH, **{**SMALL, "val_pairs": 10_000})), weights_of(every))


@pytest.mark.parametrize("labels", ["none", "single", "multilabel", "unknown"])
def test_labels_do_not_matter(labels):
    rng = np.random.default_rng(1)
    y = {
        "none": None,
        "single": np.arange(60) % 3,
        "multilabel": rng.integers(0, 2, (60, 4)).astype(np.uint8),
        "unknown": np.full(60, -1),
    }[labels]
    plain, labelled = train(tiny(), **SMALL), train(tiny(y=y), **SMALL)
    assert np.array_equal(weights_of(plain), weights_of(labelled))
    assert labelled.test == plain.test


@pytest.mark.parametrize(
    ("graph", "changes", "match"),
    [
        (tiny(x=None), {}, "'tiny' has no features: set features=degree or features=gaussian:64"),
        (Graph.from_edges([1], [1], num_nodes=9, x=np.ones((9, 2), np.float32)), {}, "no edges to predict"),
        (tiny(), {"split": "random:0/0.5/0.5"}, "no edge to train on"),
        (tiny(), {"split": "public"}, "unknown split of edges 'public'.*random.*given"),
        (tiny(), {"split": "given"}, "no edge column `split`.*random"),
        (tiny(), {"split": "random:20/30"}, "three shares"),
        (tiny(), {"metric": "accuracy"}, "'metric' cannot be 'accuracy': choose from mrr, hits@1"),
        (tiny(), {"parts": 99}, "99 parts.*60 nodes"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_training(graph, changes, match, tmp_path):
    with pytest.raises(InputError, match=match) as error:
        train(graph, out=tmp_path / "run", **{**SMALL, **changes})
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "history.jsonl").exists()


@pytest.mark.parametrize("features", ["degree", "gaussian:64"])
def test_a_graph_without_features_trains_on_made_ones(features):
    run = train(tiny(x=None), **{**SMALL, "features": features, "metric": "hits@10"})
    assert run.graph.num_features == (2 if features == "degree" else 65)
    assert run.config.metric == "hits@10"
    assert run.val["hits@10"] == max(record.val["hits@10"] for record in run.history)


@pytest.mark.parametrize("encoder", ["gcn", "sage"])
def test_directed_edges_are_predicted_as_they_point(encoder, tmp_path):
    graph = tiny(symmetric=False)
    run = train(graph, out=tmp_path / "run", **{**SMALL, "encoder": encoder, "method": "super-tma", "clusters": 12})
    links = SavedRun.open(tmp_path / "run").links
    edges = {edge for edge in edges_of(graph) if edge[0] != edge[1]}
    assert links.directed and run.metrics["links"]["directed"]
    assert sum(run.metrics["links"][name] for name in ("train", "val", "test")) == len(edges)
    assert set(zip(links.test.source.tolist(), links.test.destination.tolist(), strict=True)) <= edges
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test


def test_the_papers_split_leaves_reverses_in_training_and_says_so(tmp_path):
    run = train(GRAPH, out=tmp_path / "run", **{**SMALL, "split": "directed:0.8/0.1/0.1"})
    saved = SavedRun.open(tmp_path / "run")
    assert held_out(saved) & {pair(edge) for edge in edges_of(run.graph)}
    assert any("reverses of test edges" in note for note in RunFolder.open(run.folder).manifest()["graph"]["notes"])


@pytest.mark.parametrize("split", ["given", None])
def test_a_type_that_occurs_in_the_test_alone_is_scored(split, tmp_path):
    """The column is the default where there is one."""
    rng = np.random.default_rng(3)
    source, types = rng.integers(0, 40, 200), np.arange(200) % 3
    ends = source, (source + rng.integers(1, 40, 200)) % 40
    column = np.where(types == 2, 2, np.arange(200) % 2 * (np.arange(200) % 20 == 1))
    graph = Graph.from_edges(
        *ends,
        num_nodes=40,
        edge_type=types,
        edge_columns={"split": column},
        x=np.eye(40, dtype=np.float32),
        name="typed",
    )
    changes = {**SMALL, "links.decoder": "distmult", "split": split}
    run = train(graph, out=tmp_path / "run", **changes)
    assert run.config.split == "given"
    assert run.graph.edge_type.max() == 1 and run.metrics["links"]["directed"]
    assert run.model.decoder.relations.shape == (3, 8)
    assert np.isfinite(run.test["mrr"])
    assert SavedRun.open(tmp_path / "run").evaluate() == {"val": run.val, "test": run.test}


def test_a_graph_file_of_which_only_the_links_count(tmp_path):
    save_graph(tiny(x=None), tmp_path / "g.npz")
    run = train(
        str(tmp_path / "g.npz"), out=tmp_path / "run", **{**SMALL, "features": "degree", "method": "centralised"}
    )
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test
    save_graph(tiny(62, x=None), tmp_path / "g.npz")
    with pytest.raises(InputError, match="have changed"):
        SavedRun.open(tmp_path / "run")


def test_negatives_of_the_whole_graph_are_fetched_and_counted():
    local, remote = (train(GRAPH, **{**SMALL, "negatives": name, "parts": 3}) for name in ("local", "global"))
    assert "negatives" not in local.metrics["bytes"]
    rows = remote.metrics["bytes"]["negatives"] / (8 + 4 * 8)  # an id there, eight numbers back
    assert rows == 2 * 3 * 4096, "rounds, trainers, rows"
    assert not np.array_equal(weights_of(local), weights_of(remote))


def test_a_knowledge_graph_is_learned_far_above_chance(data_dir):
    run = train(
        "kg_umls", task="link-prediction", method="random-tma", parts=2, features="gaussian:16", hidden=32, lr=0.01,
        steps=120, interval="40steps", batch=1024, fanouts="5,5", eval_negatives=50, threads=1,
        **{"links.decoder": "distmult"},
    )  # fmt: skip
    assert run.config.split == "given"
    assert (run.metrics["links"]["val"], run.metrics["links"]["test"]) == (652, 661)
    chance = sum(1 / rank for rank in range(1, 52)) / 51
    assert run.test["mrr"] > 3 * chance


@pytest.mark.parametrize(("decoder", "kept"), [("mlp", 0), ("distmult", 1)])
def test_a_decoder_that_is_blind_to_types_trains_on_no_pair_that_it_is_tested_on(decoder, kept):
    """0 -> 1 trains under type 0 and tests under type 1: one pair for mlp, two triples for distmult."""
    source, destination = np.array([0, 0, 2, 3, 4, 5, 6, 7]), np.array([1, 1, 3, 4, 5, 6, 7, 0])
    graph = Graph.from_edges(
        source,
        destination,
        num_nodes=8,
        edge_type=np.array([0, 1, 0, 0, 0, 0, 0, 0]),
        edge_columns={"split": np.array([0, 2, 0, 0, 0, 0, 1, 0])},
        x=np.eye(8, dtype=np.float32),
    )
    run = train(graph, **{**SMALL, "links.decoder": decoder, "split": "given", "eval_negatives": 3})
    inside = run.graph.indices[run.graph.indptr[1] : run.graph.indptr[2]]
    assert np.count_nonzero(inside == 0) == kept
    assert run.links.test.count == 1
