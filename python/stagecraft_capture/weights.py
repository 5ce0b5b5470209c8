"""What of a module's state goes into which file of the model folder, and under which names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .graph_text import type_text
from .layouts import other_memory_order
from .precision import master_of
from .torch_private import FakeTensor

if TYPE_CHECKING:
    import torch

    from .capture import Layer


@dataclass
class State:
    """The tensors of a model folder."""

    # weights.safetensors: PyTorch's parameters and persistent buffers
    weights: dict = field(default_factory=dict)
    # constants.safetensors: what an export leaves out, or must find as it was
    fixed: dict = field(default_factory=dict)
    types: dict = field(default_factory=dict)  # of what layers name
    untrained: dict = field(default_factory=dict)  # types of what no layer trains
    same_as: dict = field(default_factory=dict)  # a second name of a tensor: the first
    orders: dict = field(default_factory=dict)  # of weights that lie otherwise than files hold them
    # names of trained parameters as parameters() has them, where that is not the order of layers
    in_order: list = field(default_factory=list)
    prefix: str = ""  # of all names but the head's, where files of the model without its head leave it out


def one_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return a is b
    return a is b or (a.data_ptr() == b.data_ptr() != 0 and a.shape == b.shape and a.dtype == b.dtype)


def state_of(module: torch.nn.Module, layers: list[Layer], prefix: str) -> State:
    """`prefix`: of the wrapper, which names lose."""
    state, held = State(prefix=getattr(module, "base_prefix", "")), {}
    for layer in layers:
        for kind in "puc":
            for name in layer.tensors.names[kind]:
                state.types[name] = type_text(layer.tensors.values[name])
                held[name] = (kind, layer.tensors.values[name])
                if kind == "p" and (order := other_memory_order(layer.tensors.values[name])):
                    state.orders[name] = order
    # Equal objects under several names are all of PyTorch's state.
    named = {name.removeprefix(prefix): tensor for name, tensor in module.state_dict(keep_vars=True).items()}
    trained = {name: tensor for name, (kind, tensor) in held.items() if kind != "c"}
    parameters = {name.removeprefix(prefix) for name, _ in module.named_parameters(remove_duplicate=False)}
    constants = [tensor for kind, tensor in held.values() if kind == "c"]
    for name, tensor in named.items():
        if name in trained:
            state.weights[name] = master_of(tensor)
            continue
        first = next(
            (
                n
                for n, t in [*trained.items(), *((n, named[n]) for n in state.untrained)]
                if one_tensor(t, tensor)
            ),
            None,
        )
        if first is not None:
            state.same_as[name] = first
            continue
        master = master_of(tensor)
        state.untrained[name] = type_text(master)
        # The graphs may hold what was made of a buffer's values: they must be these.
        read = name not in parameters and constants
        (state.fixed if read else state.weights)[name] = master
    for name, (_, tensor) in held.items():
        if name not in state.weights:
            state.fixed[name] = tensor
    state.same_as.update(getattr(module, "untied", {}))
    by_layers = list(dict.fromkeys(name for layer in layers for name in layer.tensors.names["p"]))
    in_order = _as_parameters_has_them(module, {name: held[name][1] for name in by_layers})
    if in_order != by_layers:
        state.in_order = in_order
    return state


def _as_parameters_has_them(module: torch.nn.Module, trained: dict[str, torch.Tensor]) -> list[str]:
    names = {id(tensor): name for name, tensor in trained.items()}
    found = [names[id(tensor)] for tensor in module.parameters() if id(tensor) in names]
    return list(dict.fromkeys([*found, *trained]))
