"""Models of PyTorch Geometric as stacks of layers, and back: `GraphSAGE`, `GCN`, `GAT`, `GIN`, `PNA`, `EdgeCNN`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch_geometric.nn.models as models
from torch import nn
from torch_geometric.nn.models.basic_gnn import BasicGNN

from farflung.errors import InputError
from farflung.nn.config import PYG_MODELS, Facts, ModelConfig
from farflung.nn.encoder import Encoder, Layer
from farflung.nn.pyg_conv import PyGConv, check_module

_OWN = ("in_channels", "hidden_channels", "num_layers", "out_channels", "dropout")
"""Arguments that come from other options than `model.conv`."""


def build_model(config: ModelConfig, num_features: int, num_classes: int, facts: Facts) -> BasicGNN:
    """The PyG model that `config.encoder` names, with the further arguments of `config.conv`."""
    arguments = {"act": config.activation, **config.conv}
    kind = getattr(models, config.encoder)
    if config.encoder == "PNA":
        arguments = {
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification", "attenuation"],
            "deg": torch.tensor(facts.degrees or (0, 1)),
            **arguments,
        }
    try:
        return kind(num_features, config.hidden, config.layers, num_classes, dropout=config.dropout, **arguments)
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(
            f"option 'model.conv': {config.encoder} cannot be made with {dict(config.conv)} ({error}): see its "
            "documentation in PyG for the arguments"
        ) from None


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
    if model.act is not None and any(True for _ in model.act.parameters()):
        raise InputError(
            f"activation {type(model.act).__name__} has weights that all layers share: choose one without, such as relu"
        )
    widths = [model.in_channels] + [model.hidden_channels] * (model.num_layers - 1) + [model.out_channels]
    layers = []
    for number, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        last = number == model.num_layers - 1
        share = model.dropout.p if number else 0.0
        then = [] if last else [None if isinstance(norm, nn.Identity) else norm, model.act]
        first, second = reversed(then) if then and model.act_first else then or (None, None)
        layers.append(
            Layer(
                PyGConv(conv, widths[number], widths[number + 1], share),
                first,
                second,
                head=nn.Linear(widths[number + 1], num_classes) if heads and not last else None,
            )
        )
    return layers


def describe(model: BasicGNN) -> dict[str, Any]:
    """The options of `ModelConfig` that build a model like `model`, with other weights.

    Raises InputError where they do not: the model is of another kind, or made with arguments that are no numbers or
    texts.
    """
    name = type(model).__name__
    if name not in PYG_MODELS or type(model) is not getattr(models, name):
        raise InputError(
            f"a model of class {name} cannot be trained in parts: hand in one of PyG's {', '.join(PYG_MODELS)}"
        )
    options: dict[str, Any] = {
        "encoder": name,
        "layers": model.num_layers,
        "hidden": model.hidden_channels,
        "dropout": model.dropout.p,
        "conv": _arguments(model),
    }
    layers_of(model, model.out_channels, heads=False)
    facts = Facts(degrees=tuple(_degrees(model)))
    again = build_model(ModelConfig.model_validate(options), model.in_channels, model.out_channels, facts)
    shapes = [{n: v.shape for n, v in one.state_dict().items()} for one in (model, again)]
    if repr(again) != repr(model) or shapes[0] != shapes[1]:
        raise InputError(
            f"this {name} cannot be described by numbers and texts alone: build it without custom modules, or name its "
            "convolution as encoder"
        )
    return options


def _arguments(model: BasicGNN) -> dict[str, Any]:
    """The arguments that the model was made with, as far as they can be seen and are not the usual ones."""
    found: dict[str, Any] = {"act": type(model.act).__name__ if model.act is not None else None}
    found |= {"act_first": True} if model.act_first else {}
    found |= {"norm": model.norm, "norm_kwargs": model.norm_kwargs} if model.norm is not None else {}
    conv = model.convs[0]
    if type(conv).__name__ == "GATv2Conv":
        found["v2"] = True
    taken = ("in_channels", "out_channels", "nn", "concat", "dropout", "deg")
    for name, parameter in inspect.signature(type(conv).__init__).parameters.items():
        value = getattr(conv, "initial_eps" if name == "eps" else name, parameter.default)
        if name == "train_eps":
            value = isinstance(getattr(conv, "eps", None), nn.Parameter)
        plain = isinstance(value, str | int | float | bool) or (isinstance(value, list) and value)
        if name not in taken and plain and value != parameter.default:
            found[name] = value
    return found


def _degrees(model: BasicGNN) -> list[int]:
    """Of PNA: as many degrees as it was made with."""
    return [1, 1] if type(model).__name__ == "PNA" else []


def encoder_around(model: BasicGNN) -> Encoder:
    """The model as an encoder that shares its weights."""
    return Encoder.of(layers_of(model, model.out_channels, heads=False))


def give_back(weights: Mapping[str, torch.Tensor], model: BasicGNN) -> None:
    """Put trained weights of an encoder into the PyG model that it was made of."""
    own = {name: value for name, value in weights.items() if ".head." not in name}
    encoder_around(model).load_state_dict(own)
