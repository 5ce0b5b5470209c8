"""What goes on from layer to layer, and the gradients that come back, lie densely in the order of their
dimensions, as they travel between ranks.

Where eager has it in another order (images with channels last), the layer hands on the view whose order of
dimensions is that of the memory, and the next one begins with the view back. So kernels see the strides that
they see in eager, and nothing is copied. Where eager's gradient lies in another order than the value, the
backward of the layer below begins with a copy in that order: sums depend on it. For what lies with gaps see
gaps.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .errors import CaptureError, place_in, place_of
from .export_errors import place_of_backward, said
from .gaps import Lying, as_it_lies, dense_in, gradient_lying, with_gaps

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Json, Needs
    from .composite import Composite
    from .cut import Piece


PERMUTE = torch.ops.aten.permute.default


def memory_order(value: torch.Tensor) -> list[int] | None:
    """Dimensions from the largest stride to the smallest, or None where the tensor is not dense in any
    order."""
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    return order if value.permute(order).is_contiguous() else None


def other_memory_order(value: torch.Tensor) -> list[int] | None:
    """That of a tensor which lies otherwise than files hold it."""
    return None if value.is_contiguous() else memory_order(value)


def order_between(value: torch.Tensor) -> list[int] | None:
    """The order in which a value goes on, or None for that of its dimensions: the memory's, also where the
    value is part of a larger one, so that kernels choose as they do in eager mode."""
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    overlaps = any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride()))
    return None if overlaps or order == list(range(value.dim())) else order


def replace_between(pieces: list[Piece], maker: int, value: fx.Node, handed: fx.Node) -> None:
    """Behind piece `maker`, `handed` goes on in place of `value`. Who reads it must say so."""

    def swap(nodes: list[fx.Node]) -> list[fx.Node]:
        return [handed if n is value else n for n in nodes]

    pieces[maker].outputs = swap(pieces[maker].outputs)
    for piece in pieces[maker + 1 :]:
        piece.inputs, piece.outputs = swap(piece.inputs), swap(piece.outputs)


def values_made(pieces: list[Piece]) -> list[tuple[int, int, fx.Node]]:
    """(piece, which of its outputs, node) of what goes on, once each."""
    return [
        (i, k, node)
        for i, piece in enumerate(pieces[:-1])
        for k, node in enumerate(piece.outputs)
        if node not in piece.inputs
    ]


def orders_between(pieces: list[Piece]) -> list[list[int] | None]:
    """The order in which each of values_made() goes on, as it lies in these pieces."""
    return [own_order(node.meta["val"]) for _, _, node in values_made(pieces)]


def own_order(value: torch.Tensor) -> list[int] | None:
    return None if value.is_contiguous() else order_between(value)


def dense_between(
    pieces: list[Piece],
    composite: Composite,
    needs: Needs,
    gaps: bool,
    orders: list[list[int] | None],
) -> None:
    """`gaps`: who reads what lies with gaps in eager mode reads a copy that lies so. `orders`: of training,
    by orders_between(). In evaluation a value may lie otherwise (`if self.training: x = x.contiguous()`): it
    goes on in training's order, and who reads it reads a copy that lies as it did."""
    for (maker, _, value), order in zip(values_made(pieces), orders):
        made = value.meta["val"]
        own = own_order(made)
        if order is None and made.is_contiguous():
            continue
        handed, lying = value, with_gaps(made) if gaps else None
        if own != order:
            lying = dense_in(made, own)
        if order is not None:
            handed = append(
                pieces[maker], composite, needs, PERMUTE, (handed, order), {}, made.permute(order)
            )
        if own != order or memory_order(made) is None:
            contiguous = {"memory_format": torch.contiguous_format}
            handed = append(
                pieces[maker],
                composite,
                needs,
                torch.ops.aten.clone.default,
                (handed,),
                contiguous,
                handed.meta["val"].contiguous(),
            )
        replace_between(pieces, maker, value, handed)
        for piece in pieces[maker + 1 :]:
            if handed in piece.inputs:
                read_as(piece, value, handed, order, lying, composite, needs)


def dense_output(last: Piece, composite: Composite, needs: Needs) -> None:
    """Of a model without a loss of its own, whose gradient comes in the order of its dimensions."""
    output = last.outputs[0]
    if composite.loss is None and not output.meta["val"].is_contiguous():
        contiguous = {"memory_format": torch.contiguous_format}
        made = output.meta["val"].contiguous()
        last.outputs = [
            append(last, composite, needs, torch.ops.aten.clone.default, (output,), contiguous, made)
        ]


