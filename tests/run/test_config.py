"""Options: names, order of resolution, round trip, and errors that are one line."""

import re

import pytest
import yaml

from farflung.errors import InputError
from farflung.methods.config import Seconds, Steps
from farflung.methods.presets import PRESETS, preset, users_of
from farflung.nn import ModelConfig
from farflung.run.config import (
    OPTIONS,
    TASKS,
    RunConfig,
    base_options,
    flatten,
    option_path,
    parse_assignments,
    preset_yaml,
    read_yaml,
    resolve,
)


def refused(match: str, *args, **kwargs) -> str:
    with pytest.raises(InputError, match=match) as error:
        resolve(*args, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_later_layers_win():
    file = {"model.hidden": 32, "optim.lr": 0.5, "method": "super-tma"}
    config = resolve({"graph": "digits", "lr": "0.25"}, file=file)
    assert config.train.interval == Steps(n=10)  # default
    assert config.partition.by == "supernode"  # preset
    assert config.partition.parts == 3
    assert config.model.hidden == 32  # file
    assert config.optim.lr == 0.25  # by hand


def test_short_dotted_nested_and_hyphenated_names_mean_the_same():
    values = [{"time_limit": "4h"}, {"time-limit": "4h"}, {"train.time_limit": "4h"}, {"train": {"time_limit": "4h"}}]
    for given in values:
        assert resolve({"graph": "digits", **given}).train.time_limit == 4 * 3600


def test_seed_is_the_runs_own_not_the_partitions():
    config = resolve({"graph": "digits", "seed": 3, "partition.seed": 4})
    assert (config.seed, config.partition.seed) == (3, 4)


WHAT_CAN = [(method, task) for method, one in PRESETS.items() for task in one.tasks]


@pytest.mark.parametrize(("method", "task"), WHAT_CAN)
def test_yaml_round_trip_is_exact_for_every_method_and_task(method, task, tmp_path):
    given = {"graph": "cora", "method": method, "task": task, "lr": 1e-3, "time_limit": "1.5min", "seed": 7}
    if method != "retexo":
        given["interval"] = "2s"
    config = resolve(given)
    assert config.task == task
    assert RunConfig(**yaml.safe_load(config.to_yaml())) == config
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert resolve({}, file=read_yaml(path)) == config


@pytest.mark.parametrize(("method", "task"), WHAT_CAN)
def test_printed_presets_are_complete_and_can_be_read_back(method, task):
    printed = yaml.safe_load(preset_yaml(method, task))
    same = resolve({"graph": "digits", "method": method, "task": task})
    assert resolve({"graph": "digits"}, file=flatten(printed)) == same
    used = {path for path in OPTIONS if preset(method).uses_option(path)} - {"graph"}
    if task != "link-prediction":
        used = {path for path in used if not path.startswith("links.")}
    assert set(flatten(printed)) == used
    if task == preset(method).tasks[0]:
        assert preset_yaml(method) == preset_yaml(method, task)


@pytest.mark.parametrize("method", PRESETS)
def test_a_method_is_refused_the_tasks_that_it_cannot_do(method):
    for task in set(TASKS) - set(preset(method).tasks):
        able = ", ".join(name for name, other in WHAT_CAN if other == task)
        message = refused(f"method '{method}' cannot do task '{task}'", {"graph": "g", "method": method, "task": task})
        assert message.endswith(able)


def test_presets_name_only_options_that_exist_and_that_they_use():
    for one in PRESETS.values():
        for path in one.uses:
            assert path in OPTIONS or any(option.startswith(path.rstrip("*")) for option in OPTIONS), path
        assert all(one.uses_option(path) for path in flatten(one.defaults))


def test_compared_methods_share_model_optimiser_and_budget():
    reference = base_options("retexo")
    for method in ("centralised", "random-tma", "super-tma", "psgd-pa", "llcg"):
        mine = base_options(method)
        for path in reference:
            if path.startswith(("model.", "optim.")) or path == "train.steps":
                assert mine[path] == reference[path], (method, path)


def test_compared_methods_share_all_but_the_parts_where_links_are_predicted():
    reference = base_options("centralised", "link-prediction")
    assert (reference["model.encoder"], reference["optim.clip"], reference["sample.batch"]) == ("sage", 1.0, 4096)
    for method in ("random-tma", "super-tma", "psgd-pa", "llcg"):
        mine = base_options(method, "link-prediction")
        differing = {path for path in reference if mine[path] != reference[path]}
        assert all(path == "method" or path.startswith("partition.") for path in differing)


@pytest.mark.parametrize(
    ("method", "split", "batch", "hidden"),
    [
        ("super-tma-citation2", "given", 65_536, 256),
        ("super-tma-reddit", "directed:0.998/0.001/0.001", 131_072, 256),
        ("super-tma-mag240m", None, 4096, 64),
    ],
)
def test_the_papers_presets_have_the_published_constants(method, split, batch, hidden):
    config = resolve({"graph": "g", "method": method})
    assert (config.task, config.split, config.model.hidden) == ("link-prediction", split, hidden)
    assert (config.model.encoder, config.model.layers, config.model.activation) == ("sage", 2, "prelu")
    assert (config.sample.fanouts, config.sample.batch) == ((10, 25), batch)
    assert (config.train.interval, config.train.time_limit) == (Seconds(s=120.0), 4 * 3600)
    assert (config.partition.by, config.partition.parts, config.partition.clusters) == ("supernode", 3, 15_000)
    assert (config.optim.lr, config.optim.clip, config.optim.clip_from) == (1e-3, 1.0, 2)
    assert (config.links.decoder, config.links.eval_negatives, config.links.per_positive) == ("mlp", 1000, 1)
    assert (config.links.negatives, config.links.mask_targets) == ("local", False)


def test_the_classic_preset_has_the_published_constants():
    config = resolve({"graph": "cora", "method": "gcn-kipf"})
    published = {"encoder": "gcn", "layers": 2, "hidden": 16, "norm": "none", "activation": "relu", "dropout": 0.5}
    assert config.model == ModelConfig(**published)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.decay) == (0.01, 5e-4, "first")
    assert (config.split, config.normalise, config.train.steps) == ("public", "row", 200)


