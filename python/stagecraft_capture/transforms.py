"""Transforms of PyTorch that a forward may ask for and no graph has: derivatives within it, and functions that
are mapped over a dimension."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError, place_of
from .export_errors import MAPPED
from .torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from torch import fx


def refused(*given: Any, **named: Any) -> Any:
    raise CaptureError(
        "a derivative within the forward (torch.autograd.grad, .backward()), which torch.export does not"
        " follow: write it out with operators of torch"
    )


@contextlib.contextmanager
def without_derivatives() -> Iterator[None]:
    """Refuses them, with the line that asks."""
    plain = torch.autograd.grad, torch.autograd.backward
    torch.autograd.grad = torch.autograd.backward = refused
    try:
        yield
    finally:
        torch.autograd.grad, torch.autograd.backward = plain


def refuse_mapped(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
            raise CaptureError(f"{place_of(node)}: {MAPPED}")
