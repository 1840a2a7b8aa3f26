"""Options of batches, links and aggregation: what is accepted, what is refused, and what they do to a run."""

import numpy as np
import pytest

import farflung
from farflung.errors import InputError
from farflung.graph import load
from farflung.methods.config import Seconds
from farflung.methods.presets import PRESETS
from farflung.partition import setup_bytes
from farflung.run.config import OPTIONS, parse_assignments, read_yaml, resolve
from farflung.run.folder import read_json
from farflung.run.saved import SavedRun
from farflung.run.source import prepare
from farflung.run.train import Run, execute, train
from farflung.team import FixedCostClock

GRAPH = "sbm:nodes=150,classes=3,degree=6,homophily=0.9,features=8,seed=1"
SMALL = {
    "method": "random-tma",
    "parts": 3,
    "steps": 6,
    "interval": "2steps",
    "hidden": 8,
    "threads": 1,
    "keep": "last",
}
LINKS = {"task": "link-prediction", "eval_negatives": 10, "batch": 64, "fanouts": "3,3"}
TASKS = [{}, LINKS]
BOTH = pytest.mark.parametrize("task", TASKS, ids=["nodes", "links"])


def weights_of(run: Run) -> np.ndarray:
    return np.concatenate([value.numpy().ravel() for value in run.model.state_dict().values()])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("10,25", (10, 25)),
        ("10/25", (10, 25)),
        (" 10 , 25 ", (10, 25)),
        ([10, 25], (10, 25)),
        ("full", None),
        (None, None),
    ],
)
def test_fan_outs_can_be_written_so(written, meant):
    config = resolve({"graph": "g", "method": "random-tma", "task": "link-prediction", "fanouts": written})
    assert config.sample.fanouts == meant
    assert config.dump()["sample"]["fanouts"] == ("full" if meant is None else "10,25")


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_fan_out_per_layer(layers):
    for count in (1, 2, 3):
        given = {"graph": "g", "method": "centralised", "layers": layers, "fanouts": ",".join(["4"] * count)}
        if count == layers:
            assert resolve(given).sample.fanouts == (4,) * count
            continue
        with pytest.raises(InputError, match=f"{count} numbers for {layers} layers: give one per layer, or 'full'"):
            resolve(given)


