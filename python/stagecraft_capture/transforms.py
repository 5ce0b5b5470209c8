"""Transforms that a forward may ask for and no graph has: derivatives within it, and functions that are
mapped over a dimension; and tensors that no run holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError, place_of
from .export_errors import MAPPED
from .torch_private import FakeTensor, is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from torch import fx

    from .reach import Snapshot


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


def refuse_foreign(graph: fx.Graph) -> None:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
            raise CaptureError(f"{place_of(node)}: {MAPPED}")
        if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_nested):
            kind = "nested" if value.is_nested else "sparse"
            raise CaptureError(
                f"{place_of(node)}: makes a {kind} tensor, which runs do not know: compute with dense ones"
            )


def refuse_constants(constants: Iterable[tuple[fx.Node, Any]], around: Snapshot, trained: set[int]) -> None:
    """Of what a graph holds besides parameters and buffers: what runs cannot hold, or would not train.
    `around`: all that the module reaches; `trained`: ids of its parameters."""
    strays = {
        memory_of(leaf.value): path
        for path, leaf in around.leaves.items()
        if isinstance(leaf.value, torch.nn.Parameter)
        and leaf.value.requires_grad
        and id(leaf.value) not in trained
    }
    strays.pop(None, None)  # of a model without weights
    for node, value in constants:
        read_by = next((n for n in node.users if n.meta.get("differentiable", True)), None)
        if isinstance(value, torch.Generator):
            raise CaptureError(
                f"{place_of(read_by or node)}: draws from a generator of its own, and runs draw by name:"
                " leave generator= out"
            )
        stray = strays.get(memory_of(value)) if strays and isinstance(value, torch.Tensor) else None
        if read_by is not None and stray is not None:
            raise CaptureError(
                f"{place_of(read_by)}: reads the weight {stray.removeprefix('wrapped.')!r}, which is no"
                " parameter of the model, so no optimizer would train it: hold it as an attribute or in a"
                " torch.nn.ModuleList (a frozen one has requires_grad=False)"
            )


def memory_of(tensor: torch.Tensor) -> int | None:
    return None if isinstance(tensor, FakeTensor) else tensor.data_ptr()
