"""Work of torch's tracing that a capture has no use for. Each layer is traced at every size, in training and
in evaluation, so that it adds up."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from .torch_private import PhiloxStateTracker, lazy_graph_module, symbolic_trace


def patched_but_of_modules(
    patcher: Any,
    kind: Any,
    name: str,
    new: Any,
    deduplicate: bool = True,
    patch: Callable[..., Any] = symbolic_trace._Patcher.patch_method,
) -> None:
    if kind is not torch.nn.Module:
        patch(patcher, kind, name, new, deduplicate)


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """No Python is written for graphs that nobody calls, and no state of random numbers is made that no graph
    holds."""
    with lazy_graph_module._use_lazy_graph_module(True), mock.patch.object(PhiloxStateTracker, "reset"):
        yield


@contextlib.contextmanager
def quick_without_modules() -> Iterator[None]:
    """And of functions that call no module with parameters: torch.nn.Module itself stays as it is. To change
    it makes Python look through all classes of modules that there are, thousands where transformers is
    imported."""
    with quick(), mock.patch.object(symbolic_trace._Patcher, "patch_method", patched_but_of_modules):
        yield
