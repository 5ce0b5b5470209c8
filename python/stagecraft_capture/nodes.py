"""Questions about the nodes of an exported graph."""

import operator

from .torch_private import OpOverload

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
}


def name_of(node):
    """ "addmm" of aten::addmm, "" of what is no operator."""
    return node.target._schema.name.removeprefix("aten::") if isinstance(node.target, OpOverload) else ""


def is_element(node):
    """Whether it picks one of its argument's several results."""
    return node.target is operator.getitem


def is_view(node):
    return name_of(node) in VIEWS


def owner(node):
    """The node in whose memory the value lies."""
    while is_view(node) or (is_element(node) and is_view(node.args[0])):
        node = node.args[0]
    return node


def nbytes(node):
    value = node.meta["val"]
    return value.numel() * value.element_size()
