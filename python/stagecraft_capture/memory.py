"""Tensors of a module that lie in the memory of a trained parameter: eager's optimizer would change them too,
a run's would not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import CaptureError
from .reach import is_fake

if TYPE_CHECKING:
    import torch

    from .composite import Composite


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Its first byte, and the one behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def refuse_shared(held: Iterable[tuple[str, torch.Tensor, bool]], prefix: str) -> None:
    """`held`: (name, tensor, whether it is a parameter that is trained), each tensor once."""
    known = [(*extent(t), name, trained) for name, t, trained in held if not is_fake(t) and t.numel()]
    end, before, before_trained = 0, "", False
    for first, last, name, trained in sorted(known, key=lambda found: found[:2]):
        if first < end and (trained or before_trained):
            one, other = (before, name) if before_trained else (name, before)
            one, other = one.removeprefix(prefix), other.removeprefix(prefix)
            raise CaptureError(
                f"{other!r} lies in the memory of the parameter {one!r}: the optimizer changes both in eager"
                " mode, and in a run the parameter alone; read the parameter itself, or keep a clone"
            )
        if last > end:
            end, before, before_trained = last, name, trained


def refuse_shared_parameters(module: torch.nn.Module) -> None:
    refuse_shared(
        [(name, p, p.requires_grad) for name, p in module.named_parameters()], getattr(module, "PREFIX", "")
    )


def refuse_shared_with_parameters(module: torch.nn.Module, composite: Composite) -> None:
    """Of what the graph reads."""
    others = {id(tensor): (kind, name, tensor) for kind, name, tensor in composite.tensors.values()}
    held = [(name, tensor, kind == "parameter") for kind, name, tensor in others.values()]
    known = {id(tensor) for _, tensor, _ in held}
    held += [(name, p, p.requires_grad) for name, p in module.named_parameters() if id(p) not in known]
    refuse_shared(held, getattr(module, "PREFIX", ""))
