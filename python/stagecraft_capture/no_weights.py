"""Models larger than memory: parameters have types and no numbers. Constants and buffers have both, since
graphs may depend on them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .torch_private import FakeTensor, FakeTensorMode


@contextlib.contextmanager
def parameters_without_numbers() -> Iterator[None]:
    """Modules made here get parameters on `meta`. What they are made from is never written to, so it takes no
    memory either."""
    register = torch.nn.Module.register_parameter

    def on_meta(module: torch.nn.Module, name: str, parameter: Any) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(
                parameter.detach().to("meta"), requires_grad=parameter.requires_grad
            )
        register(module, name, parameter)

    torch.nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def as_on_cpu(module: torch.nn.Module) -> FakeTensorMode:
    """Parameters on `meta` become fake ones of the CPU: operators choose the kernels that they would choose
    there. Returns their mode."""
    mode, made = FakeTensorMode(allow_non_fake_inputs=True), {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                if parameter not in made:  # tied ones stay so
                    fake = FakeTensor(mode, parameter.detach(), torch.device("cpu"))
                    made[parameter] = torch.nn.Parameter(fake, requires_grad=parameter.requires_grad)
                part._parameters[name] = made[parameter]
    return mode


def mode_of(module: torch.nn.Module) -> FakeTensorMode | None:
    """The mode of the module's fake parameters; None where they have numbers."""
    return next((p.fake_mode for p in module.parameters() if isinstance(p, FakeTensor)), None)
