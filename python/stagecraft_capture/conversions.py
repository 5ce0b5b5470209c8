"""Calls of module.to() and module.float() amidst a forward, as routers of experts make them. Where the module
is what they ask for already they do nothing, which torch.export does not follow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

NUMBERS = {"float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16}


def is_already(module: torch.nn.Module, given: tuple[Any, ...]) -> bool:
    """Whether all that the module holds has this type and device. `given`: of each, or a tensor that has
    both."""
    for want in given:
        like = (want.dtype, want.device) if isinstance(want, torch.Tensor) else (want,)
        for what in (torch.device(w) if isinstance(w, str) else w for w in like):
            for tensor in (*module.parameters(), *module.buffers()):
                if isinstance(what, torch.device):
                    if tensor.device.type != what.type:
                        return False
                elif not isinstance(what, torch.dtype) or (
                    tensor.is_floating_point() and tensor.dtype != what
                ):
                    return False
    return True


@contextlib.contextmanager
def without_conversions() -> Iterator[None]:
    """Of modules that are converted already."""
    kind = torch.nn.Module
    before = {name: getattr(kind, name) for name in ("to", *NUMBERS)}

    def to(self: torch.nn.Module, *given: Any, **named: Any) -> torch.nn.Module:
        asked = (*given, *(named[name] for name in ("dtype", "device", "tensor") if name in named))
        asked = tuple(what for what in asked if what is not None and not isinstance(what, bool))
        if named.keys() <= {"dtype", "device", "tensor", "non_blocking"} and is_already(self, asked):
            return self
        return before["to"](self, *given, **named)

    def as_numbers(name: str) -> Any:
        def convert(self: torch.nn.Module) -> torch.nn.Module:
            return self if is_already(self, (NUMBERS[name],)) else before[name](self)

        return convert

    for name in before:
        setattr(kind, name, to if name == "to" else as_numbers(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(kind, name, function)
