"""GRUs with the steps that eager mode takes on the CPU.

LibTorch writes its gates in place, to slices of one product. Graphs without such writes would compute the
gates one after the other in memory of their own, and kernels round the last elements of a row otherwise
there. So here the gates are slices too.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .torch_private import VF


def step(
    of_input: torch.Tensor, hidden: torch.Tensor, w_hh: torch.Tensor, b_hh: torch.Tensor | None
) -> torch.Tensor:
    """`of_input`: the input's part of all three gates."""
    of_hidden = torch.nn.functional.linear(hidden, w_hh, b_hh)
    reset, update, _ = (of_hidden + of_input).chunk(3, 1)
    new = (of_input.chunk(3, 1)[2] + of_hidden.chunk(3, 1)[2] * reset.sigmoid()).tanh()
    return (hidden - new) * update.sigmoid() + new


def one_layer(
    x: torch.Tensor, hidden: torch.Tensor, weights: Sequence[torch.Tensor], reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    w_ih, w_hh, b_ih, b_hh = weights
    outputs = []
    steps = torch.nn.functional.linear(x, w_ih, b_ih).unbind(0)
    for of_input in reversed(steps) if reverse else steps:
        hidden = step(of_input, hidden, w_hh, b_hh)
        outputs.append(hidden)
    return torch.stack(outputs[::-1] if reverse else outputs), hidden


def by_steps(
    given: torch.Tensor,
    hidden: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    x = given.transpose(0, 1) if batch_first else given
    directions, last = 2 if bidirectional else 1, []
    of_direction = len(weights) // (layers * directions)
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(weights[at * of_direction : (at + 1) * of_direction]) + (
                [] if biased else [None, None]
            )
            made, end = one_layer(x, hidden[at], own, direction > 0)
            outputs.append(made)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last)


@contextlib.contextmanager
def grus_by_steps() -> Iterator[None]:
    """torch.nn.GRU takes these steps in place of ATen's operator."""
    plain = VF.gru

    def packed(given: tuple[Any, ...]) -> bool:
        return isinstance(given[3], (list, tuple))

    VF.gru = lambda *given: plain(*given) if packed(given) else by_steps(*given)
    try:
        yield
    finally:
        del VF.gru
