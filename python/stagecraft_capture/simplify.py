"""Removes steps that change nothing, and writes some operators so that their halves part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .layouts import memory_order
from .nodes import name_of
from .noise import draw_by_name, is_random

if TYPE_CHECKING:
    from torch import fx


ATEN = torch.ops.aten
VIEWS = ("view", "_unsafe_view")


def simplify(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        op = name_of(node)
        same = the_same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif op == "_conj" and isinstance(node.args[0], (int, float, complex)):
            replace_by_number(node, node.args[0].conjugate())  # of a factor, in its product's backward
        elif op in ("_unsafe_index", "_unsafe_index_put"):  # the same kernels
            node.target = ATEN.index.Tensor if op == "_unsafe_index" else ATEN.index_put.default
        elif op == "zero":
            node.target = ATEN.zeros_like.default
        elif op == "empty" and node.kwargs.get("memory_format") in (None, torch.contiguous_format):
            # written to afterwards: runs have no memory that nobody has written to
            named = {name: value for name, value in node.kwargs.items() if name != "memory_format"}
            node.target, node.kwargs = ATEN.zeros.default, named
        elif op == "copy" and name_of(node.args[0]) == "new_empty_strided":
            copy_laid_out(graph, node)
        elif is_random(node):
            draw_by_name(graph, node)
        elif op == "native_batch_norm_backward" and node.args[7]:
            # In training the kernel does not read the running statistics, which by then another micro-batch
            # has changed.
            node.args = (*node.args[:3], None, None, *node.args[5:])
        elif op == "convolution_backward" and node.args[10][0] and any(node.args[10][1:]):
            with graph.inserting_before(node):
                halves = [
                    graph.call_function(node.target, (*node.args[:10], mask))
                    for mask in ([True, False, False], [False, *node.args[10][1:]])
                ]
            for half in halves:
                half.meta = dict(node.meta)
            for user in list(node.users):
                user.args = (halves[user.args[1] != 0], user.args[1])
            graph.erase_node(node)
            weight_by_shape(graph, halves[1])
        elif op == "convolution_backward" and not node.args[10][0]:
            weight_by_shape(graph, node)
    for node in list(graph.nodes):
        shorten(node)


def replace_by_number(node: fx.Node, number: complex) -> None:
    for user in list(node.users):
        user.args = torch.fx.node.map_arg(user.args, lambda n: number if n is node else n)
    node.graph.erase_node(node)


def laid_out(node: fx.Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    return (
        (value.dtype, value.shape, value.stride(), value.storage_offset())
        if isinstance(value, torch.Tensor)
        else None
    )


def the_same_as(node: fx.Node) -> fx.Node | None:
    """The node whose value this one repeats, with the same strides; or None. A result of the layer is no
    placeholder."""
    op = name_of(node)
    if op in ("detach", "alias"):
        return node.args[0]
    if op in ("clone", "_to_copy", "_unsafe_view", "view", "expand", "slice"):
        before = node.args[0]
        its_own = before.op == "placeholder" and (
            op in ("clone", "_to_copy") or any(user.op == "output" for user in node.users)
        )
        same = laid_out(before) is not None and laid_out(before) == laid_out(node)
        return before if same and not its_own and not (op in VIEWS and may_be_laid_anew(before)) else None
    if op == "as_strided":
        return node.args[0] if same_places(node.args[0], node) else None
    if op in ("t", "transpose", "permute") and name_of(node.args[0]) in ("t", "transpose", "permute"):
        first = node.args[0].args[0]
        if order_of(node.args[0], order_of(node)) == list(range(dimensions(node))):
            return first
    return None


def may_be_laid_anew(node: fx.Node) -> bool:
    """Whether a view in the same sizes may have other strides: those of sizes of 1 are made anew, and
    products choose their kernels by them. Fake kernels tell them wrongly."""
    return 1 in node.meta["val"].shape


def same_places(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether two tensors of one memory have the same elements in the same places; strides of single elements
    do not matter."""
    x, y = before.meta["val"], after.meta["val"]
    return (
        x.shape == y.shape
        and x.storage_offset() == y.storage_offset()
        and all(a == b for size, a, b in zip(x.shape, x.stride(), y.stride()) if size != 1)
    )


def dimensions(node: fx.Node) -> int:
    return node.meta["val"].dim()


def order_of(node: fx.Node, then: list[int] | None = None) -> list[int]:
    """Where a transpose takes its dimensions from, and those of `then` behind it."""
    count, op = dimensions(node), name_of(node)
    order = list(range(count))
    if op == "permute":
        order = [d % count for d in node.args[1]]
    elif op == "transpose" or count == 2:
        a, b = (node.args[1] % count, node.args[2] % count) if op == "transpose" else (0, 1)
        order[a], order[b] = order[b], order[a]
    return order if then is None else [order[d] for d in then]


def shorten(node: fx.Node) -> None:
    """A view of a view reads what that one reads, where it can."""
    while name_of(node) in VIEWS and name_of(node.args[0]) in VIEWS:
        first, made = node.args[0].args[0], node.meta["val"]
        try:
            direct = first.meta["val"].view(made.shape)
        except RuntimeError:
            return
        if direct.stride() != made.stride():
            return
        node.args = (first, *node.args[1:])


def copy_laid_out(graph: fx.Graph, node: fx.Node) -> None:
    """A copy into new memory of given strides, which writes to slices make in the backward: what is copied,
    in that order of memory."""
    empty, source = node.args[:2]
    wanted, given = node.meta["val"], source.meta["val"]
    order = memory_order(wanted)
    if given.shape != wanted.shape or given.dtype != wanted.dtype or order is None:
        return
    made = source
    if given.stride() != wanted.stride():
        with graph.inserting_before(node):
            for target, args, kwargs, value in (
                (ATEN.permute.default, (order,), {}, given.permute(order)),
                (ATEN.clone.default, (), {"memory_format": torch.contiguous_format}, wanted.permute(order)),
                (ATEN.permute.default, (sorted(range(len(order)), key=order.__getitem__),), {}, wanted),
            ):
                made = graph.call_function(target, (made, *args), kwargs)
                made.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    if not empty.users:
        graph.erase_node(empty)


def dense_as_parameters(value: torch.Tensor) -> bool:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim(), torch.contiguous_format)
    return value.is_contiguous() or value.is_contiguous(memory_format=last)


def weight_by_shape(graph: fx.Graph, node: fx.Node) -> None:
    """The weight half of a convolution's backward reads the weight's shape alone: it gets one element,
    expanded. The gradient of a weight that lies otherwise, as a transposed one, lies as that does."""
    gradient, weight = node.args[0], node.args[2]
    if not dense_as_parameters(weight.meta["val"]):
        return
    with graph.inserting_before(node):
        one = graph.call_function(ATEN.new_empty.default, (gradient, [1] * weight.meta["val"].dim()))
        shape = graph.call_function(ATEN.expand.default, (one, list(weight.meta["val"].shape)))
    one.meta = {**node.meta, "val": gradient.meta["val"].new_empty([1] * weight.meta["val"].dim())}
    shape.meta = {**node.meta, "val": one.meta["val"].expand(weight.meta["val"].shape)}
    node.args = (*node.args[:2], shape, *node.args[3:])
