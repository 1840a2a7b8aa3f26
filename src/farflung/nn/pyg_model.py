"""Models of PyTorch Geometric as stacks of layers, and back: `GraphSAGE`, `GCN`, `GAT`, `GIN`, `PNA`, `EdgeCNN`."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch_geometric.nn.models as models
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.aggr import DegreeScalerAggregation
from torch_geometric.nn.models.basic_gnn import BasicGNN

from farflung.errors import InputError
from farflung.nn.config import PYG_MODELS, Facts, ModelConfig
from farflung.nn.encoder import Encoder, Layer
from farflung.nn.pyg_check import check_module
from farflung.nn.pyg_conv import PyGConv, made, one_line
from farflung.seeding import torch_seed

_SET_OTHERWISE = {
    "in_channels": "it follows from the graph",
    "out_channels": "it follows from the graph",
    "deg": "it follows from the graph",
    "hidden_channels": "use model.hidden",
    "num_layers": "use model.layers",
    "dropout": "use model.dropout",
}
"""Arguments that come from elsewhere than `model.conv`."""
_BUILDER = "hand in model='module:function', of a function(num_features, num_outputs) that builds it"


def build_model(config: ModelConfig, num_features: int, num_classes: int, facts: Facts) -> BasicGNN:
    """The PyG model that `config.module` builds or `config.encoder` names, with the further arguments of `config.conv`.

    Raises InputError where it cannot be built or does not fit.
    """
    if config.module is not None:
        model = built_by(config.module, num_features, num_classes)
        _check_fits(config, model, num_features, num_classes)
        return model
    for name, instead in _SET_OTHERWISE.items():
        if name in config.conv:
            raise InputError(f"option 'model.conv' cannot set {name}: {instead}")
    arguments = {"act": config.activation, **config.conv}
    if config.encoder == "PNA":
        arguments = {
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification", "attenuation"],
            "deg": torch.tensor(facts.degrees or (0, 1)),
            **arguments,
        }
    kind, places = getattr(models, config.encoder), (num_features, config.hidden, config.layers, num_classes)
    return made(kind, config, *places, dropout=config.dropout, **arguments)


def built_by(name: str, num_features: int, num_outputs: int) -> BasicGNN:
    """What the function `name`, as `module:function`, builds. Raises InputError where it is no model of PyG."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise InputError(f"option 'model.module' cannot be '{name}': write package.module:function")
    try:
        builder: Callable[[int, int], object] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"option 'model.module': '{name}' cannot be imported ({one_line(error)}): put its folder on PYTHONPATH"
        ) from None
    try:
        model = builder(num_features, num_outputs)
    except Exception as error:
        raise InputError(
            f"option 'model.module': {name}({num_features}, {num_outputs}) failed ({one_line(error)}): it must take "
            "the numbers of features and outputs and build a model for them"
        ) from None
    if not isinstance(model, BasicGNN) or type(model).forward is not BasicGNN.forward:
        raise InputError(
            f"option 'model.module': {name} builds a {type(model).__name__}, which cannot be taken apart into layers: "
            f"build one of PyG's {', '.join(PYG_MODELS)}, or a subclass with another init_conv alone"
        )
    return model


def options_of_builder(name: str) -> dict[str, Any]:
    """Those of `ModelConfig` that a builder determines, whatever the graph."""
    model = built_by(name, 16, 3)
    return {"layers": model.num_layers, "hidden": model.hidden_channels, "dropout": model.dropout.p}


def _check_fits(config: ModelConfig, model: BasicGNN, num_features: int, num_classes: int) -> None:
    expected = {
        "in_channels": num_features,
        "out_channels": num_classes,
        "num_layers": config.layers,
        "hidden_channels": config.hidden,
    }
    for name, value in expected.items():
        if getattr(model, name) != value:
            raise InputError(
                f"option 'model.module': {config.module}({num_features}, {num_classes}) builds a model with "
                f"{name}={getattr(model, name)}, expected {value}: build it for the numbers that it gets"
            )


def layers_of(model: BasicGNN, num_classes: int, heads: bool) -> list[Layer]:
    """The model as layers that share its modules. `heads`: hidden layers get heads for lazy training.

    Dropout acts on what hidden layers pass on, as in PyG. Raises InputError, by name, for what cannot be trained in
    parts.
    """
    check_module(model)
    if model.jk_mode is not None:
        raise InputError(
            f"jumping knowledge (jk='{model.jk_mode}') needs the rows of all layers at once: build it with jk=None"
        )
    if isinstance(model.act, nn.Module) and any(True for _ in model.act.parameters()):
        raise InputError(
            f"activation {type(model.act).__name__} has weights that all layers share: choose one without, such as relu"
        )
    widths = [model.in_channels] + [model.hidden_channels] * (model.num_layers - 1) + [model.out_channels]
    without = [name for name in ("edge_weight", "edge_attr") if not getattr(model, f"supports_{name}")]
    layers = []
    for number, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        last = number == model.num_layers - 1
        share = model.dropout.p if number else 0.0
        then = [] if last else [None if isinstance(norm, nn.Identity) else norm, model.act]
        first, second = reversed(then) if then and model.act_first else then or (None, None)
        layers.append(
            Layer(
                PyGConv(conv, widths[number], widths[number + 1], share, without),
                first,
                second,
                head=nn.Linear(widths[number + 1], num_classes) if heads and not last else None,
            )
        )
    return layers


