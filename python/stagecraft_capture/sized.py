"""Functions of torch whose results have sizes that the batch's numbers decide, written with others that make
the same bits in a size that is given: counts, histograms, repeats. Covariances are here too, in whose
operator torch.export sees a branch. Their arguments have torch's names.
"""

# ruff: noqa: A002

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .errors import CaptureError
from .instead import INSTEAD

PLAIN = {name: getattr(torch, name) for name in ("bincount", "histc", "repeat_interleave", "cov", "corrcoef")}


def bincount(input: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    if not minlength:
        raise CaptureError(
            f"torch.bincount makes as many counts as the largest number is: {INSTEAD['bincount']}"
        )
    kind = (
        torch.int64 if weights is None else torch.float64 if weights.dtype != torch.float32 else torch.float32
    )
    one = torch.ones_like(input, dtype=kind) if weights is None else weights.to(kind)
    return torch.zeros(minlength, dtype=kind).scatter_add(0, input.long(), one)


def histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> torch.Tensor:
    if min == max:
        raise CaptureError(f"torch.histc looks for the least and the largest number: {INSTEAD['histc']}")
    flat = input.detach().flatten()
    edges = torch.linspace(min, max, bins + 1, dtype=flat.dtype)
    counted = (flat >= edges[0]) & (flat <= edges[-1])
    place = (torch.searchsorted(edges, flat, right=True) - 1).clamp(0, bins - 1)  # the last bin has its end
    return torch.zeros(bins, dtype=flat.dtype).scatter_add(0, place, counted.to(flat.dtype))


def repeat_interleave(input: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    repeats = named.pop("repeats", None)
    given = (repeats, *given) if repeats is not None else given
    if given and not isinstance(given[0], torch.Tensor):
        return PLAIN["repeat_interleave"](input, *given, **named)
    size = named.pop("output_size", None)
    if size is None:
        raise CaptureError(
            f"torch.repeat_interleave by a tensor makes as many as its sum is: {INSTEAD['repeat_interleave']}"
        )
    if not given:
        return places(input, size)
    repeats, dim = given[0], given[1] if len(given) > 1 else named.get("dim")
    of, at = (input.flatten(), 0) if dim is None else (input, dim)
    repeats = repeats.expand(of.shape[at]) if repeats.numel() == 1 else repeats
    return of.index_select(at, places(repeats, size))


def places(repeats: torch.Tensor, size: int) -> torch.Tensor:
    """0 as often as repeats[0] says, 1 as often as repeats[1] says, and so on."""
    return torch.searchsorted(repeats.long().cumsum(0), torch.arange(size), right=True)


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    if fweights is not None or aweights is not None or input.is_complex():
        return PLAIN["cov"](input, correction=correction, fweights=fweights, aweights=aweights)
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    count = rows.shape[1]
    apart = rows - (rows.sum(1) / count).unsqueeze(1)
    return (apart.mm(apart.t()) / (count - correction)).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    if input.is_complex() or input.dim() < 2:
        return PLAIN["corrcoef"](input)
    made = cov(input)
    deviation = made.diagonal().sqrt()
    return ((made / deviation.view(-1, 1)) / deviation.view(1, -1)).clamp(-1, 1)


@contextlib.contextmanager
def of_given_sizes() -> Iterator[None]:
    """torch's functions, and tensors' methods of their names, are those of here."""
    own = {
        "bincount": bincount,
        "histc": histc,
        "repeat_interleave": repeat_interleave,
        "cov": cov,
        "corrcoef": corrcoef,
    }
    methods = {name: getattr(torch.Tensor, name) for name in own}
    for name, function in own.items():
        setattr(torch, name, function)
        setattr(torch.Tensor, name, function)
    try:
        yield
    finally:
        for name, plain in PLAIN.items():
            setattr(torch, name, plain)
            setattr(torch.Tensor, name, methods[name])
