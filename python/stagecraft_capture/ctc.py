"""Connectionist temporal classification as one operator of Stagecraft's own.

ATen's keeps a table from forward to backward whose size follows from the longest target of the batch, which
no graph can have. Here the backward makes it again (models/captured/operators/ctc_loss.cpp does the same).
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .errors import CaptureError
from .noise import LIBRARY

ATEN = torch.ops.aten
GIVEN = (
    "Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool"
    " zero_infinity"
)
LIBRARY.define(f"ctc_loss({GIVEN}) -> Tensor")
LIBRARY.define(f"ctc_loss_backward(Tensor grad, {GIVEN}) -> Tensor")

MEAN, SUM = 1, 2  # of torch.nn.functional's reductions


def with_table(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return ATEN._ctc_loss(
        log_probs, targets.long(), input_lengths.tolist(), target_lengths.tolist(), blank, zero_infinity
    )


def of_samples(*given: Any) -> torch.Tensor:
    return with_table(*given)[0]


def backward(grad: torch.Tensor, *given: Any) -> torch.Tensor:
    loss, table = with_table(*given)
    log_probs, targets, *lengths, blank, zero_infinity = given
    numbers = [each.tolist() for each in lengths]
    return ATEN._ctc_loss_backward(
        grad, log_probs, targets.long(), *numbers, loss, table, blank, zero_infinity
    )


def fake(log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape[1])


def fake_backward(grad: torch.Tensor, log_probs: torch.Tensor, *given: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.how = inputs[4:]


def differentiate(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    made = torch.ops.stagecraft_traced.ctc_loss_backward(grad, *ctx.saved_tensors, *ctx.how)
    return made, None, None, None, None, None


LIBRARY.impl("ctc_loss", of_samples, "CPU")
LIBRARY.impl("ctc_loss_backward", backward, "CPU")
torch.library.register_fake("stagecraft_traced::ctc_loss", fake, lib=LIBRARY)
torch.library.register_fake("stagecraft_traced::ctc_loss_backward", fake_backward, lib=LIBRARY)
torch.library.register_autograd(
    "stagecraft_traced::ctc_loss", differentiate, setup_context=remember, lib=LIBRARY
)


def lengths_of(given: Any) -> torch.Tensor:
    """As a tensor: a list of one number per sample would have another length at every size."""
    if isinstance(given, torch.Tensor):
        return given
    numbers: Sequence[int] = list(given)
    if len(set(numbers)) > 1:
        raise CaptureError(
            "F.ctc_loss with a list of lengths that differ, which are one batch's: give them as a tensor, a"
            " field of the batch (--field lengths=i64[])"
        )
    return torch.full((len(numbers),), numbers[0] if numbers else 0)


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """As LibTorch's ctc_loss() composes it."""
    if targets.dim() != 2:
        raise CaptureError(
            f"F.ctc_loss with targets of {list(targets.shape)}, all samples' one behind the other: pad"
            " them to [samples, classes], a field of the batch, and give their lengths"
        )
    alone = log_probs.dim() == 2
    given = log_probs.unsqueeze(1) if alone else log_probs
    lengths = lengths_of(target_lengths)
    loss = torch.ops.stagecraft_traced.ctc_loss(
        given, targets, lengths_of(input_lengths), lengths, blank, zero_infinity
    )
    if zero_infinity:
        loss = torch.where(loss == float("inf"), loss.new_zeros([]), loss)
    if reduction == MEAN:
        return (loss / lengths.to(loss.dtype).clamp_min(1)).mean()
    if reduction == SUM:
        return loss.sum()
    return loss.squeeze(0) if alone else loss


@contextlib.contextmanager
def ctc_by_samples() -> Iterator[None]:
    """torch.nn.functional.ctc_loss calls the operator in place of ATen's."""
    plain = torch.ctc_loss
    torch.ctc_loss = ctc_loss
    try:
        yield
    finally:
        torch.ctc_loss = plain
