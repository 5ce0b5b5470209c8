"""GRUs with the steps that eager mode takes on the CPU, one operator per layer and direction.

AOTAutograd would write every step into the graph, and a capture of a hundred steps would take half an hour.
So the steps of a direction are an operator of Stagecraft's own (models/captured/operators/gru.cpp does the
same). Its backward is autograd's, written out: one operator for what goes on to the steps before, one for the
weights, which a zero-bubble schedule may delay.

LibTorch writes its gates in place, to slices of one product. Gates computed one after the other in memory of
their own would be rounded otherwise at the last elements of a row. So here the gates are slices too.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .noise import LIBRARY
from .torch_private import VF

ATEN = torch.ops.aten
GIVEN = "Tensor of_input, Tensor w_hh, Tensor? b_hh, Tensor hx"
LIBRARY.define(f"gru({GIVEN}, bool reverse) -> (Tensor, Tensor)")
LIBRARY.define(
    f"gru_backward(Tensor? grad_y, Tensor? grad_h, {GIVEN}, Tensor y, bool reverse)"
    " -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define("gru_backward_weight(Tensor of_hidden, Tensor hx, Tensor y, bool reverse) -> (Tensor, Tensor)")


class Gates(NamedTuple):
    of_new: torch.Tensor  # the hidden state's part of the new one
    reset: torch.Tensor
    update: torch.Tensor
    new: torch.Tensor


def gates(of_input: torch.Tensor, of_hidden: torch.Tensor) -> Gates:
    """Of the input's and the hidden state's parts of all three gates."""
    reset, update, _ = (of_hidden + of_input).chunk(3, 1)
    of_new = of_hidden.chunk(3, 1)[2]
    reset = reset.sigmoid()
    return Gates(of_new, reset, update.sigmoid(), (of_input.chunk(3, 1)[2] + of_new * reset).tanh())


def gates_backward(grad: torch.Tensor, hidden: torch.Tensor, its: Gates) -> tuple[torch.Tensor, ...]:
    """Gradients of both parts, and of what the hidden state is past the gates."""
    zeros = torch.zeros_like(grad)
    passed = grad * its.update
    d_update = ATEN.sigmoid_backward(grad * (hidden - its.new), its.update)
    d_new = ATEN.tanh_backward(grad + passed.neg(), its.new)
    d_reset = ATEN.sigmoid_backward(d_new * its.of_new, its.reset)
    of_both = torch.cat([d_reset, d_update, zeros], 1)
    of_input = torch.cat([zeros, zeros, d_new], 1) + of_both
    return of_input, torch.cat([zeros, zeros, d_new * its.reset], 1) + of_both, passed


def order(steps: int, reverse: bool) -> list[int]:
    return list(range(steps))[:: -1 if reverse else 1]


def states_before(hx: torch.Tensor, y: torch.Tensor, reverse: bool) -> dict[int, torch.Tensor]:
    """Of each step, in the order in which they are taken. Copies, since products on some processors round by
    where their arguments lie within a vector."""
    steps = order(y.shape[0], reverse)
    return {t: y[steps[k - 1]].clone() if k else hx for k, t in enumerate(steps)}


def gru(
    of_input: torch.Tensor, w_hh: torch.Tensor, b_hh: torch.Tensor | None, hx: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`of_input`: [steps, samples, 3 x size]. The states behind each step, and behind the last."""
    hidden, states = hx, {}
    for t in order(of_input.shape[0], reverse):
        its = gates(of_input[t], torch.nn.functional.linear(hidden, w_hh, b_hh))
        hidden = states[t] = (hidden - its.new) * its.update + its.new
    return torch.stack([states[t] for t in sorted(states)]), hidden.clone()