LINK = {"task": "link-prediction"}
TIMED = {"interval": "1s", "time_limit": "3s"}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        *(
            ({"fanouts": text}, r"option 'sample.fanouts'.*are no fan-outs: write one number per layer as '10,25'")
            for text in ("10,x", "0,5", "-1,5", "10,,25", "1.5,2", "", "ten", "10;25", "9" * 20 + ",5")
        ),
        ({"batch": 0}, r"option 'sample.batch' cannot be '0'.*greater than or equal to 1"),
        ({"batch": "some"}, r"option 'sample.batch' cannot be 'some'"),
        ({"replace": "maybe"}, r"option 'sample.replace' cannot be 'maybe'"),
        ({"links.decoder": "dot"}, r"option 'links.decoder' does nothing for task 'node-classification'.*link-pred"),
        ({"eval_negatives": 7}, r"option 'links.eval_negatives' does nothing for task 'node-classification'"),
        ({"links.mask_targets": False}, r"option 'links.mask_targets' does nothing for task 'node-classification'"),
        ({"trim": 0.1}, r"'train.trim' does nothing with train.aggregation=mean.*set train.aggregation=trimmed-mean"),
        ({"trim": 0.1, "aggregation": "median"}, r"'train.trim' does nothing with train.aggregation=median"),
        ({"trim": 0.5, "aggregation": "trimmed-mean"}, r"'train.trim' cannot be '0.5'.*less than 0.5"),
        ({"outer_lr": 0.5}, r"'train.outer_lr' does nothing with .*set train.aggregation=nesterov"),
        ({"aggregation": "medoid"}, r"'train.aggregation' cannot be 'medoid'.*'median'.*'nesterov'"),
        ({"moments": "drop"}, r"'train.moments' cannot be 'drop'.*'keep' or 'average'"),
        ({"redeal": -1}, r"'train.redeal' cannot be '-1'"),
        ({"redeal": 2, "by": "mincut"}, r"'train.redeal' needs parts that are drawn.*mincut.*random or supernode"),
        ({"redeal": 2, "method": "psgd-pa"}, r"'train.redeal' needs parts that are drawn.*mincut"),
        ({"correction_steps": 2}, r"'random-tma' does not use option 'train.correction_steps'.*llcg"),
        ({**LINK, "pool": 1e20, "negatives": "global"}, r"'links.pool' cannot be '1e\+20'"),
        ({"trim": 0, "aggregation": "trimmed-mean"}, r"'train.trim' cannot be '0'.*greater than 0"),
        ({"soup": True, "keep": "last"}, r"'train.soup' does nothing with train.keep=last"),
        ({**TIMED, "deadline": "1s"}, r"'train.deadline' \(1 s\) ends before an interval of 1s: give the interval"),
        (
            {**LINK, "negatives": "global", "method": "centralised"},
            r"'links.negatives' cannot be 'global' with method 'centralised'",
        ),
        ({"encoder": "mlp", "fanouts": "3,3"}, r"'sample.fanouts' does nothing with model.encoder=mlp"),
        ({"replace": True}, r"'sample.replace' does nothing with sample.fanouts=full.*set sample.fanouts=10,25"),
        ({"clip_from": 2}, r"'optim.clip_from' does nothing with optim.clip=None.*set optim.clip=1.0"),
        ({**LINK, "pool": 10}, r"'links.pool' does nothing with links.negatives=local.*set links.negatives=global"),
        ({**LINK, "eval_negatives": 0}, r"'links.eval_negatives' cannot be '0'"),
        ({**LINK, "val_pairs": 0}, r"'links.val_pairs' cannot be '0'"),
        ({**LINK, "per_positive": 0}, r"'links.per_positive' cannot be '0'"),
        ({**LINK, "links.decoder": "bilinear"}, r"'links.decoder' cannot be 'bilinear'.*'mlp', 'dot' or 'distmult'"),
        ({**LINK, "negatives": "hard"}, r"'links.negatives' cannot be 'hard'.*'local' or 'global'"),
        ({**LINK, "interval": "1s"}, r"'train.interval' is a time.*train.time_limit"),
        ({**LINK, **TIMED, "steps": 5}, r"'train.steps' does nothing with an interval in time"),
        ({"task": "regression"}, r"unknown task 'regression': choose from node-classification, link-prediction"),
        ({"method": "gcn-kipf", **LINK}, r"'gcn-kipf' cannot do task 'link-prediction': choose from centralised, "),
        (
            {"method": "super-tma-reddit", "task": "node-classification"},
            r"'super-tma-reddit' cannot do task 'node-classification': choose from centralised, ",
        ),
        ({"method": "retexo", "fanouts": "5,5"}, r"'retexo' does not use option 'sample.fanouts'.*random-tma"),
        ({"method": "retexo", "links.decoder": "dot"}, r"'links.decoder' does nothing for task 'node-classification'"),
        (
            {"method": "retexo", **LINK, "negatives": "global"},
            r"'links.negatives' cannot be 'global' with method 'retexo'",
        ),
        ({"method": "retexo", **LINK, "fanouts": "5,5"}, r"'retexo' does not use option 'sample.fanouts'"),
        (
            {"method": "retexo", **LINK, "mask_targets": True},
            r"'links.mask_targets' cannot be true with method 'retexo'.*frozen.*set links.mask_targets=false",
        ),
        (
            {"method": "retexo", **LINK, **TIMED},
            r"'train.interval' is a time \(1s\), and gradients are steps.*train.lazy=weights",
        ),
        ({"method": "retexo", **LINK, "aggregation": "median"}, r"does nothing with train.lazy=gradients"),
        ({"method": "retexo", "wire": "int4"}, r"'train.wire' cannot be 'int4'.*'float32', 'float16' or 'int8'"),
        ({"wire": "int8"}, r"'random-tma' does not use option 'train.wire'.*retexo"),
        (
            {"method": "retexo", "wire": "int8", "encoder": "mlp"},
            r"'train.wire' does nothing with model.encoder=mlp",
        ),
        ({"method": "retexo", "patience": 0}, r"'train.patience' cannot be '0'"),
        ({"first": "mlp", "encoder": "mlp"}, r"'model.first' does nothing with model.encoder=mlp"),
        ({"method": "retexo", "first": "mlp", "layers": 1}, r"there is no layer after it \(model.layers=1\)"),
        ({**LINK, "first": "mlp"}, r"'model.first' cannot be 'mlp' for links"),
        ({"method": "retexo", **LINK, "first": "mlp"}, r"'model.first' cannot be 'mlp' for links"),
        ({"method": "retexo", "soup": True}, r"'retexo' does not use option 'train.soup'"),
        (
            {"method": "retexo", "interval": "5steps"},
            r"'train.interval' does nothing with train.lazy=gradients.*weights",
        ),
        ({"method": "retexo", "aggregation": "median"}, r"'train.aggregation' does nothing with train.lazy=gradients"),
        ({"method": "retexo", "lazy": "both"}, r"'train.lazy' cannot be 'both'.*'gradients' or 'weights'"),
        ({"lazy": "weights"}, r"'random-tma' does not use option 'train.lazy'.*retexo"),
        ({**LINK, "method": "ggs", "negatives": "local"}, r"'ggs' does not use option 'links.negatives'.*random-tma"),
        ({**LINK, "method": "ggs", "pool": 10}, r"'ggs' does not use option 'links.pool'"),
        ({"method": "ggs", "soup": True}, r"'ggs' does not use option 'train.soup'"),
        ({"method": "ggs", "redeal": 2}, r"'ggs' does not use option 'train.redeal'"),
        ({"method": "ggs", "layers": 3}, r"'sample.fanouts' has 2 numbers for 3 layers"),
    ],
)
def test_what_cannot_be_or_does_nothing_is_refused_in_one_line(given, match):
    with pytest.raises(InputError, match=match) as error:
        resolve({"graph": "g", "method": "random-tma", **given})
    assert "\n" not in str(error.value)


