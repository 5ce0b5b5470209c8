"""What goes on from layer to layer, and the gradients that come back, lie densely in the order of their dimensions, as they travel between ranks.

Where eager has it in another order (images with channels last), the layer hands on the view whose order of dimensions is that of the memory,
and the next one begins with the view back. So kernels see the strides that they see in eager, and nothing is copied. Where eager's gradient
lies in another order than the value, the backward of the layer below begins with a copy in that order: sums depend on it.
"""

import torch

from .errors import CaptureError

PERMUTE = torch.ops.aten.permute.default


def memory_order(value):
    """Dimensions from the largest stride to the smallest, or None where the tensor is not dense in any order."""
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), d))
    return order if value.permute(order).is_contiguous() else None


def dense_between(pieces, composite, needs):
    for before, after in zip(pieces, pieces[1:]):
        value = before.output
        if value.meta["val"].is_contiguous():
            continue
        position = {n: i for i, n in enumerate(composite.graph.nodes)}
        last = max(before.nodes, key=position.get)
        order = memory_order(value.meta["val"])
        with composite.graph.inserting_after(last):
            if order is None:
                handed = composite.graph.call_function(torch.ops.aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
                handed.meta = {**value.meta, "val": value.meta["val"].contiguous()}
            else:
                handed = composite.graph.call_function(PERMUTE, (value, order))
                handed.meta = {**value.meta, "val": value.meta["val"].permute(order)}
        back = handed
        if order is not None:
            inverse = sorted(range(len(order)), key=order.__getitem__)
            with composite.graph.inserting_after(handed):
                back = composite.graph.call_function(PERMUTE, (handed, inverse))
            back.meta = dict(value.meta)
            needs[back] = [handed]
        needs[handed] = [value]
        value.replace_all_uses_with(back, delete_user_cb=lambda user: position.get(user, -1) > position[last] and user.op != "output")
        for piece in pieces[pieces.index(after) :]:
            if piece.output is value:
                piece.output = back
            for node in piece.nodes:
                needs[node] = [back if n is value else n for n in needs[node]]
        new = [handed] if back is handed else [handed, back]
        at = composite.nodes.index(last) + 1
        composite.nodes[at:at] = new
        before.nodes, before.output = [*before.nodes, handed], handed
        after.nodes, after.input = [*(new[1:]), *after.nodes], handed


class InOrder(torch.autograd.Function):
    """The tensor itself; its gradient goes on in another order of memory."""

    @staticmethod
    def forward(ctx, value, order):
        ctx.order = order
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        inverse = sorted(range(len(ctx.order)), key=ctx.order.__getitem__)
        return gradient.permute(ctx.order).contiguous().permute(inverse), None


def with_gradient_in_order(value, order):
    return InOrder.apply(value, order)


def orders_of_gradients(composite, pieces, inputs):
    """Of each cut, the order of memory that the gradient has in eager mode: the graph is run once. None: the order of its dimensions, or
    none at all. `inputs`: the fields of a batch."""
    copy = lambda kind, tensor: tensor.detach().clone() if kind == "buffer" else tensor.detach().requires_grad_(kind == "parameter")
    values = {node: copy(kind, tensor) for node, (kind, _, tensor) in composite.tensors.items()}
    values.update({node: inputs[name] for node, name in composite.fields.items()})
    with torch.random.fork_rng(devices=[]):
        for node in composite.nodes:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    result, crossing = values[composite.loss or composite.output], [values[piece.output] for piece in pieces[:-1]]
    wanted = [value for value in crossing if value.requires_grad]
    try:
        made = torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True) if wanted else ()
    except RuntimeError as error:
        raise CaptureError(f"eager PyTorch cannot differentiate the model: {str(error).strip().splitlines()[0]}") from error
    gradients = dict(zip(map(id, wanted), made))
    found = [gradients.get(id(value)) for value in crossing]
    return [None if gradient is None or gradient.is_contiguous() else memory_order(gradient) for gradient in found]


def gradients_in_order(composite, pieces, orders):
    """`orders`: of orders_of_gradients()."""
    for before, after, order in zip(pieces, pieces[1:], orders):
        if order is None:
            continue
        value = before.output
        later = set(after.nodes) | {node for piece in pieces[pieces.index(after) :] for node in piece.nodes}
        with composite.graph.inserting_after(before.nodes[-1]):
            handed = composite.graph.call_function(with_gradient_in_order, (value, order))
        handed.meta = dict(value.meta)
        value.replace_all_uses_with(handed, delete_user_cb=later.__contains__)
        composite.nodes.insert(composite.nodes.index(before.nodes[-1]) + 1, handed)
        before.nodes, before.output, after.input = [*before.nodes, handed], handed, handed
