"""Hooks that a graph cannot have: what autograd calls in a backward. Those of the forward run while the
module is exported, and are in its graph."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .errors import CaptureError
from .reach import is_users

REMEDY = (
    "no run calls it: remove it before the capture, or do what it does in the forward, in a"
    " torch.autograd.Function"
)


def called(hook: Any) -> str:
    """The name of a hook's function, and where it is."""
    function = getattr(hook, "hook", hook)  # what torch wraps around it
    code = getattr(function, "__code__", None)
    return f"{getattr(function, '__qualname__', type(function).__name__)}" + (
        f', File "{code.co_filename}", line {code.co_firstlineno}' if code else ""
    )


def refuse_backward_hooks(module: torch.nn.Module) -> None:
    """Of modules and parameters, and those of all modules."""
    prefix = getattr(module, "PREFIX", "")
    for name, parameter in module.named_parameters():
        kinds = (
            ("register_hook", parameter._backward_hooks),
            ("register_post_accumulate_grad_hook", getattr(parameter, "_post_accumulate_grad_hooks", None)),
        )
        for kind, hooks in kinds:
            if hooks:
                raise CaptureError(
                    f"parameter {name.removeprefix(prefix)!r} has a hook of its gradient ({kind}:"
                    f" {called(next(iter(hooks.values())))}); {REMEDY}"
                )
    shared = torch.nn.modules.module
    of_all = {**shared._global_backward_hooks, **shared._global_backward_pre_hooks}
    if of_all:
        raise CaptureError(
            f"all modules have a hook of the backward ({called(next(iter(of_all.values())))}); {REMEDY}"
        )
    for path, part in module.named_modules():
        hooks = {**part._backward_hooks, **part._backward_pre_hooks}
        if hooks:
            name = f"{path}.".removeprefix(prefix).rstrip(".")
            raise CaptureError(
                f"module {name!r} has a hook of its backward ({called(next(iter(hooks.values())))}); {REMEDY}"
            )


@contextlib.contextmanager
def hooks_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Calls `note(what)` where the forward registers a hook of a tensor's gradient, or lets autograd keep
    other values than it read."""
    before = {
        name: getattr(torch.Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook")
    }
    saved = torch.autograd.graph.saved_tensors_hooks
    enter = saved.__enter__

    def noting(name: str) -> Callable[..., Any]:
        def register(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
            note(f"a hook of a gradient (Tensor.{name})")
            return before[name](tensor, *given, **named)

        return register

    def entered(context: Any) -> Any:
        if type(context) is saved and is_users(sys._getframe(1).f_code.co_filename):
            note("hooks of what autograd keeps (saved_tensors_hooks)")
        return enter(context)

    for name in before:
        setattr(torch.Tensor, name, noting(name))
    saved.__enter__ = entered
    try:
        yield
    finally:
        saved.__enter__ = enter
        for name, method in before.items():
            setattr(torch.Tensor, name, method)
