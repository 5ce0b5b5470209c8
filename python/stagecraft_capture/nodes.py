"""Questions about the nodes of an exported graph."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from .torch_private import OpOverload

if TYPE_CHECKING:
    from torch import fx


# Operators whose result shares its first argument's memory.
VIEWS = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "unsqueeze",
    "squeeze",
    "expand",
    "slice",
    "select",
    "split",
    "split_with_sizes",
    "unbind",
    "chunk",
    "view_as_real",
    "view_as_complex",
    "_conj",
}


def name_of(node: fx.Node) -> str:
    """ "addmm" of aten::addmm, "" of what is no operator."""
    return node.target._schema.name.removeprefix("aten::") if isinstance(node.target, OpOverload) else ""


def is_element(node: fx.Node) -> bool:
    """Whether it picks one of its argument's several results."""
    return node.target is operator.getitem


def is_view(node: fx.Node) -> bool:
    return name_of(node) in VIEWS


def modules_of(node: fx.Node) -> list[str]:
    """Paths of the modules that the node lies in, outermost first."""
    return [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]


def owner(node: fx.Node) -> fx.Node:
    """The node in whose memory the value lies."""
    while is_view(node) or (is_element(node) and is_view(node.args[0])):
        node = node.args[0]
    return node


def needed_by(node: fx.Node) -> set[fx.Node]:
    """The node, and all that it is computed from."""
    found: set[fx.Node] = set()
    todo = [node]
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += at.all_input_nodes
    return found


def nbytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size()
