"""Optimizers as a run's config has them: by name with PyTorch's arguments, or read off one of torch.optim."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stagecraft_planner.nearest import keywords_checked

from . import checks
from .errors import InputError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Group:
    """Parameters with a rate or a decay of their own, as a group of PyTorch's."""

    names: tuple[str, ...]  # of the module's parameters
    lr: float | None = None  # None: as all others
    weight_decay: float | None = None


@dataclass(frozen=True)
class Optimizer:
    """What `pipeline()` steps with. `AdamW(...)` and its like make one; it holds no state."""

    type: str  # the name in a config
    params: Mapping[str, Any] = field(default_factory=dict)  # settings, under PyTorch's names
    groups: tuple[Group, ...] = ()

    def with_lr(self, lr: float) -> Optimizer:
        """The same with another learning rate."""
        return dataclasses.replace(self, params={**self.params, "lr": lr})


@keywords_checked
def SGD(
    lr: float = 1e-3,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float = 0,
    nesterov: bool = False,
) -> Optimizer:
    """As torch.optim.SGD, through the same fused kernel."""
    return Optimizer("SGD", _without_self(locals()))


@keywords_checked
def Adam(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
) -> Optimizer:
    """As torch.optim.Adam, through the same fused kernel."""
    return Optimizer("Adam", _without_self(locals()))


@keywords_checked
def AdamW(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Optimizer:
    """As torch.optim.AdamW, through the same fused kernel."""
    return Optimizer("AdamW", _without_self(locals()))


@keywords_checked
def NAdam(
    lr: float = 2e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
) -> Optimizer:
    """As torch.optim.NAdam."""
    return Optimizer("NAdam", _without_self(locals()))


@keywords_checked
def Adafactor(
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """As torch.optim.Adafactor. State of a matrix: its rows and columns."""
    settings = _without_self(locals())
    return Optimizer("Adafactor", {**settings, "eps": [eps[0] or 0.0, eps[1]]})


@keywords_checked
def Lion(lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0) -> Optimizer:
    """Lion (Chen et al., Symbolic Discovery of Optimization Algorithms, 2023): the sign of a momentum,
    which is all its state."""
    return Optimizer("Lion", _without_self(locals()))


def _without_self(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


NAMES = ("SGD", "SGDW", "Adam", "AdamW", "NAdam", "Lion", "Adafactor", "Muon")  # in a config
# Of torch.optim: the config's name, and which of its settings are read. What else it has must be as its
# default is.
_READ = {
    "SGD": ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "Adam": ("lr", "betas", "eps", "weight_decay"),
    "AdamW": ("lr", "betas", "eps", "weight_decay"),
    "NAdam": ("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"),
    "Adafactor": ("lr", "beta2_decay", "eps", "d", "weight_decay"),
}
# How it is computed, not what.
_FREE = {"foreach", "fused", "capturable", "differentiable", "params", "param_names", "initial_lr"}
_OF_A_GROUP = ("lr", "weight_decay")


def read(optimizer: Any, module: torch.nn.Module) -> Optimizer:
    """An instance of torch.optim, whose groups must have all trained parameters of `module`. Throws
    InputError for what cannot be honoured."""
    kind = type(optimizer).__name__
    known = _READ.get(kind)
    if known is None or not type(optimizer).__module__.startswith("torch.optim"):
        raise InputError(
            f"optimizer: {type(optimizer).__module__}.{kind} is none that the engine has: expected"
            f" stagecraft.{', '.join(_READ)}, Lion, or one of torch.optim with one of these names"
        )
    if optimizer.state:
        raise InputError(
            "optimizer: it has made steps already, and its state cannot be taken over: give a new one, or"
            " load a checkpoint of Stagecraft"
        )
    defaults = type(optimizer)([_a_parameter()]).defaults
    for group in optimizer.param_groups:
        for name, value in group.items():
            if name in known or name in _FREE or value == defaults.get(name):
                continue
            raise InputError(f"optimizer: {kind}({name}={value!r}) is not to be had here; leave {name} out")
    names = _names_of(optimizer, module)
    # the settings that most parameters have stand for all; groups differ from them
    main = max(optimizer.param_groups, key=lambda group: len(group["params"]))
    settings = {name: _plain(main[name], f"optimizer: {name}") for name in known}
    if kind == "Adafactor":
        settings["eps"] = [main["eps"][0] or 0.0, main["eps"][1]]
    groups = []
    for group, its_names in zip(optimizer.param_groups, names):
        for name in known:
            if group[name] != main[name] and name not in _OF_A_GROUP:
                raise InputError(
                    f"optimizer: groups differ in {name}; here they may differ in lr and weight_decay"
                )
        own = {name: float(group[name]) for name in _OF_A_GROUP if group[name] != main[name]}
        if own:
            groups.append(Group(tuple(its_names), own.get("lr"), own.get("weight_decay")))
    return Optimizer(kind, settings, tuple(groups))


def _a_parameter() -> Any:
    import torch

    return torch.nn.Parameter(torch.zeros(1))


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(each, what) for each in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    if not isinstance(value, (bool, int, float, str)):
        raise InputError(f"{what}: expected a number, found {value!r}")
    return value


def _names_of(optimizer: Any, module: torch.nn.Module) -> list[list[str]]:
    """The module's names of each group's parameters."""
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    found = []
    for number, group in enumerate(optimizer.param_groups):
        strange = sum(id(parameter) not in named for parameter in group["params"])
        if strange:
            raise InputError(
                f"optimizer: {strange} of {len(group['params'])} parameters of group {number} are none of the"
                " module's: make the optimizer from the same module, after it is wrapped and moved"
            )
        found.append([named[id(parameter)] for parameter in group["params"]])
    left_out = _trained(module) - {name for names in found for name in names}
    if left_out:
        raise InputError(
            f"optimizer: has no group with {checks.some(sorted(left_out))}: freeze what is not to be trained"
            " (requires_grad_(False)), or give all parameters"
        )
    return found


def _trained(module: torch.nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def config_of(optimizer: Optimizer, holders: Mapping[str, list[str]]) -> dict[str, Any]:
    """As a config has it. `holders`: of a parameter's name "layer.parameter" wherever the model holds it."""
    params = {name: _plain(value, f"optimizer: {name}") for name, value in optimizer.params.items()}
    config: dict[str, Any] = {"type": optimizer.type, "params": params}
    groups = []
    for group in optimizer.groups:
        patterns = [_exactly(place) for name in group.names for place in holders.get(name, [])]
        if not patterns:  # nothing of it is in the model: parameters that no forward reads
            continue
        own = {"lr": group.lr, "weight_decay": group.weight_decay}
        groups.append({"parameters": patterns, **{k: v for k, v in own.items() if v is not None}})
    return config | ({"groups": groups} if groups else {})


def _exactly(name: str) -> str:
    """A pattern that this name fits. One with * or ? in it stands for itself, too."""
    return name