def append(
    piece: Piece,
    composite: Composite,
    needs: Needs,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Json,
    value: torch.Tensor,
) -> fx.Node:
    """A node behind the piece's last."""
    last = piece.nodes[-1]
    with composite.graph.inserting_after(last):
        node = composite.graph.call_function(target, args, kwargs)
    node.meta = {**args[0].meta, "val": value}
    needs[node] = [args[0]]
    composite.nodes.insert(composite.nodes.index(last) + 1, node)
    piece.nodes = [*piece.nodes, node]
    return node


def read_as(
    piece: Piece,
    value: fx.Node,
    handed: fx.Node,
    order: list[int] | None,
    lying: Lying | None,
    composite: Composite,
    needs: Needs,
) -> None:
    """The piece reads `handed` and begins with the view that is `value` again, or a copy that lies so."""
    back, first = handed, piece.nodes[0]
    if order is not None:
        inverse = sorted(range(len(order)), key=order.__getitem__)
        with composite.graph.inserting_before(first):
            back = composite.graph.call_function(PERMUTE, (handed, inverse))
        back.meta = dict(value.meta)
        needs[back] = [handed]
        composite.nodes.insert(composite.nodes.index(first), back)
        piece.views[handed] = (back, order)
    begin = [] if back is handed else [back]
    if lying is not None:
        with composite.graph.inserting_before(first):
            copy = composite.graph.call_function(as_it_lies, (back, lying))
        copy.meta = dict(value.meta)
        needs[copy] = [back]
        composite.nodes.insert(composite.nodes.index(first), copy)
        begin, back = [*begin, copy], copy
    for node in piece.nodes:
        node.replace_input_with(value, back)
        needs[node] = [back if n is value else n for n in needs[node]]
    piece.nodes = [*begin, *piece.nodes]


