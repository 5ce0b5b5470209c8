"""Tensors that lie in memory with gaps: a part of a larger tensor, such as a slice of a row or one of the
tensors of a stack. A few kernels round otherwise there (sums over rows, batch norm), since they take a
processor's vector of neighbours at a time.

What goes on from layer to layer is dense. Where eager's has gaps and the check finds a difference, the model
is captured again, and each layer begins with a copy that lies as eager's does."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch


class Lying(NamedTuple):
    """In which order of its dimensions a tensor lies, and how."""

    order: list[int]  # of dimensions, from the largest stride to the smallest
    room: list[
        int
    ]  # [place in the order] so many numbers of that dimension have room; the first: those it has
    gap: int  # from a number to the next


def with_gaps(tensor: torch.Tensor) -> Lying | None:
    """None where the tensor is dense in some order, or lies as no part of a dense one does. Sizes of one have
    no stride of their own. The samples must be first: how many they are does not tell how they lie."""
    sizes, strides = tensor.shape, tensor.stride()
    wide = [d for d in range(tensor.dim()) if sizes[d] > 1]
    wide.sort(key=lambda d: (-strides[d], d))
    if not wide or wide[0] != 0 or strides[wide[-1]] == 0:
        return None
    room = [sizes[0]]
    for outer, inner in itertools.pairwise(wide):
        if (
            strides[inner] == 0
            or strides[outer] % strides[inner]
            or strides[outer] < strides[inner] * sizes[inner]
        ):
            return None
        room.append(strides[outer] // strides[inner])
    gap = strides[wide[-1]]
    if gap == 1 and room == [sizes[d] for d in wide]:
        return None
    single = [d for d in range(tensor.dim()) if sizes[d] <= 1]
    return Lying([wide[0], *single, *wide[1:]], [room[0], *[1] * len(single), *room[1:]], gap)


def dense_in(tensor: torch.Tensor, order: list[int] | None) -> Lying:
    """Without gaps, with its dimensions in this order."""
    order = order or list(range(tensor.dim()))
    return Lying(order, [tensor.shape[d] for d in order], 1)


def laid(tensor: torch.Tensor, lying: Lying) -> torch.Tensor:
    """A copy that lies so."""
    made = tensor.permute(lying.order)
    sizes = list(made.shape)
    if lying.gap > 1:
        made = made.unsqueeze(-1).expand(*sizes, lying.gap)
    more = [room - size for room, size in zip(lying.room[1:], sizes[1:])]
    if any(more):
        ends = [end for size in reversed(more) for end in (0, size)]
        made = torch.nn.functional.pad(made.contiguous(), [0, 0, *ends] if lying.gap > 1 else ends)
        for d, size in enumerate(sizes[1:], 1):
            made = made.narrow(d, 0, size)
    else:
        made = made.clone(memory_format=torch.contiguous_format)
    if lying.gap > 1:
        made = made.select(-1, 0)
    return made.permute(sorted(range(len(sizes)), key=lying.order.__getitem__))


class AsItLies(torch.autograd.Function):
    """A copy that lies so; its gradient goes on as it is."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, lying: Lying) -> torch.Tensor:
        return laid(value, lying)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def as_it_lies(value: torch.Tensor, lying: Lying) -> torch.Tensor:
    made: torch.Tensor = AsItLies.apply(value, lying)
    return made


class GradientLying(torch.autograd.Function):
    """The tensor itself; its gradient goes on as a copy that lies so."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, lying: Lying) -> torch.Tensor:
        ctx.lying = lying
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return laid(gradients[0], ctx.lying), None


def gradient_lying(value: torch.Tensor, lying: Lying) -> torch.Tensor:
    made: torch.Tensor = GradientLying.apply(value, lying)
    return made
