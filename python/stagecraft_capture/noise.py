"""Random numbers of a model: dropout's masks, and those that stochastic depth draws.

A run draws them by name (seed, layer, step, micro-batch, stream), so that a forward that is done again
repeats them to the bit. In a graph file they are operators of Stagecraft's own; in an exported graph those of
here stand for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .nodes import name_of
from .torch_private import OpOverload

if TYPE_CHECKING:
    from torch import fx


# As a graph file names them, and as they are traced: in a process that also trains, the first are the
# engine's.
OURS, TRACED = "stagecraft", "stagecraft_traced"
LIBRARY = torch.library.Library(TRACED, "DEF")
LIBRARY.define("bernoulli(SymInt[] size, float p, ScalarType dtype) -> Tensor")
LIBRARY.define("uniform(SymInt[] size, ScalarType dtype) -> Tensor")
LIBRARY.define("normal(SymInt[] size, ScalarType dtype) -> Tensor")
LIBRARY.define("exponential(SymInt[] size, ScalarType dtype) -> Tensor")


# Those of a graph file that draw.
DRAWS = (
    "stagecraft::dropout",
    "stagecraft::bernoulli",
    "stagecraft::uniform",
    "stagecraft::normal",
    "stagecraft::exponential",
)
NORMAL = ("randn", "randn_like")
# In place on new memory, and as a trace has them: with their usual parameters alone.
USUAL = {
    **dict.fromkeys(("normal_", "normal_functional"), (0.0, 1.0)),
    **dict.fromkeys(("uniform_", "uniform"), (0.0, 1.0)),
    **dict.fromkeys(("exponential_", "exponential"), (1.0,)),
}


def is_usual(node: fx.Node) -> bool:
    given = [node.kwargs.get(name) for name in ("mean", "std", "from", "to", "lambd") if name in node.kwargs]
    found = (*node.args[1:], *given)
    usual = USUAL.get(name_of(node), ())
    return bool(usual) and all(float(a) == b for a, b in zip(found, usual))


def draw_of(node: fx.Node) -> Callable[..., Any]:
    """What a run in eager mode draws for an operator of an exported graph: a function of the sizes of its
    result."""
    made, op = node.meta["val"], name_of(node)
    p = node.args[1] if len(node.args) > 1 else None
    if op in ("dropout", "dropout_", "native_dropout", "feature_dropout") and isinstance(p, float):
        return lambda sizes: torch.empty(sizes, dtype=made.dtype).bernoulli_(1 - p)
    if op in ("bernoulli", "bernoulli_") and isinstance(p, float):
        return lambda sizes: torch.empty(sizes, dtype=made.dtype).bernoulli_(p)
    if (op in NORMAL or op.startswith("normal_")) and made.is_floating_point():
        return lambda sizes: torch.empty(sizes, dtype=made.dtype).normal_()
    if op.startswith("exponential"):
        return lambda sizes: torch.empty(sizes, dtype=made.dtype).exponential_()
    return lambda sizes: torch.empty(sizes, dtype=made.dtype).uniform_() if made.is_floating_point() else None


def is_random(node: fx.Node) -> bool:
    """Whether the operator, or the fused attention, draws random numbers."""
    if not isinstance(node.target, OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    schema = node.target._schema.arguments  # attention has its own dropout, where it has any
    at = next((i for i, a in enumerate(schema) if a.name == "dropout_p"), None)
    given = node.kwargs.get("dropout_p", node.args[at] if at is not None and at < len(node.args) else None)
    return at is None or bool(schema[at].default_value if given is None else given)


def draw_by_name(graph: fx.Graph, node: fx.Node) -> None:
    """Puts Stagecraft's operator in the place of one that draws from torch's generator, where there is
    one."""
    op, made = name_of(node), node.meta["val"]
    if (
        op == "bernoulli"
        and isinstance(node.args[1] if len(node.args) > 1 else None, (int, float))
        and made.is_floating_point()
    ):
        target = torch.ops.stagecraft_traced.bernoulli.default
        given: tuple[Any, ...] = (list(made.shape), float(node.args[1]), made.dtype)
    elif (op in ("rand", "rand_like", *NORMAL) or is_usual(node)) and made.is_floating_point():
        of = torch.ops.stagecraft_traced
        kinds = {"n": of.normal, "r": of.uniform, "u": of.uniform, "e": of.exponential}
        target = of.normal.default if op in NORMAL else kinds[op[0]].default
        given = (list(made.shape), made.dtype)
    else:
        return
    with graph.inserting_before(node):
        drawn = graph.call_function(target, given)
    drawn.meta = dict(node.meta)
    node.replace_all_uses_with(drawn)
    graph.erase_node(node)
