"""What a layer keeps of its forward for its backward.

`all`: what autograd would keep. `cheap`: results of pointwise operators, norms and views are made again where
that saves bytes and takes little time, at most BUDGET of the layer's, by the prices below. Random numbers,
matrix products, convolutions and attention are never made again. The bits are the same: the same operators
run on the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from .joint import changing
from .nodes import VIEWS, is_element, is_view, name_of, nbytes, owner
from .split import Splitter, inputs_again

if TYPE_CHECKING:
    from torch import fx

    from .joint import Joint
    from .split import Parts


BUDGET = {"all": 0.0, "cheap": 0.02}

# Nanoseconds per element of a result, on one core, in the midst of a step: what it reads comes from memory,
# and what it makes pushes other values out of the caches. That is about 1.7 times what the operator takes
# alone. Only their proportions matter.
POINTWISE = {
    **dict.fromkeys(
        "add sub rsub mul div neg abs relu square reciprocal sqrt rsqrt clamp clamp_min clamp_max maximum"
        " minimum".split(),
        0.6,
    ),
    **dict.fromkeys(
        "threshold hardtanh hardswish hardsigmoid leaky_relu eq ne lt le gt ge logical_not logical_and"
        " logical_or".split(),
        0.6,
    ),
    **dict.fromkeys(
        "bitwise_and bitwise_or bitwise_not addcmul lerp floor fill full ones zeros ones_like zeros_like"
        " full_like arange".split(),
        0.6,
    ),
    **dict.fromkeys(
        "_to_copy clone cat stack repeat constant_pad_nd native_dropout native_dropout_backward".split(), 0.6
    ),
    **dict.fromkeys("silu sigmoid gelu elu glu".split(), 0.9),
    **dict.fromkeys("exp log log1p expm1 erf softplus sin cos".split(), 2.0),
    **dict.fromkeys("tanh mish where masked_fill".split(), 4.0),
}
# The same per element of what they read.
NORMS = {
    **dict.fromkeys("native_layer_norm _fused_rms_norm native_group_norm".split(), 1.0),
    **dict.fromkeys("_native_batch_norm_legit_functional native_batch_norm".split(), 3.0),
    **dict.fromkeys("mean sum amax linalg_vector_norm".split(), 0.25),
    "var_mean": 6.0,
}
PRODUCTS = 0.02  # per multiply-add
OTHER = 1.0  # per element of a result, for all operators without a price of their own
STEP = 1000.0  # each step, however small


def may_be_made_again(node: fx.Node) -> bool:
    op = name_of(node)
    if op == "pow":
        return node.args[1] in (2, 3, 0.5, -0.5, -1)
    if op == "gelu" and node.kwargs.get("approximate", "none") == "tanh":
        return True
    return op in POINTWISE or op in NORMS or op in VIEWS


def elements(node: fx.Node) -> int:
    made = node.meta["val"]
    return max(t.numel() for t in made if t is not None) if isinstance(made, (tuple, list)) else made.numel()


def price(node: fx.Node) -> float:
    """Nanoseconds that a step takes, about."""
    op = name_of(node)
    if is_element(node) or op in VIEWS:
        return 0.0
    if op in NORMS:
        return STEP + NORMS[op] * elements(node.args[0])
    if op == "pow":
        return STEP + POINTWISE["mul"] * elements(node)
    if op == "gelu" and node.kwargs.get("approximate", "none") == "tanh":
        return STEP + 2.5 * elements(node)
    if op in POINTWISE:
        return STEP + POINTWISE[op] * elements(node)
    return STEP + max(PRODUCTS * multiply_adds(node), OTHER * elements(node))


def multiply_adds(node: fx.Node) -> int:
    op, args = name_of(node), node.args

    def size(n: fx.Node) -> Any:
        return n.meta["val"].shape

    if op == "addmm":
        return elements(node) * size(args[1])[-1]
    if op in ("mm", "bmm"):
        return elements(node) * size(args[0])[-1]
    if op == "_grouped_mm":
        return elements(args[0]) * size(args[1])[-1]
    if op == "baddbmm":
        return elements(node) * size(args[1])[-1]
    if op == "convolution":
        return elements(node) * size(args[1])[1:].numel()
    if op == "convolution_backward":
        return elements(args[0]) * size(args[2])[1:].numel() * sum(args[10][:2])
    if op.startswith("_scaled_dot_product") and "backward" not in op:
        return 2 * elements(args[0]) * size(args[1])[-2]
    if op.startswith("_scaled_dot_product"):
        return 5 * elements(args[1]) * size(args[2])[-2]
    return 0


def kept_bytes(parts: Parts) -> int:
    """Of everything that waits between forward and backward, the layer's input among it where it does."""
    return sum(nbytes(n) for n in {owner(n) for n in parts.kept()})


