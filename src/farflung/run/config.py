"""Configuration of a run: every option by its dotted path, resolved from defaults, preset, file and flags.

Later wins: defaults of `RunConfig` < preset of the method < YAML file < flags and `--set`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from farflung.errors import InputError, did_you_mean
from farflung.methods.config import Seconds, TrainConfig
from farflung.methods.presets import PRESETS, preset, users_of
from farflung.nn.config import ModelConfig
from farflung.nn.optim import OptimConfig
from farflung.partition.config import PartitionConfig
from farflung.tasks.batches import SampleConfig
from farflung.tasks.link_prediction import LinkConfig
from farflung.team.link import parse_profile


class RunConfig(BaseModel):
    """All that determines a run, apart from the data themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    graph: str = Field(description="name of a data set, an .npz file or a partition folder")
    symmetric: bool = Field(False, description="add the missing reverse of every edge on loading")
    task: Literal["node-classification", "link-prediction"] = Field(
        "node-classification", description="what the model learns: classes of nodes, or which edges there are"
    )
    split: str | None = Field(
        None,
        description="of nodes: public, public:I, retexo, random, random:0.6/0.2/0.2 (shares) or random:20/30 (per "
        "class), default: public where the graph has one, else random; of links: random, random:0.9/0.05/0.05, "
        "given, directed:0.9/0.05/0.05, default: given where the graph has one, else random",
    )
    inductive: bool = Field(
        False, description="train without validation and test nodes and their edges; they are there for evaluation"
    )
    features: str = Field("given", description="given, degree or gaussian:D")
    normalise: Literal["none", "row"] = Field("none", description="row: features of each node sum to 1")
    method: str = Field("retexo", description="a named method: " + ", ".join(PRESETS))
    model: ModelConfig = ModelConfig()
    initial: str | None = Field(
        None, description="safetensors file of weights to start from, such as another run's model.safetensors"
    )
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()
    links: LinkConfig = LinkConfig()
    partition: PartitionConfig = PartitionConfig()
    link: Annotated[str, AfterValidator(lambda text: str(parse_profile(text)))] = Field(
        "datacentre", description="link profile: its name, or up=..,down=..,latency=.. (models the network's time)"
    )
    metric: str | None = Field(None, description="validation metric to maximise; default: the task's own")
    seed: int = Field(0, ge=0, description="seed of everything that is drawn (>= 0)")
    dtype: Literal["float32", "float64"] = Field("float32", description="of weights and embeddings")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default: as many as PyTorch takes")

    def dump(self) -> dict[str, Any]:
        """Nested dict of JSON and YAML scalars; `RunConfig(**config.dump()) == config`."""
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """SHA-256 over all options, hexadecimal."""
        return hashlib.sha256(json.dumps(self.dump(), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """`dump` as YAML, every option; `read_yaml` and `resolve` read it back as an equal configuration."""
        return yaml.safe_dump(self.dump(), sort_keys=False, allow_unicode=True)

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with options changed, given by dotted or short name (dots written as `__`)."""
        flat = flatten(self.dump())
        flat.update({option_path(name.replace("__", ".")): value for name, value in changes.items()})
        return _validated(_nest(flat))


def _options() -> dict[str, str]:
    paths: dict[str, str] = {}
    for name, spec in RunConfig.model_fields.items():
        section = spec.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            paths.update({f"{name}.{leaf}": str(f.description or "") for leaf, f in section.model_fields.items()})
        else:
            paths[name] = str(spec.description or "")
    return paths


OPTIONS: dict[str, str] = _options()
"""Every option's dotted path and what it means."""

_SECTIONS = tuple(dict.fromkeys(path.partition(".")[0] for path in OPTIONS if "." in path))


def _short_names() -> dict[str, str]:
    shorts: dict[str, str] = {}
    ambiguous: set[str] = set()
    for path in OPTIONS:
        leaf = path.rpartition(".")[2]
        if leaf in shorts:
            ambiguous.add(leaf)
        shorts[leaf] = path
    return {leaf: path for leaf, path in shorts.items() if leaf not in ambiguous}


_SHORT = _short_names()


def option_path(name: str) -> str:
    """The dotted path that `name` stands for: itself, or a unique last part (`parts` -> `partition.parts`).

    Raises InputError that lists what exists.
    """
    key = name.strip().replace("-", "_")
    if key in OPTIONS:
        return key
    if key in _SHORT:
        return _SHORT[key]
    section = key.partition(".")[0]
    known = [path for path in OPTIONS if section not in _SECTIONS or path.startswith(f"{section}.")]
    raise InputError(f"unknown option '{name}'{did_you_mean(key, [*_SHORT, *OPTIONS])}: choose from {', '.join(known)}")


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Nested options -> dotted path to value. Raises InputError on unknown names."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if name in _SECTIONS:
            if not isinstance(value, Mapping):
                raise InputError(f"option '{name}' is a section: give it options, such as '{name}.…', not '{value}'")
            flat.update({option_path(f"{name}.{leaf}"): inner for leaf, inner in value.items()})
        else:
            flat[option_path(str(name))] = value
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        section, _, leaf = path.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    return nested


def _validated(nested: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig(**nested)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise InputError(f"option '{path}' is missing: name a graph (see `farflung datasets`)") from None
        reason = first["msg"].removeprefix("Value error, ")
        if isinstance(first.get("ctx", {}).get("error"), InputError):
            raise InputError(f"option '{path}': {reason}") from None
        raise InputError(f"option '{path}' cannot be '{first['input']}': {reason[:1].lower()}{reason[1:]}") from None


def parse_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """`["model.hidden=64", "lr=0.01"]` -> dotted path to text (`null`: None). Raises InputError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"'{text}' sets nothing: write option=value, such as model.hidden=64")
        values[option_path(name)] = None if value.strip() == "null" else value.strip()
    return values


def read_yaml(path: Path) -> dict[str, Any]:
    """Options from a YAML file, by dotted path. Raises InputError naming the file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"configuration {path} cannot be read ({error.strerror}): check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"configuration {path} is no YAML: {reason}") from None
    if not isinstance(content, Mapping):
        raise InputError(f"configuration {path} holds no options: write lines such as 'method: retexo'")
    try:
        return flatten(content)
    except InputError as error:
        raise InputError(f"configuration {path}: {error}") from None


def base_options(method: str, task: str | None = None) -> dict[str, Any]:
    """Options by dotted path as the preset of `method` sets them for `task` (None: its own), over the defaults.

    There is no graph among them. Raises InputError where the method cannot do the task.
    """
    chosen = preset(method)
    task = task or chosen.tasks[0]
    if task not in chosen.tasks:
        able = [name for name, one in PRESETS.items() if task in one.tasks]
        if not able:
            raise InputError(f"unknown task '{task}': choose from {', '.join(TASKS)}")
        raise InputError(f"method '{method}' cannot do task '{task}': choose from {', '.join(able)}")
    flat = flatten(RunConfig(graph="").dump())
    flat.update(flatten(chosen.defaults))
    if task == "link-prediction":
        flat.update(flatten(chosen.for_links))
    flat |= {"method": method, "task": task}
    del flat["graph"]
    return flat


def preset_yaml(method: str, task: str | None = None) -> str:
    """The options that a method uses, with its preset's values, as YAML for a configuration file."""
    options = base_options(method, task)
    used = {
        path: value
        for path, value in options.items()
        if preset(method).uses_option(path) and (options["task"] in _ONLY_FOR.get(path.partition(".")[0], TASKS))
    }
    return yaml.safe_dump(_nest(used), sort_keys=False)


def resolve(given: Mapping[str, Any], *, file: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of one run.

    Args:
        given: options as set by hand, by dotted or short name or nested; a later layer than `file`.
        file: options from a configuration file, by dotted path (see `read_yaml`).

    The method is the one of `RunConfig` where neither names one.

    Raises:
        InputError: unknown option, wrong value, or an option on which the method does not act. In a file
            such an option may stand with its default, so that a run folder's complete file can be run again.
    """
    by_hand = flatten(given)
    from_file = dict(file or {})
    method = str(by_hand.get("method") or from_file.get("method") or RunConfig.model_fields["method"].default)
    if "method" in from_file and str(from_file["method"]) != method:
        raise InputError(
            f"method '{method}' contradicts 'method: {from_file['method']}' in the configuration file: "
            "remove one of them"
        )
    task = by_hand.get("task") or from_file.get("task")
    base = base_options(method, None if task is None else str(task))
    module = by_hand.get("model.module") or from_file.get("model.module")
    if module is not None:
        base |= _options_of_builder(str(module))
    config = _validated(_nest({**base, **from_file, **by_hand}))
    plain = flatten(_validated(_nest({**base, "graph": config.graph})).dump())
    differs = {path for path, value in flatten(config.dump()).items() if value != plain[path]}
    chosen = [path for path in (*by_hand, *from_file) if path in by_hand or path in differs]
    check_used(method, chosen)
    _check_together(config, chosen)
    _check_task(config, chosen)
    if isinstance(config.train.interval, Seconds) and config.train.time_limit is None:
        raise InputError(
            f"option 'train.interval' is a time ({config.train.interval}): "
            "add a time limit, such as train.time_limit=60s"
        )
    if isinstance(config.train.interval, Seconds) and "train.steps" in chosen:
        raise InputError(
            f"option 'train.steps' does nothing with an interval in time ({config.train.interval}): "
            "drop it, train.time_limit ends the run"
        )
    return config


def _options_of_builder(name: str) -> dict[str, Any]:
    """Options of the model that the function `name` builds, by dotted path."""
    from farflung.nn.pyg_model import options_of_builder  # PyG takes seconds to import

    return {f"model.{option}": value for option, value in options_of_builder(name).items()}


def check_used(method: str, paths: Sequence[str]) -> None:
    """Raise InputError if `method` does not act on one of the options at `paths`."""
    for path in paths:
        if not preset(method).uses_option(path):
            raise InputError(
                f"method '{method}' does not use option '{path}': drop it, or choose from {', '.join(users_of(path))}"
            )


TASKS: tuple[str, ...] = get_args(RunConfig.model_fields["task"].annotation)
_ONLY_FOR: dict[str, tuple[str, ...]] = {"links": ("link-prediction",)}
"""Sections that act on some tasks alone."""


def _check_task(config: RunConfig, paths: Sequence[str]) -> None:
    """Raise InputError if an option among `paths` does nothing for the task, or fan-outs do not fit the layers."""
    for path in paths:
        able = _ONLY_FOR.get(path.partition(".")[0], TASKS)
        if config.task not in able:
            raise InputError(
                f"option '{path}' does nothing for task '{config.task}': drop it, or set task={' or '.join(able)}"
            )
    if config.links.negatives == "global" and preset(config.method).procedure.whole:
        raise InputError(
            f"option 'links.negatives' cannot be 'global' with method '{config.method}': it has all nodes, use 'local'"
        )
    if config.train.evaluation == "exchange" and config.task == "link-prediction":
        raise InputError(
            "option 'train.evaluation' cannot be 'exchange' for task 'link-prediction': "
            "ranking needs the embeddings of all nodes in one place, use 'central'"
        )
    if config.train.soup and config.train.keep == "last":
        raise InputError("option 'train.soup' does nothing with train.keep=last: drop it, or set train.keep=best")
    interval, deadline = config.train.interval, config.train.deadline
    waits = not preset(config.method).procedure.lockstep
    if waits and isinstance(interval, Seconds) and deadline is not None and deadline <= interval.s:
        raise InputError(
            f"option 'train.deadline' ({deadline:g} s) ends before an interval of {interval}: "
            "give the interval and some grace"
        )
    if config.inductive and config.task == "link-prediction":
        raise InputError(
            "option 'inductive' is for nodes: links are always predicted on a graph that lacks them, drop it"
        )
    if config.inductive and config.train.evaluation == "exchange":
        raise InputError(
            "option 'train.evaluation' cannot be 'exchange' with inductive=true: trainers have no validation nodes, "
            "use 'central'"
        )
    if config.task == "link-prediction" and preset(config.method).uses_option("train.lazy"):
        _check_frozen(config)
    if config.model.first == "mlp" and config.task == "link-prediction":
        raise InputError("option 'model.first' cannot be 'mlp' for links, which have no class scores: use 'conv'")
    if config.model.first == "mlp" and config.model.layers == 1:
        raise InputError(
            "option 'model.first' is 'mlp' and there is no layer after it (model.layers=1): "
            "set model.layers=2 or more, or model.encoder=mlp for an MLP alone"
        )
    fanouts, layers = config.sample.fanouts, config.model.layers
    if fanouts is not None and len(fanouts) != layers:
        raise InputError(
            f"option 'sample.fanouts' has {len(fanouts)} numbers for {layers} layers: give one per layer, or 'full'"
        )
    if config.train.redeal and config.partition.by == "mincut":  # how given parts came about, their folder says
        raise InputError(
            "option 'train.redeal' needs parts that are drawn, not partition.by=mincut: "
            "set partition.by=random or supernode"
        )


def _check_frozen(config: RunConfig) -> None:
    """Raise InputError where links are to be learned in a way that needs inputs which are not frozen."""
    if config.links.mask_targets:
        raise InputError(
            f"option 'links.mask_targets' cannot be true with method '{config.method}': what a layer gathers is frozen "
            "while it trains, so no edge can be hidden from it; set links.mask_targets=false"
        )
    if config.links.negatives == "global":
        raise InputError(
            f"option 'links.negatives' cannot be 'global' with method '{config.method}', whose trainers hold what "
            "their own nodes have gathered: use 'local'"
        )


_ONLY_WITH: dict[str, tuple[str, str]] = {
    "partition.clusters": ("partition.by", "supernode"),
    "partition.balance": ("partition.by", "mincut"),
    "partition.given": ("partition.by", "given"),
    "train.trim": ("train.aggregation", "trimmed-mean"),
    "train.outer_lr": ("train.aggregation", "nesterov"),
    "train.outer_momentum": ("train.aggregation", "nesterov"),
    "links.pool": ("links.negatives", "global"),
}
"""Options that act only where another one has a certain value."""
_HEADS = ("model.encoder", "gat, GATConv or the like")
_ONLY_WITH_AVERAGES = ("train.interval", "train.aggregation")
"""Those that in lazy training act only where weights are averaged, or the first one between evaluations."""


def _only_with_encoder(model: ModelConfig) -> dict[str, tuple[str, str]]:
    """Options of the model that its encoder leaves without effect, as in `_ONLY_WITH`."""
    if model.module is not None:
        others = [path for path in OPTIONS if path.startswith("model.") and path != "model.module"]
        return dict.fromkeys(others, ("model.module", "null"))
    if model.is_pyg_model:
        given = ["model.activation"] if "act" in model.conv else []
        layers = [f"model.{name}" for name in ("norm", "first", "residual", "attention_heads")]
        return dict.fromkeys([*layers, *given], ("model.encoder", "sage, SAGEConv or the like"))
    if model.is_native:
        only = dict.fromkeys(["model.conv"], ("model.encoder", "a class of PyG, such as SAGEConv"))
        return only if model.encoder == "gat" else only | dict.fromkeys(["model.attention_heads"], _HEADS)
    from farflung.nn.pyg_conv import shares_heads  # PyG takes seconds to import

    return {} if shares_heads(model.encoder) else dict.fromkeys(["model.attention_heads"], _HEADS)


def _check_evaluated(config: RunConfig) -> None:
    """Raise InputError where lazy training by gradients is to be evaluated at times."""
    if config.train.lazy == "gradients" and isinstance(config.train.interval, Seconds):
        raise InputError(
            f"option 'train.interval' is a time ({config.train.interval}), and gradients are steps: "
            "write steps as '10steps', or set train.lazy=weights"
        )


def _check_together(config: RunConfig, paths: Sequence[str]) -> None:
    """Raise InputError if an option among `paths` does nothing beside the values of the others."""
    values = flatten(config.dump())
    only_with = dict(_ONLY_WITH)
    if preset(config.method).uses_option("train.lazy"):
        only_with |= dict.fromkeys(_ONLY_WITH_AVERAGES, ("train.lazy", "weights"))
        if config.inductive or config.task == "link-prediction":  # the evaluator scores, once per interval
            _check_evaluated(config)
            del only_with["train.interval"]
    if config.model.encoder == "mlp" and config.sample.fanouts is not None:
        only_with["sample.fanouts"] = ("model.encoder", "gcn, sage or gat")
    if config.model.encoder == "mlp":
        unread = ("model.first", "train.wire", "train.boundary_rate")
        only_with |= dict.fromkeys(unread, ("model.encoder", "gcn, sage or gat"))
    elif config.model.layers == 1:  # features cross once, embeddings never
        only_with["train.boundary_rate"] = ("model.layers", "2 or more")
    if config.sample.fanouts is None:
        only_with["sample.replace"] = ("sample.fanouts", "10,25 or the like")
    if config.optim.clip is None:
        only_with["optim.clip_from"] = ("optim.clip", "1.0 or the like")
    only_with |= _only_with_encoder(config.model)
    for path in paths:
        other, needed = only_with.get(path, (path, values[path]))
        if values[other] != needed:
            raise InputError(
                f"option '{path}' does nothing with {other}={values[other]}: drop it, or set {other}={needed}"
            )
