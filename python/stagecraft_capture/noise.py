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


# What to write in place of operators that runs have no draw for, by the beginning of their names.
DRAWN_INSTEAD = {
    "rrelu": (
        "torch.where(x >= 0, x, x * torch.empty_like(x).uniform_(lower, upper)) where self.training is true,"
        " or torch.nn.LeakyReLU: how many numbers it draws depends on the batch's"
    ),
    "randperm": "torch.rand(n).argsort(), or torch.rand(len(x), n).argsort(1) for an order per sample",
    "randint": "(torch.rand(sizes) * high).long()",
    "random": "(torch.rand(sizes) * high).long()",
    "multinomial": "(logits - torch.empty_like(logits).exponential_().log()).argmax(-1), a draw per row",
    "exponential": "torch.empty_like(x).exponential_() / rate",
    "log_normal": "torch.randn_like(x).mul(deviation).add(mean).exp()",
    "cauchy": "torch.tan(math.pi * (torch.rand_like(x) - 0.5))",
    "geometric": "(torch.rand_like(x).log() / math.log(1 - p)).ceil()",
    "normal": "mean + deviation * torch.randn_like(mean), in float32",
    "uniform": "low + (high - low) * torch.rand_like(x), in float32",
    "bernoulli": "(torch.rand_like(p) < p).to(p.dtype)",
}


def refused_draw(node: fx.Node) -> str:
    """What is said of an operator that no run can draw by name."""
    name = name_of(node)
    instead = next((text for op, text in DRAWN_INSTEAD.items() if name.lstrip("_").startswith(op)), "")
    return f"{node.target} draws random numbers of a kind that runs cannot draw by name; write " + (
        instead or "it of torch.rand or torch.randn, or draw in the data set and give it as a field (--field)"
    )


FILLS = ("uniform_", "normal_", "exponential_", "bernoulli_")


def parameters_of(node: fx.Node) -> tuple[float, ...]:
    """Of one in place: mean and deviation, or bounds, or a rate. Nothing for another operator."""
    usual = USUAL.get(name_of(node), ())
    given = [node.kwargs[name] for name in ("mean", "std", "from", "to", "lambd") if name in node.kwargs]
    found = [*node.args[1 : 1 + len(usual)], *given]
    return tuple(float(number) for number in [*found, *usual[len(found) :]])


def is_usual(node: fx.Node) -> bool:
    return name_of(node) in USUAL and parameters_of(node) == USUAL[name_of(node)]


def scaled(node: fx.Node) -> tuple[float, float] | None:
    """What the usual draw is multiplied by and added to, where that is all that its parameters do. Eager's
    kernels round once, as addcmul does, in these types."""
    given, made = parameters_of(node), node.meta["val"]
    if len(given) != 2 or made.dtype not in (torch.float32, torch.float64):
        return None
    if "normal" in name_of(node):
        return given[1], given[0]
    low, high = (torch.tensor(bound, dtype=made.dtype) for bound in given)
    return float(high - low), float(low)


def draw_of(node: fx.Node) -> Callable[..., Any]:
    """What a run in eager mode draws for an operator of an exported graph: a function of the sizes of its
    result."""
    made, op = node.meta["val"], name_of(node)
    p = node.args[1] if len(node.args) > 1 else None
    if op in ("dropout", "dropout_", "native_dropout", "feature_dropout") and isinstance(p, float):
        return lambda sizes: torch.empty(sizes, dtype=made.dtype).bernoulli_(1 - p)
    if op == "scaled_dot_product_attention":  # of its weights, in the kernel that has dropout
        chosen, keys = 1 - (dropout_of(node) or 0.0), node.args[1].meta["val"].shape[-2]
        return lambda sizes: torch.empty([*sizes[:-1], keys], dtype=made.dtype).bernoulli_(chosen)
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
    p = dropout_of(node)  # attention has its own, where it has any
    return p is None or bool(p)


def dropout_of(node: fx.Node) -> float | None:
    """The dropout_p that an operator is given; None of one that has no such argument."""
    schema = node.target._schema.arguments
    at = next((i for i, a in enumerate(schema) if a.name == "dropout_p"), None)
    if at is None:
        return None
    given = node.kwargs.get("dropout_p", node.args[at] if at < len(node.args) else None)
    return schema[at].default_value if given is None else given


def is_drawn_over(node: fx.Node) -> bool:
    """Whether it draws what another draw overwrites unread (`torch.rand_like(x).uniform_()`)."""
    over = [
        user for user in node.users if is_random(user) and user.args[0] is node and name_of(user) in FILLS
    ]
    return bool(over) and len(node.users) == len(over)


def times_and_plus(graph: fx.Graph, drawn: fx.Node, factor: float, offset: float) -> fx.Node:
    """The draw with other parameters than the usual ones."""
    made, aten = drawn.meta["val"], torch.ops.aten

    def number(value: float) -> fx.Node:
        one = graph.call_function(aten.full.default, ([], value), {"dtype": made.dtype})
        one.meta = {**drawn.meta, "val": made.new_empty(())}
        return one

    result = graph.call_function(aten.addcmul.default, (number(offset), drawn, number(factor)))
    result.meta = dict(drawn.meta)
    return result


def draw_by_name(graph: fx.Graph, node: fx.Node) -> None:
    """Puts Stagecraft's operator in the place of one that draws from torch's generator, where there is
    one."""
    op, made, scale = name_of(node), node.meta["val"], None
    if (
        op == "bernoulli"
        and isinstance(node.args[1] if len(node.args) > 1 else None, (int, float))
        and made.is_floating_point()
    ):
        target = torch.ops.stagecraft_traced.bernoulli.default
        given: tuple[Any, ...] = (list(made.shape), float(node.args[1]), made.dtype)
    elif (
        op in ("rand", "rand_like", *NORMAL) or is_usual(node) or (scale := scaled(node))
    ) and made.is_floating_point():
        of = torch.ops.stagecraft_traced
        kinds = {"n": of.normal, "r": of.uniform, "u": of.uniform, "e": of.exponential}
        target = of.normal.default if op in NORMAL else kinds[op[0]].default
        given = (list(made.shape), made.dtype)
    else:
        return
    with graph.inserting_before(node):
        drawn = graph.call_function(target, given)
        drawn.meta = dict(node.meta)
        if scale is not None:
            drawn = times_and_plus(graph, drawn, *scale)
    node.replace_all_uses_with(drawn)
    graph.erase_node(node)
