"""Functions of torch that look at the batch's numbers before they compute, to refuse some: no graph can. They
compute without looking while a module is followed; in eager mode they have looked at the samples."""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

F = torch.nn.functional


class WithoutAny:
    """torch, where nothing is true of any number."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def any(*given: Any) -> bool:
        return False


def inverse_stft(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
    """Traced, torch.istft is written out in Python, without its look at the window. Eager mode begins with a
    view of real numbers, whose gradient it lays out densely."""
    return ISTFT(torch.view_as_complex(torch.view_as_real(x)) if x.is_complex() else x, *given, **named)


ISTFT = torch.istft


@contextlib.contextmanager
def without_number_checks() -> Iterator[None]:
    """For F.gaussian_nll_loss, and for torch.distributions whose makers did not ask for checks."""
    plain, checked = F.gaussian_nll_loss, torch.distributions.Distribution._validate_args
    names = {**plain.__globals__, "torch": WithoutAny()}
    unchecked = names["gaussian_nll_loss"] = types.FunctionType(plain.__code__, names)
    unchecked.__defaults__, unchecked.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    F.gaussian_nll_loss, torch.istft = unchecked, inverse_stft
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        F.gaussian_nll_loss, torch.istft = plain, ISTFT
        torch.distributions.Distribution.set_default_validate_args(checked)