def describe(model: nn.Module) -> dict[str, Any]:
    """The options of `ModelConfig` that build a model like `model`, with other weights.

    Raises InputError where none do: the model is of another kind, or made with arguments that cannot be seen in it.
    What they build is run beside it, so that nothing is lost unnoticed.
    """
    name = type(model).__name__
    if name not in PYG_MODELS or type(model) is not getattr(models, name) or not isinstance(model, BasicGNN):
        raise InputError(
            f"a model of class {name} cannot be trained in parts: hand in one of PyG's {', '.join(PYG_MODELS)}; or for "
            f"a subclass with convolutions of its own {_BUILDER}"
        )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise InputError(f"this {name} does not know its number of features yet: give it one as in_channels")
    layers_of(model, model.out_channels, heads=False)
    options: dict[str, Any] = {
        "encoder": name,
        "layers": model.num_layers,
        "hidden": model.hidden_channels,
        "dropout": model.dropout.p,
        "conv": {**_act_and_norm(model), **_conv_arguments(model.convs[0], name)},
    }
    try:
        config = ModelConfig.model_validate(options)
        again = build_model(config, _width(model), model.out_channels, Facts())
        alike = _alike(model, again)
    except (InputError, ValueError, RuntimeError):
        alike = False
    if not alike:
        raise InputError(f"what this {name} was made with cannot all be seen in it: {_BUILDER}")
    return options


def _width(model: BasicGNN) -> int:
    return model.in_channels if isinstance(model.in_channels, int) else model.in_channels[0]


def _act_and_norm(model: BasicGNN) -> dict[str, Any]:
    """The arguments that activation and norms were made with, as far as they can be seen."""
    act = model.act
    found: dict[str, Any] = {"act": act if act is None else getattr(act, "__name__", type(act).__name__)}
    constants = {name: getattr(act, name) for name in getattr(act, "__constants__", ()) if name != "inplace"}
    found |= {"act_kwargs": constants} if constants else {}
    found |= {"act_first": True} if model.act_first else {}
    return found | ({"norm": model.norm, "norm_kwargs": model.norm_kwargs} if model.norm is not None else {})


def _conv_arguments(conv: nn.Module, model_name: str) -> dict[str, Any]:
    """The arguments that a convolution was made with, as far as they can be seen and are not the usual ones."""
    found: dict[str, Any] = {"v2": True} if type(conv).__name__ == "GATv2Conv" else {}
    seen: dict[str, Any] = {"bias": _has_bias(conv), "train_eps": isinstance(getattr(conv, "eps", None), nn.Parameter)}
    seen |= {"eps": getattr(conv, "initial_eps", None)}
    aggregation = getattr(conv, "aggr_module", None)
    if isinstance(aggregation, DegreeScalerAggregation):
        names = [type(one).__name__.removesuffix("Aggregation").lower() for one in aggregation.aggr.aggrs]
        seen |= {"aggregators": names, "scalers": list(aggregation.scaler), "aggr": None}
        seen |= {"train_norm": isinstance(aggregation.avg_deg_lin, nn.Parameter)}
        seen |= {f"{side}_layers": (len(getattr(conv, f"{side}_nns")[0]) + 1) // 2 for side in ("pre", "post")}
    for name, parameter in inspect.signature(type(conv).__init__).parameters.items():
        value = seen.get(name, getattr(conv, name, parameter.default))
        plain = isinstance(value, str | int | float | bool) or (isinstance(value, list) and value)
        if name not in ("nn", "concat", "act", *_SET_OTHERWISE) and plain and value != parameter.default:
            found[name] = value
    return found


def _has_bias(conv: nn.Module) -> bool:
    """Whether it adds a bias, of its own or in the map of what it gathered."""
    return getattr(conv, "bias", getattr(getattr(conv, "lin_l", None), "bias", True)) is not None


@torch.no_grad()
def _alike(model: BasicGNN, again: BasicGNN) -> bool:
    """Whether the two compute the same with the same weights, in evaluation and in training."""
    first, second = (copy.deepcopy(one).cpu().double() for one in (model, again))
    second.load_state_dict(first.state_dict())
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(6, _width(model), generator=draws, dtype=torch.float64)
    ends = torch.tensor([[0, 1, 2, 3, 4, 4, 5, 1], [1, 2, 3, 4, 0, 1, 5, 0]])
    width = getattr(model.convs[0], "edge_dim", None)
    attr = None if width is None else torch.randn(8, width, generator=draws, dtype=torch.float64)

    def run(one: BasicGNN, training: bool) -> torch.Tensor:
        with torch_seed(0, "alike"):
            return one.train(training)(x, ends, edge_attr=attr)

    return all(torch.equal(run(first, training), run(second, training)) for training in (False, True))


def encoder_around(model: BasicGNN) -> Encoder:
    """The model as an encoder that shares its weights."""
    return Encoder.of(layers_of(model, model.out_channels, heads=False))


def weights_of(model: BasicGNN) -> dict[str, torch.Tensor]:
    """A copy of its weights, as its encoder calls them."""
    return {name: value.detach().cpu().clone() for name, value in encoder_around(model).state_dict().items()}


def give_back(weights: Mapping[str, torch.Tensor], model: BasicGNN) -> None:
    """Put trained weights into the PyG model that they are of.

    `weights`: of an encoder, or of a model that has one to predict links with.
    """
    names = [name.removeprefix("encoder.") for name in weights]
    state = dict(zip(names, weights.values(), strict=True))
    encoder = encoder_around(model)
    encoder.load_state_dict({name: state[name] for name in encoder.state_dict()})