def test_what_needs_another_option_is_accepted_with_it():
    given = {"graph": "g", "method": "random-tma"}
    assert resolve({**given, "aggregation": "trimmed-mean", "trim": "0.3"}).train.trim == 0.3
    assert resolve({**given, "aggregation": "nesterov", "outer_momentum": 0}).train.outer_momentum == 0
    assert resolve({**given, **LINK, "negatives": "global", "pool": 10}).links.pool == 10
    assert resolve({"graph": "g", "method": "retexo", "lazy": "weights", "interval": "5steps"}).train.interval.n == 5
    lazy = {"graph": "g", "method": "retexo"}
    assert resolve({**lazy, **LINK}).links.mask_targets is False
    assert resolve({**lazy, **LINK, "interval": "5steps", "mask_targets": "false"}).train.interval.n == 5
    assert resolve({**lazy, **LINK, **TIMED, "lazy": "weights"}).train.interval == Seconds(s=1.0)
    assert resolve({**lazy, "first": "mlp", "wire": "int8", "patience": 3, "residual": True}).train.patience == 3
    assert resolve({**given, **LINK, **TIMED}).train.interval == Seconds(s=1.0)
    assert resolve({**given, "redeal": 2, "by": "supernode"}).train.redeal == 2
    assert parse_assignments(["fanouts=10/25", "links.mask_targets=false"]) == {
        "sample.fanouts": "10/25",
        "links.mask_targets": "false",
    }


