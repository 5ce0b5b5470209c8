"""Diagonals that are filled in place. Eager mode writes to them by a view of raw memory, which no run has;
here it is a view of the diagonal, which autograd writes back in the same way."""

import contextlib
from collections.abc import Iterator

import torch

PLAIN = torch.Tensor.fill_diagonal_


def fill_diagonal_(self: torch.Tensor, fill_value: float, wrap: bool = False) -> torch.Tensor:
    if self.dim() < 2 or (len(set(self.shape)) > 1 and self.dim() > 2):
        return PLAIN(self, fill_value, wrap)  # which refuses it
    if not self.requires_grad and self.dim() == 2 and not wrap:  # a mask, whose numbers Python may know
        rows, columns = (torch.arange(size) for size in self.shape)
        return self.masked_fill_(rows.unsqueeze(1) == columns, fill_value)
    if wrap and self.dim() == 2 and self.shape[0] > self.shape[1] + 1:
        if not self.is_contiguous():
            return PLAIN(self, fill_value, wrap)
        self.view(-1)[:: self.shape[1] + 1].fill_(fill_value)
        return self
    diagonal = self
    while diagonal.dim() > 1:
        diagonal = diagonal.diagonal(0, 0, -1)
    diagonal.fill_(fill_value)
    return self


@contextlib.contextmanager
def by_views() -> Iterator[None]:
    torch.Tensor.fill_diagonal_ = fill_diagonal_  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.fill_diagonal_ = PLAIN  # type: ignore[method-assign]
