"""What goes on from layer to layer lies densely in the order of its dimensions, as it travels between ranks.

Where eager has it in another order (images with channels last), the layer hands on the view whose order of dimensions is that of the memory,
and the next one begins with the view back. So kernels see the strides that they see in eager, and nothing is copied.
"""

import torch

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