@BOTH
def test_an_interval_in_time_repeats_on_a_clock_of_fixed_costs(task):
    """A step takes 1/8 s: 8 in a second, and 4 in the half that is left of the limit."""
    options = {**SMALL, **task, "interval": "1s", "time_limit": "2.5s", "link": "none", "graph": GRAPH}
    del options["steps"]
    runs = [execute(resolve(options), clock=FixedCostClock({"step": 0.125})) for _ in range(2)]
    assert [dict(record.steps) for record in runs[0].history] == [dict.fromkeys(range(3), n) for n in (8, 8, 4)]
    assert [record.seconds for record in runs[0].history] == [1.0, 2.0, 2.5]
    assert runs[0].metrics["seconds"]["virtual"] == 2.5
    assert np.array_equal(weights_of(runs[0]), weights_of(runs[1]))


@BOTH
@pytest.mark.parametrize("aggregation", ["examples", "median", "trimmed-mean", "nesterov"])
def test_aggregations_send_as_many_bytes_as_a_mean_and_give_other_weights(task, aggregation):
    mean, other = (train(GRAPH, **SMALL, **task, aggregation=name) for name in ("mean", aggregation))
    parameters = mean.metrics["parameters"]
    assert len(weights_of(mean)) == parameters
    for run in (mean, other):
        assert run.metrics["bytes"]["weights"] == 4 * 3 * parameters + 3 * 8 * 3 * parameters
    assert not np.array_equal(weights_of(mean), weights_of(other))


@BOTH
def test_a_soup_is_a_round_of_its_own_and_no_worse_than_any_before(task, tmp_path):
    options = {**SMALL, **task, "keep": "best"}
    run = train(GRAPH, out=tmp_path / "run", **options, soup=True)
    plain = train(GRAPH, **options)
    metric = run.config.metric
    assert [record.phase for record in run.history] == ["train"] * 3 + ["soup"]
    assert [record.val for record in run.history[:3]] == [record.val for record in plain.history]
    assert run.history[-1].val[metric] >= max(record.val[metric] for record in run.history[:3])
    assert run.val[metric] >= plain.val[metric]
    assert run.metrics["rounds"] == 4
    assert run.metrics["last"] == plain.metrics["last"]
    assert run.ledger.by_phase()["soup"] == run.ledger.total("evaluation", "soup") > 0
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test


@BOTH
def test_averaged_moments_are_sent_both_ways_with_the_weights(task):
    own, shared = (train(GRAPH, **SMALL, **task, moments=name) for name in ("keep", "average"))
    parameters = own.metrics["parameters"]
    rounds, trainers = 3, 3
    more = shared.metrics["bytes"]["weights"] - own.metrics["bytes"]["weights"]
    assert more == rounds * trainers * 2 * 2 * 4 * parameters
    assert not np.array_equal(weights_of(own), weights_of(shared))


@BOTH
@pytest.mark.parametrize("by", ["random", "supernode"])
def test_parts_dealt_anew_train_the_same_again_from_the_folder(task, by, tmp_path):
    options = {**SMALL, **task, "by": by, **({"clusters": 20} if by == "supernode" else {})}
    run = train(GRAPH, out=tmp_path / "run", redeal=1, **options)
    still = train(GRAPH, **options)
    source = prepare(run.config)
    anew = sum(setup_bytes(shard) for number in (1, 2) for shard in source.deal(number))
    assert run.ledger.total("setup", "redeal") == anew, "before each round but the first"
    assert run.metrics["bytes"]["setup"] == still.metrics["bytes"]["setup"] + anew
    assert run.partition.digest == still.partition.digest, "the first parts"
    assert not np.array_equal(weights_of(run), weights_of(still))
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert np.array_equal(weights_of(again), weights_of(run))


@BOTH
@pytest.mark.parametrize("by", ["random", "supernode"])
def test_parts_of_a_folder_that_were_drawn_can_be_dealt_anew(task, by, tmp_path):
    cut = farflung.cut(load(GRAPH), by=by, parts=3, **({"clusters": 20} if by == "supernode" else {}))
    cut.save(tmp_path / "parts")
    options = {**SMALL, **task, "redeal": 1}
    run = train(str(tmp_path / "parts"), out=tmp_path / "run", **options)
    assert run.partition.digest == cut.digest
    assert run.ledger.total("setup", "redeal") > 0
    assert SavedRun.open(tmp_path / "run").evaluate()["test"] == run.test
    again = execute(resolve({}, file=read_yaml(tmp_path / "run" / "config.yaml")))
    assert np.array_equal(weights_of(again), weights_of(run))


