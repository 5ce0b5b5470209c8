"""Operators that write in place, as those that return a new tensor, where nothing can tell the difference.

A cut may come between a tensor and what is written to it. What stays in place is what writes to buffers, and
to tensors of which views are read later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch

from .as_eager import BY_RESULT
from .nodes import name_of
from .torch_private import OpOverload

if TYPE_CHECKING:
    from torch import fx


LEAVE = {"set_", "resize_", "resize_as_"}


def storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def written_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose tensors an operator writes to; batch norm's statistics among them, also where it only
    reads them."""
    if not isinstance(node.target, OpOverload):
        return []
    schema, found = node.target._schema, []
    statistics = "batch_norm" in schema.name or "instance_norm" in schema.name
    for i, argument in enumerate(schema.arguments):
        if (argument.alias_info is not None and argument.alias_info.is_write) or (
            statistics and argument.name.startswith("running_")
        ):
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            found += [
                n
                for n in (given if isinstance(given, (list, tuple)) else [given])
                if isinstance(n, torch.fx.Node)
            ]
    return found


def functional(target: Any) -> Any:
    """The overload that returns a new tensor, or None."""
    if not isinstance(target, OpOverload) or not target._schema.is_mutable:
        return None
    if target in BY_RESULT:
        return BY_RESULT[target]
    name = target._schema.name.removeprefix("aten::")
    # autograd names the mask of dropout
    if (
        not name.endswith("_")
        or name in LEAVE
        or (torch.Tag.nondeterministic_seeded in target.tags and name != "dropout_")
    ):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    overload = target._schema.overload_name or "default"
    # by its arguments: pow_.Scalar is pow.Tensor_Scalar, and pow.Scalar is a number's power
    for name in sorted(packet.overloads() if packet is not None else [], key=lambda each: each != overload):
        found = getattr(packet, name)
        if not found._schema.is_mutable and arguments_of(found) == arguments_of(target):
            return found
    return None


def arguments_of(operator: Any) -> list[tuple[str, str]]:
    """Names and types; what is written to has any name."""
    own, *others = operator._schema.arguments
    return [("", str(own.type)), *((each.name, str(each.type)) for each in others)]


# Whatever they are given: what they write is converted, or must be of the type of what they write to.
KEEP_TYPE = {
    "copy_",
    "fill_",
    "masked_fill_",
    "zero_",
    "scatter_",
    "scatter_add_",
    "index_add_",
    "index_copy_",
    "index_fill_",
    "index_put_",
}


def keeps_type(node: fx.Node) -> bool:
    """Whether the new tensor is of the type that the old one has."""
    if name_of(node) in KEEP_TYPE:
        return True
    own = node.args[0].meta["val"]
    others = [n.meta.get("val") for n in node.all_input_nodes[1:]]
    if any(isinstance(o, torch.Tensor) and o.dtype != own.dtype for o in others):
        return False
    return own.is_floating_point() or not any(isinstance(a, float) for a in node.args[1:])


def without_out(graph: fx.Graph) -> None:
    """Writes of `out=` become copies: autograd has no derivative of such a write, and a copy is one that is
    known here."""
    for node in [
        n
        for n in graph.nodes
        if n.op == "call_function" and "out" in n.kwargs and isinstance(n.target, OpOverload)
    ]:
        packet, arguments = (
            node.target.overloadpacket,
            [a.name for a in node.target._schema.arguments if not a.is_out],
        )
        plain = (getattr(packet, name) for name in packet.overloads())
        found = next(
            (
                o
                for o in plain
                if not o._schema.is_mutable and [a.name for a in o._schema.arguments] == arguments
            ),
            None,
        )
        if found is None:
            continue
        kwargs = dict(node.kwargs)
        written = kwargs.pop("out")
        with graph.inserting_before(node):
            made = graph.call_function(found, node.args, kwargs)
            detached = graph.call_function(torch.ops.aten.detach.default, (made,))
        made.meta = detached.meta = {**node.meta, "val": torch.empty_like(node.meta["val"])}
        node.target, node.args, node.kwargs = torch.ops.aten.copy_.default, (written, detached), {}


def out_of_place(graph: fx.Graph, lasting: Collection[Any]) -> None:
    """`lasting`: memory of what outlives the forward (storage()), which is written to in place."""
    position = {n: i for i, n in enumerate(graph.nodes)}
    of_storage: dict[int | None, list[fx.Node]] = {}
    for node in graph.nodes:
        of_storage.setdefault(storage(node), []).append(node)
    for node in list(graph.nodes):
        found = functional(node.target) if node.op == "call_function" else None
        if (
            found is None
            or not isinstance(node.args[0], torch.fx.Node)
            or node.args[0].op != "call_function"
            or not keeps_type(node)
        ):
            continue
        written = node.args[0]
        if storage(written) in lasting:
            continue
        # Results of earlier writes to the same tensor are itself, renamed already.
        at = position[node]
        if any(
            position[user] > at
            for n in of_storage[storage(written)]
            if n not in (written, node) and position[n] < at
            for user in n.users
        ):
            continue
        node.target = found
        written.replace_all_uses_with(node, delete_user_cb=lambda user, at=at: position[user] > at)