def test_unknown_option_lists_what_exists_and_guesses():
    message = refused("unknown option 'hiden'", {"graph": "digits", "hiden": 3})
    assert "did you mean 'hidden'" in message
    assert all(path in message for path in OPTIONS)
    message = refused("unknown option 'model.width'", {"graph": "digits", "model.width": 3})
    assert "model.hidden" in message
    assert "optim.lr" not in message


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"hidden": 0}, r"option 'model.hidden' cannot be '0'.*greater than or equal to 1"),
        ({"hidden": "many"}, r"option 'model.hidden' cannot be 'many'.*integer"),
        ({"encoder": "gatt"}, r"unknown encoder 'gatt' \(did you mean 'gat'\?\): choose from gcn, sage, gat, mlp"),
        ({"interval": "5 pigs", "method": "super-tma"}, r"option 'train.interval': '5 pigs' is no interval"),
        ({"link": "carrier-pigeon"}, r"option 'link': 'carrier-pigeon'.*datacentre"),
        (
            {"method": "retexxo"},
            r"unknown method 'retexxo' \(did you mean 'retexo'\?\): choose from centralised, .*retexo",
        ),
        ({"model": 3}, "section|unknown option 'model'"),
        ({"seed": -1}, "option 'seed' cannot be '-1'"),
    ],
)
def test_wrong_values_are_named_in_one_line(given, match):
    refused(match, {"graph": "digits", **given})


def test_a_missing_graph_is_said():
    refused("option 'graph' is missing", {})


def test_an_option_that_the_method_does_not_use_is_an_error_naming_those_that_do():
    message = refused("does not use option 'partition.parts'", {"graph": "g", "method": "centralised", "parts": 3})
    assert ", ".join(users_of("partition.parts")) in message
    refused("does not use option 'train.soup'", {"graph": "g", "method": "retexo", "soup": "true"})


def test_a_complete_file_may_hold_unused_options_with_their_defaults_only(tmp_path):
    config = resolve({"graph": "digits", "method": "centralised"})
    complete = flatten(config.dump())
    assert resolve({}, file=complete) == config
    refused("does not use option 'partition.parts'", {}, file={**complete, "partition.parts": 9})


def test_a_file_and_a_flag_may_not_name_different_methods():
    refused("contradicts 'method: retexo'", {"graph": "g", "method": "super-tma"}, file={"method": "retexo"})


def test_a_partition_option_of_another_way_of_cutting_is_an_error():
    refused("partition.by=supernode", {"graph": "g", "clusters": 10})
    refused("partition.by=mincut", {"graph": "g"}, file={"partition.balance": "nodes"})
    assert resolve({"graph": "g", "by": "supernode", "clusters": 10}).partition.clusters == 10


def test_an_interval_in_time_needs_a_time_limit():
    refused("time_limit", {"graph": "g", "method": "super-tma", "interval": "2s"})
    config = resolve({"graph": "g", "method": "super-tma", "interval": "2s", "time_limit": "60s"})
    assert config.train.interval == Seconds(s=2.0)


def test_assignments():
    assert parse_assignments(["lr=1e-2", "train.deadline=null", "given=a=b"]) == {
        "optim.lr": "1e-2",
        "train.deadline": None,
        "partition.given": "a=b",
    }
    for text in ("lr", "=3", ""):
        with pytest.raises(InputError, match="option=value"):
            parse_assignments([text])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("model: [1, 2]", "section"),
        ("- a\n- b", "holds no options"),
        ("a: b: c", "is no YAML"),
        ("modle:\n  hidden: 3", "unknown option 'modle'"),
        (b"\xff\xfe\x00", "is no YAML"),
    ],
)
def test_a_broken_file_is_named(content, match, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=match) as error:
        read_yaml(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "no.yaml"))):
        read_yaml(tmp_path / "no.yaml")


def test_replace_validates():
    config = resolve({"graph": "digits"})
    assert config.replace(partition__parts=2, seed=5).partition.parts == 2
    with pytest.raises(InputError, match=r"partition.parts"):
        config.replace(partition__parts=0)


def test_every_option_says_what_it_means():
    assert all(OPTIONS.values())
    assert option_path("parts") == "partition.parts"