@pytest.mark.parametrize("by", ["mincut", "given"])
def test_parts_that_were_not_drawn_cannot_be_dealt_anew(by, tmp_path):
    graph = load(GRAPH).with_(columns={"side": np.arange(150) % 3})
    farflung.cut(graph, by=by, parts=3, **({"given": "side"} if by == "given" else {})).save(tmp_path / "parts")
    for given, more in (
        (str(tmp_path / "parts"), {}),
        (graph, {"by": by, **({"given": "side"} if by == "given" else {})}),
    ):
        with pytest.raises(InputError, match=f"'train.redeal' needs parts that are drawn.*{by}") as error:
            train(given, out=tmp_path / "run", redeal=1, **SMALL, **more)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run" / "history.jsonl").exists()


@BOTH
def test_llcg_sends_every_part_to_the_server_and_otherwise_what_psgd_pa_sends(task):
    llcg, plain = (train(GRAPH, **{**SMALL, **task, "method": method}) for method in ("llcg", "psgd-pa"))
    sent, usual = llcg.metrics["bytes"], plain.metrics["bytes"]
    assert sent["setup"] == 2 * usual["setup"]
    assert [sent[kind] for kind in ("weights", "evaluation")] == [usual[kind] for kind in ("weights", "evaluation")]
    assert sent.keys() == usual.keys()
    assert not np.array_equal(weights_of(llcg), weights_of(plain))
    idle = train(GRAPH, **{**SMALL, **task, "method": "llcg", "correction_steps": 0})
    assert np.array_equal(weights_of(idle), weights_of(plain))


def test_where_all_step_together_a_deadline_may_be_shorter_than_an_interval():
    config = resolve({"graph": "g", "method": "ggs", **TIMED, "deadline": "0.5s"})
    assert (config.train.deadline, config.train.interval) == (0.5, Seconds(s=1))


def test_global_sampling_says_where_its_negatives_are_from_and_how_it_samples():
    config = resolve({"graph": "g", "method": "ggs", **LINK})
    assert (config.links.negatives, config.sample.fanouts, config.partition.by) == ("global", (10, 25), "random")
    nodes = resolve({"graph": "g", "method": "ggs"})
    assert (nodes.sample.fanouts, nodes.sample.batch, nodes.partition.parts) == ((10, 25), 512, 4)


@pytest.mark.parametrize("name", [path for path in OPTIONS if path.startswith("links.")])
def test_every_option_of_links_is_for_links_alone(name):
    """Set to its own default by hand, too."""
    for method in (m for m, one in PRESETS.items() if len(one.tasks) == 2 and one.uses_option(name)):
        default = resolve({"graph": "g", "method": method}).dump()["links"][name.partition(".")[2]]
        with pytest.raises(InputError, match=f"option '{name}' does nothing"):
            resolve({"graph": "g", "method": method, name: default})


def test_batches_of_nodes_learn_as_the_whole_part_does(tmp_path):
    options = {**SMALL, "steps": 40, "interval": "20steps", "split": "random:0.5/0.2/0.3", "lr": 0.02}
    batch = {"batch": 16, "fanouts": "4,4"}
    ways = {"batch": batch, "full": {}, "replace": {**batch, "replace": True}}
    runs = [train(GRAPH, out=tmp_path / name, **options, **some) for name, some in ways.items()]
    assert all(run.test["accuracy"] > 0.6 for run in runs), "three classes: 1/3 is chance"
    assert len({weights_of(run).tobytes() for run in runs}) == 3
    assert read_json(tmp_path / "batch" / "metrics.json")["links"] is None
    assert SavedRun.open(tmp_path / "batch").evaluate() == {"val": runs[0].val, "test": runs[0].test}