class InOrder(torch.autograd.Function):
    """The tensor itself; its gradient goes on in another order of memory."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, order: list[int]) -> torch.Tensor:
        ctx.order = order
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        inverse = sorted(range(len(ctx.order)), key=ctx.order.__getitem__)
        return gradient.permute(ctx.order).contiguous().permute(inverse), None


def with_gradient_in_order(value: torch.Tensor, order: list[int]) -> torch.Tensor:
    return InOrder.apply(value, order)


class Gradients(NamedTuple):
    """Of each value that goes on, by values_made(), as it is in eager mode."""

    orders: list[list[int] | None]  # its gradient's order of memory; None: the value's own, or none at all
    lying: list[Lying | None]  # its gradient's, where that has gaps
    gaps_between: bool  # whether some value has
    differentiable: list[list[bool]]  # of each piece's inputs: whether it requires a gradient
    reached: set[fx.Node]  # the values that get one
    # whether it requires one and gets none, as what goes from trained layers to .detach() or into no_grad
    ended: list[bool]
    # of each piece's outputs: whether it goes through, to pieces that have no gradient for it
    silent: list[list[bool]]

    @property
    def gaps(self) -> bool:
        return self.gaps_between or any(self.lying)


def gradients_between(
    composite: Composite, pieces: list[Piece], inputs: dict[str, torch.Tensor]
) -> Gradients:
    """The graph is run once for that. `inputs`: the fields of a batch."""

    def copy(kind: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return (
            tensor.detach().clone()
            if kind == "buffer" or name in composite.changing
            else tensor.detach().requires_grad_(kind == "parameter")
        )

    values = {node: copy(*about) for node, about in composite.tensors.items()}
    values.update({node: inputs[name] for node, name in composite.fields.items()})
    made_in = {node: maker for maker, _, node in values_made(pieces)}
    piece_of = {node: i for i, piece in enumerate(pieces) for node in piece.nodes}
    # what later pieces read: a gradient of the value itself may come from readers in its own piece
    handed_on: dict[fx.Node, torch.Tensor] = {}
    # of those what one of them reads, where several do
    read_in: dict[tuple[fx.Node, int], torch.Tensor] = {}
    through = {n for piece in pieces for n in piece.outputs if n in piece.inputs}

    def read(value: fx.Node, reader: fx.Node) -> Any:
        if value not in made_in or piece_of.get(reader, -1) <= made_in[value]:
            return values[value]
        if value not in handed_on:
            handed_on[value] = torch.ops.aten.alias.default(values[value])
        at = value, piece_of.get(reader, -1)
        if value in through and at not in read_in:
            read_in[at] = torch.ops.aten.alias.default(handed_on[value])
        return read_in.get(at, handed_on[value])

    with torch.random.fork_rng(devices=[]):
        for node in composite.nodes:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n, node=node: read(n, node))
            try:
                values[node] = node.target(*args, **kwargs)
            except (RuntimeError, IndexError) as error:
                raise CaptureError(
                    f"{place_of(node)}: {node.target} fails in eager mode, with"
                    f" {len(next(iter(inputs.values())))} samples: {str(error).strip().splitlines()[0]}; call"
                    " the module with as many in Python, and mend it there (what goes in pairs is one sample:"
                    " [2, ...])"
                ) from error
    result, crossing = (
        values[composite.loss or composite.output],
        [values[node] for _, _, node in values_made(pieces)],
    )
    wanted = [v for v in (*crossing, *handed_on.values(), *read_in.values()) if v.requires_grad]
    try:
        made = (
            torch.autograd.grad(
                result,
                wanted,
                torch.ones_like(result, memory_format=torch.contiguous_format),
                allow_unused=True,
            )
            if wanted
            else ()
        )
    except Exception as error:  # a backward of the user's own may raise any
        place = place_in(error) or place_of_backward(error)
        raise CaptureError(
            f"{f'{place}: ' if place else ''}eager PyTorch cannot differentiate the model: {said(error)};"
            " a plain loop's loss.backward() fails alike: mend it there"
        ) from error
    gradients = dict(zip(map(id, wanted), made))
    reached = {
        n for _, _, n in values_made(pieces) if gradients.get(id(handed_on.get(n, values[n]))) is not None
    }
    ended = {n for _, _, n in values_made(pieces) if values[n].requires_grad} - reached

    def is_silent(node: fx.Node, place: int) -> bool:
        later = [v for (n, i), v in read_in.items() if n is node and i > place and v.requires_grad]
        return bool(later) and all(gradients.get(id(v)) is None for v in later)

    return Gradients(
        [other_order(value, gradients.get(id(value))) for value in crossing],
        [None if g is None else with_gaps(g) for g in (gradients.get(id(value)) for value in crossing)],
        any(with_gaps(value) for value in crossing),
        [[values[n].requires_grad and n not in ended for n in piece.inputs] for piece in pieces],
        reached,
        [node in ended for _, _, node in values_made(pieces)],
        [[n in piece.inputs and is_silent(n, i) for n in piece.outputs] for i, piece in enumerate(pieces)],
    )


def other_order(value: torch.Tensor, gradient: torch.Tensor) -> list[int] | None:
    if gradient is None or gradient.stride() == value.stride():
        return None
    order = memory_order(gradient)
    return None if order == (order_between(value) or list(range(value.dim()))) else order


def gradients_in_order(composite: Composite, pieces: list[Piece], found: Gradients, gaps: bool) -> None:
    """`gaps`: those that lie with gaps in eager mode do here too."""
    for piece, flags, silent in zip(pieces, found.differentiable, found.silent):
        piece.differentiable, piece.silent = flags, silent
    about = zip(values_made(pieces), found.orders, found.lying, found.ended)
    for (maker, _, value), order, lying, ended in about:
        if ended:  # the layer that makes it would wait for a gradient
            put: tuple[Any, ...] = (torch.ops.aten.detach.default,)
        elif gaps and lying:
            put = (gradient_lying, lying)
        elif order is not None:
            put = (with_gradient_in_order, order)
        else:
            continue
        last = pieces[maker].nodes[-1]
        with composite.graph.inserting_after(last):
            handed = composite.graph.call_function(put[0], (value, *put[1:]))
        handed.meta = dict(value.meta)
        composite.nodes.insert(composite.nodes.index(last) + 1, handed)
        pieces[maker].nodes = [*pieces[maker].nodes, handed]
        replace_between(pieces, maker, value, handed)
        for piece in pieces[maker + 1 :]:
            for node in piece.nodes if handed in piece.inputs else ():
                node.replace_input_with(value, handed)