class Chooser:
    """Picks steps one by one, each time the one that saves most bytes for its time, while the budget
    lasts."""

    def __init__(self, joint: Joint, budget: float) -> None:
        self.splitter = Splitter(joint)
        self.all = self.splitter.parts()
        self.limit = budget * sum(
            map(price, self.all.forward + self.all.backward_input + self.all.backward_weight)
        )
        self.changed = changing(joint)
        self.elements: dict[fx.Node, list[fx.Node]] = {}
        for node in self.splitter.nodes:
            if is_element(node):
                self.elements.setdefault(node.args[0], []).append(node)

    def with_views(self, steps: Collection[fx.Node]) -> frozenset[fx.Node]:
        """All nodes that are made again when these steps are: their results and views of them."""
        again = set()
        for node in self.splitter.nodes:
            if node not in self.splitter.forward:
                continue
            if node in steps or (is_view(node) and node.args[0] in again):
                again.add(node)
            elif is_element(node) and node.args[0] in again:
                step, which = node.args
                if (name_of(step), which) != ("native_dropout", 1):
                    again.add(node)
        return frozenset(again)

    def step_of(self, node: fx.Node) -> fx.Node | None:
        """The step that makes a value's memory, or None where it cannot be made again."""
        base = owner(node)
        step = base.args[0] if is_element(base) else base
        if step.op != "call_function" or not may_be_made_again(step) or is_view(step):
            return None
        # without a gradient of what is dropped, nothing reads the mask
        if name_of(step) == "native_dropout" and (base.args[1] == 1 or len(self.elements[step]) < 2):
            return None
        # by then another micro-batch may have changed it again
        if any(owner(n) in self.changed for n in inputs_again(step)):
            return None
        return step

    def trials(self, step: fx.Node, parts: Parts, chosen: set[fx.Node]) -> Iterator[set[fx.Node]]:
        """Sets of steps whose results would do instead of the step's: itself, and with the steps before it
        that are not kept either."""
        yield {step}
        kept, found, todo = {owner(n) for n in parts.kept()}, {step}, [step]
        while todo:
            node = todo.pop()
            for read in node.all_input_nodes:
                before = self.step_of(read)
                if (
                    before is not None
                    and owner(read) not in kept
                    and before not in found
                    and before not in chosen
                ):
                    found.add(before)
                    todo.append(before)
        if len(found) > 1:
            yield found

    def choose(self) -> frozenset[fx.Node]:
        chosen: set[fx.Node] = set()
        parts = self.all
        bytes_kept, spent = kept_bytes(parts), 0.0
        while True:
            best = None
            for step in {
                self.step_of(n): None for n in sorted(parts.kept(), key=self.splitter.order.__getitem__)
            }:
                for more in self.trials(step, parts, chosen) if step is not None else ():
                    trial = chosen | more
                    cost = sum(map(price, trial))
                    if cost > self.limit:
                        continue
                    made = self.splitter.parts(self.with_views(trial))
                    saved = bytes_kept - kept_bytes(made)
                    rate = saved / max(cost - spent, 1.0)
                    if saved > 0 and (best is None or rate > best[0]):
                        best = (rate, trial, made, cost)
            if best is None:
                return self.with_views(chosen)
            _, chosen, parts, spent = best
            bytes_kept = kept_bytes(parts)


def choose(joint: Joint, budget: float) -> frozenset[fx.Node]:
    """Nodes of the forward that the input half makes again."""
    return Chooser(joint, budget).choose() if budget > 0 else frozenset()