def gru_backward(
    grad_y: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    of_input: torch.Tensor,
    w_hh: torch.Tensor,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    y: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    """Gradients of the input's part, of the hidden states' part, and of hx. Sums as autograd adds."""
    of_inputs, of_hiddens = {}, {}
    zeros, addends = torch.zeros_like(hx), [] if grad_h is None else [grad_h]
    for t, before in reversed(states_before(hx, y, reverse).items()):
        grad, *others = [*([] if grad_y is None else [grad_y[t]]), *addends] or [zeros]
        for other in others:
            grad = grad + other
        its = gates(of_input[t], torch.nn.functional.linear(before, w_hh, b_hh))
        of_inputs[t], of_hiddens[t], passed = gates_backward(grad, before, its)
        addends = [passed, of_hiddens[t].mm(w_hh)]
    return (
        torch.stack([of_inputs[t] for t in sorted(of_inputs)]),
        torch.stack([of_hiddens[t] for t in sorted(of_hiddens)]),
        addends[0] + addends[1],
    )


def gru_backward_weight(
    of_hidden: torch.Tensor, hx: torch.Tensor, y: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of w_hh and b_hh."""
    made: tuple[torch.Tensor, ...] = ()
    for t, before in reversed(states_before(hx, y, reverse).items()):
        its = of_hidden[t].clone()
        of_step = its.t().mm(before), its.sum([0], True).view(-1)
        made = (made[0] + of_step[0], made[1] + of_step[1]) if made else of_step
    return made[0], made[1]


def fake_gru(
    of_input: torch.Tensor, w_hh: torch.Tensor, b_hh: torch.Tensor | None, hx: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return hx.new_empty((of_input.shape[0], *hx.shape)), hx.new_empty(hx.shape)


def fake_backward(
    grad_y: torch.Tensor | None,
    grad_h: torch.Tensor | None,
    of_input: torch.Tensor,
    w_hh: torch.Tensor,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    y: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    return of_input.new_empty(of_input.shape), of_input.new_empty(of_input.shape), hx.new_empty(hx.shape)


def fake_backward_weight(
    of_hidden: torch.Tensor, hx: torch.Tensor, y: torch.Tensor, reverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    gates_size = of_hidden.shape[2]
    return hx.new_empty((gates_size, hx.shape[1])), hx.new_empty((gates_size,))


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:4], output[0])
    ctx.reverse = inputs[4]


def differentiate(ctx: Any, grad_y: torch.Tensor | None, grad_h: torch.Tensor | None) -> tuple[Any, ...]:
    of_input, w_hh, b_hh, hx, y = ctx.saved_tensors
    d_input, d_hidden, d_hx = torch.ops.stagecraft_traced.gru_backward(
        grad_y, grad_h, of_input, w_hh, b_hh, hx, y, ctx.reverse
    )
    d_w_hh, d_b_hh = torch.ops.stagecraft_traced.gru_backward_weight(d_hidden, hx, y, ctx.reverse)
    return d_input, d_w_hh, None if b_hh is None else d_b_hh, d_hx, None


LIBRARY.impl("gru", gru, "CPU")
LIBRARY.impl("gru_backward", gru_backward, "CPU")
LIBRARY.impl("gru_backward_weight", gru_backward_weight, "CPU")
torch.library.register_fake("stagecraft_traced::gru", fake_gru, lib=LIBRARY)
torch.library.register_fake("stagecraft_traced::gru_backward", fake_backward, lib=LIBRARY)
torch.library.register_fake("stagecraft_traced::gru_backward_weight", fake_backward_weight, lib=LIBRARY)
torch.library.register_autograd("stagecraft_traced::gru", differentiate, setup_context=remember, lib=LIBRARY)


def by_layers(
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
            w_ih, w_hh, b_ih, b_hh = own
            of_input = torch.nn.functional.linear(x, w_ih, b_ih)
            made, end = torch.ops.stagecraft_traced.gru(of_input, w_hh, b_hh, hidden[at], direction > 0)
            outputs.append(made)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last)


class GruCell(torch.autograd.Function):
    """One step, of the products made already. As autograd has it in eager mode: what the hidden state gets
    past the gates is an addend of its own, before that of the product."""

    @staticmethod
    def forward(
        ctx: Any, of_input: torch.Tensor, of_hidden: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        its = gates(of_input, of_hidden)
        ctx.save_for_backward(hidden, *its)
        return (hidden - its.new) * its.update + its.new

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden, *its = ctx.saved_tensors
        return gates_backward(grads[0], hidden, Gates(*its))


def cell(
    given: torch.Tensor,
    hidden: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
) -> torch.Tensor:
    linear = torch.nn.functional.linear
    made: torch.Tensor = GruCell.apply(linear(given, w_ih, b_ih), linear(hidden, w_hh, b_hh), hidden)
    return made


@contextlib.contextmanager
def grus_by_layers() -> Iterator[None]:
    """torch.nn.GRU takes these operators in place of ATen's operator, torch.nn.GRUCell this function."""
    plain = VF.gru

    def packed(given: tuple[Any, ...]) -> bool:
        return isinstance(given[3], (list, tuple))

    VF.gru = lambda *given: plain(*given) if packed(given) else by_layers(*given)
    VF.gru_cell = cell
    try:
        yield
    finally:
        del VF.gru, VF.gru_cell
