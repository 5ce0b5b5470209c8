"""Where graphs of one model differ that should be one graph: the first operator that does, in words for the
one whose model it is."""

import re
from typing import Any

from torch import fx

from .errors import CaptureError, place_of
from .graph_text import fit
from .torch_private import OpOverload, pytree


class Unlike(CaptureError):
    """Graphs that should be one and are not."""


class Listed:
    """The operators of a graph in order, with names for what they read that are the same in all graphs of a
    model."""

    def __init__(self, nodes: list[fx.Node], names: dict[fx.Node, Any]) -> None:
        self.nodes, self.names = nodes, dict(names)
        self.names.update((node, f"%{i}") for i, node in enumerate(nodes))

    def arguments(self, node: fx.Node) -> list[Any]:
        """As leaves, in order."""
        named = fx.map_arg((node.args, node.kwargs), lambda n: Name(self.names.get(n, n.name)))
        return [leaf if isinstance(leaf, (int, float)) else str(leaf) for leaf in pytree.tree_leaves(named)]


class Name(str):
    """Of a node, in the place of it."""


def target_of(node: fx.Node) -> str:
    return (
        str(node.target).removeprefix("aten.").removesuffix(".default")
        if isinstance(node.target, OpOverload)
        else getattr(node.target, "__name__", str(node.target))
    )


def types_of(node: fx.Node) -> list[str]:
    """Of its results."""
    made = [t for t in pytree.tree_leaves(node.meta.get("val")) if hasattr(t, "dtype")]
    return [f"{str(t.dtype).removeprefix('torch.')}[{','.join(map(str, t.shape))}]" for t in made]


def follows(values: dict[int, Any], numbers: bool) -> bool:
    """Whether values at several sizes have one form. `numbers`: whether it may follow from the size."""
    if not numbers:
        return len({repr(value) for value in values.values()}) == 1
    try:
        fit(values)
    except ValueError:
        return False
    return True


def difference_at(nodes: dict[int, fx.Node | None], listed: dict[int, Listed], numbers: bool) -> str | None:
    """In words, or None. `nodes`: by size, None where the graph has no more."""

    def text(values: dict[int, Any]) -> str:
        return ", ".join(map(str, values.values()))

    targets = {b: target_of(node) if node is not None else "nothing more" for b, node in nodes.items()}
    if len(set(targets.values())) > 1:
        return f"the operator is {text(targets)}"
    target = next(iter(targets.values()))
    for of, verb in ((lambda b, n: listed[b].arguments(n), "reads"), (lambda b, n: types_of(n), "makes")):
        leaves = {b: of(b, node) for b, node in nodes.items()}
        if len({len(found) for found in leaves.values()}) > 1:
            return (
                f"{target} {verb}"
                f" {', '.join(f'[{text(dict(enumerate(found)))}]' for found in leaves.values())}"
            )
        for i in range(len(next(iter(leaves.values())))):
            values = {b: found[i] for b, found in leaves.items()}
            if not follows(values, numbers):
                return f"{target} {verb} {text(values)}"
    return None


def first_difference(
    listed: dict[int, Listed], numbers: bool = True
) -> tuple[fx.Node, list[int], str] | None:
    """(the node of the most samples, or of the longest graph; sizes; what differs in words) of the first
    operators that differ, or None. `listed`: size -> Listed."""
    for i in range(max(len(each.nodes) for each in listed.values())):
        nodes = {b: each.nodes[i] if i < len(each.nodes) else None for b, each in listed.items()}
        what = difference_at(nodes, listed, numbers)
        if what is not None:
            return next(node for node in reversed(nodes.values()) if node is not None), list(listed), what
    return None


REMEDY = (
    "a run has one graph for micro-batches of all sizes: let Python decide by settings, not by the number of"
    " samples, and make no other numbers of it than sums, multiples and squares"
)


def of_sizes(found: tuple[fx.Node, list[int], str], when: str = "") -> Unlike:
    node, sizes, what = found
    if node.meta.get("partitioner_tag") == "is_backward":
        when = "in the backward of this, "
    about_floats = (
        " (x.var(0, correction=0) has another backward than (x - x.mean(0)).square().mean(0))"
        if re.search(r"\d\.\d", what) and "backward" in when
        else "; give torch.cdist a compute_mode, which else follows from how many rows there are"
        if "_euclidean_dist" in what
        else "; what Python makes of the number of samples is a constant: take torch.arange(len(x)) for"
        " lists, and fill where a mask would pick (x.masked_fill(~mask, float('-inf')) for x[mask])"
        if "reads constant/" in what
        else ""
    )
    return Unlike(
        f"{place_of(node)}: {when}with micro-batches of {', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
        f" samples {what}; {REMEDY}{about_floats}"
    )


def of_forwards(found: tuple[fx.Node, list[int], str]) -> Unlike:
    node, _, what = found
    return Unlike(
        f"{place_of(node)}: in one forward and the next, with as many samples, {what}; a graph has one of"
        " them: something outside of the module's buffers and attributes changes (an iterator, a generator,"
        " a file, the time): keep it in a buffer (register_buffer) and compute with operators of torch, or"
        " leave it out"
    )
