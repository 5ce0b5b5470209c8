"""LSTMs as eager mode runs them on the CPU: by oneDNN's kernel, one call per layer and direction.

AOTAutograd would unroll them over time, and round otherwise. ATen's operator of that kernel keeps a workspace
whose size only oneDNN knows. So here it is an operator of Stagecraft's own, whose backward makes the
workspace again (models/captured/operators/lstm.cpp does the same). Where eager does not use oneDNN
(projections, other types), the LSTM is unrolled, as eager does it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .noise import LIBRARY
from .torch_private import VF

ATEN = torch.ops.aten
GIVEN = "Tensor x, Tensor w_ih, Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor hx, Tensor cx, bool reverse"
LIBRARY.define(f"lstm({GIVEN}, bool train) -> (Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"lstm_backward(Tensor grad_y, Tensor grad_h, Tensor grad_c, {GIVEN}) -> (Tensor, Tensor, Tensor, Tensor,"
    " Tensor, Tensor)"
)
KIND = 2  # of oneDNN's recurrent layers: LSTM


def one_layer(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
    train: bool,
) -> Any:
    """What the layer makes, and the workspace; and the arguments that its backward takes again."""
    biased = b_ih is not None
    weights = (w_ih, w_hh, *((b_ih, b_hh) if biased else (torch.zeros_like(w_ih), torch.zeros_like(w_hh))))
    x, hx, cx = x.contiguous(), hx.contiguous(), cx.contiguous()
    with torch.set_grad_enabled(train):  # which decides whether there is a workspace
        made = ATEN.mkldnn_rnn_layer(
            x, *weights, hx, cx, reverse, [], KIND, hx.shape[-1], 1, biased, False, False, train
        )
    return made, (x, *weights, hx, cx)


def lstm(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    return tuple(one_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, train)[0][:3])


def lstm_backward(
    grad_y: torch.Tensor,
    grad_h: torch.Tensor,
    grad_c: torch.Tensor,
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    (y, h, c, workspace), given = one_layer(x, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, True)
    about: tuple[Any, ...] = (reverse, KIND, hx.shape[-1], 1, b_ih is not None, True, False, [], False)
    made = ATEN.mkldnn_rnn_layer_backward(
        *given, y, h, c, grad_y.contiguous(), grad_h.contiguous(), grad_c.contiguous(), *about, workspace
    )
    return made[0], made[1], made[2], made[3], made[5], made[6]  # the biases have one gradient


def fake_lstm(
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
    train: bool,
) -> tuple[torch.Tensor, ...]:
    return x.new_empty((*x.shape[:2], hx.shape[-1])), torch.empty_like(hx), torch.empty_like(cx)


def fake_backward(
    grad_y: torch.Tensor,
    grad_h: torch.Tensor,
    grad_c: torch.Tensor,
    x: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    return (
        x.new_empty(x.shape),
        w_ih.new_empty(w_ih.shape),
        w_hh.new_empty(w_hh.shape),
        w_ih.new_empty(w_ih.shape[:1]),
        hx.new_empty(hx.shape),
        cx.new_empty(cx.shape),
    )


def remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.reverse = inputs[7]


def differentiate(
    ctx: Any, grad_y: torch.Tensor, grad_h: torch.Tensor, grad_c: torch.Tensor
) -> tuple[Any, ...]:
    given = ctx.saved_tensors
    x, w_ih, w_hh, bias, hx, cx = torch.ops.stagecraft_traced.lstm_backward(
        grad_y, grad_h, grad_c, *given, ctx.reverse
    )
    biases = (None, None) if given[3] is None else (bias, bias)
    return x, w_ih, w_hh, *biases, hx, cx, None, None


LIBRARY.impl("lstm", lstm, "CPU")
LIBRARY.impl("lstm_backward", lstm_backward, "CPU")
torch.library.register_fake("stagecraft_traced::lstm", fake_lstm, lib=LIBRARY)
torch.library.register_fake("stagecraft_traced::lstm_backward", fake_backward, lib=LIBRARY)
torch.library.register_autograd("stagecraft_traced::lstm", differentiate, setup_context=remember, lib=LIBRARY)


def by_one_dnn(given: torch.Tensor, states: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> bool:
    """Whether eager mode calls oneDNN's kernel, where that is enabled. States of two sizes are those of
    projections."""
    return states[0].shape == states[1].shape and {t.dtype for t in (given, *states, *weights)} <= {
        torch.float32,
        torch.bfloat16,
    }


def by_layers(
    given: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As LibTorch's mkldnn_rnn() calls the kernel."""
    x = given.transpose(0, 1) if batch_first else given
    directions = 2 if bidirectional else 1
    hidden: list[torch.Tensor] = []
    cells: list[torch.Tensor] = []
    of_direction = len(weights) // (layers * directions)
    for layer in range(layers):
        outputs: list[torch.Tensor] = []
        for direction in range(directions):
            at = layer * directions + direction
            own = list(weights[at * of_direction : (at + 1) * of_direction]) + (
                [] if biased else [None, None]
            )
            made = torch.ops.stagecraft_traced.lstm(
                x, *own, states[0][at], states[1][at], direction > 0, train
            )
            for tensor, into in zip(made, (outputs, hidden, cells)):
                into.append(tensor)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(hidden), torch.stack(cells)


@contextlib.contextmanager
def lstms_by_layers() -> Iterator[None]:
    """torch.nn.LSTM calls the kernel's operator in place of ATen's."""
    plain = VF.lstm
    # torch.export disables it
    enabled = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled

    def packed(given: tuple[Any, ...]) -> bool:
        return isinstance(given[3], (list, tuple))

    VF.lstm = lambda *given: (
        by_layers(*given) if enabled and not packed(given) and by_one_dnn(*given[:3]) else plain(*given)
    )
    try:
        yield
    finally:
        del VF.lstm
