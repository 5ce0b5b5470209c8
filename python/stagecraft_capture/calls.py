"""How a module is called with the fields of a batch: each under its name, by place where an argument has no
name, or all of them in one dictionary."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Parameter = inspect.Parameter
PLACED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
SINGLE = (*PLACED, Parameter.KEYWORD_ONLY)


def parameters_of(module: torch.nn.Module) -> list[Parameter]:
    """Those of its forward; of a wrapper that hands on all it gets, as PEFT's is, the wrapped module's."""
    found = list(inspect.signature(module.forward).parameters.values())
    base: Any = getattr(module, "get_base_model", None)
    wraps = callable(base) and not any(p.kind in SINGLE for p in found)
    return parameters_of(base()) if wraps else found


def names_by_place(module: torch.nn.Module, number: int) -> list[str]:
    """Names of so many fields that a forward takes one behind the other; those of `*xs` are xs0, xs1 and so
    on. Fewer where it takes fewer."""
    found: list[str] = []
    for parameter in parameters_of(module):
        if parameter.kind == Parameter.VAR_POSITIONAL:
            found += (f"{parameter.name}{i}" for i in range(number - len(found)))
        elif parameter.kind in SINGLE:
            found.append(parameter.name)
    return found[:number]


def rest_in(parameters: list[Parameter], names: Collection[str]) -> list[str]:
    """Of `names` those that `*xs` takes."""
    return [
        name
        for p in parameters
        if p.kind == Parameter.VAR_POSITIONAL
        for name in takewhile(names.__contains__, (f"{p.name}{i}" for i in count()))
    ]


def taken(module: torch.nn.Module, names: Collection[str]) -> list[str]:
    """Of `names` those that arguments take, in the order of its forward."""
    parameters = parameters_of(module)
    single = [p.name for p in parameters if p.kind in SINGLE and p.name in names]
    return single + rest_in(parameters, names)


def by_name(module: torch.nn.Module, name: str) -> bool:
    """Whether forward can be called with name=..."""
    return any(p.name == name and p.kind in SINGLE[1:] for p in parameters_of(module))


def takes_whole(module: torch.nn.Module, names: Collection[str]) -> bool:
    """Whether the module takes a batch of these fields as a whole: its forward names none of them, and takes
    `**fields`, or needs one argument alone, which gets the dictionary."""
    parameters = parameters_of(module)
    single = [p for p in parameters if p.kind in SINGLE]
    needed = [p for p in single if p.default is p.empty]
    whole = needed == single[:1] if single else any(p.kind == Parameter.VAR_KEYWORD for p in parameters)
    return whole and not taken(module, names)


def missing(module: torch.nn.Module, names: Collection[str]) -> list[str]:
    """Arguments that must be given and are none of `names`."""
    whole = takes_whole(module, names)
    return [
        p.name
        for p in parameters_of(module)
        if p.kind in SINGLE and p.default is p.empty and p.name not in names and not whole
    ]


def called(module: torch.nn.Module, batch: Mapping[str, Any]) -> Any:
    """What the module returns for a batch's fields. Other fields than it takes are for the loss."""
    parameters = parameters_of(module)
    if takes_whole(module, batch):
        single = any(p.kind in SINGLE for p in parameters)
        return module(dict(batch)) if single else module(**batch)
    rest = rest_in(parameters, batch)
    placed = [p for p in parameters if p.kind in (PLACED if rest else (Parameter.POSITIONAL_ONLY,))]
    while placed and not rest and placed[-1].name not in batch:
        placed.pop()
    by_place = [batch.get(p.name, p.default) for p in placed] + [batch[name] for name in rest]
    by_name = {p.name: batch[p.name] for p in parameters if p.name in batch and p not in placed}
    return module(*by_place, **by_name)
