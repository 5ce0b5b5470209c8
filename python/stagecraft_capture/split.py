"""The split of a joint graph into the three parts of a layer: forward, input half and weight half of the
backward.

Values of the forward that a half reads are kept, or made again: views always, others where keep.py says so.
What is made again is made in the input half, once, and handed to the weight half where that reads it too. So
no schedule holds more than if it were kept: what the weight half reads would have waited for it in either
case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .nodes import is_element, is_view, name_of

if TYPE_CHECKING:
    from torch import fx

    from .joint import Joint


@dataclass
class Parts:
    """Node lists of a layer, and what one part keeps for the next."""

    forward: list = field(default_factory=list)
    backward_input: list = field(default_factory=list)
    backward_weight: list = field(default_factory=list)
    keep_input: list = field(default_factory=list)
    keep_weight: list = field(default_factory=list)
    hand_weight: list = field(default_factory=list)
    again: frozenset = frozenset()  # nodes of the forward that backward_input makes again

    def kept(self) -> set[fx.Node]:
        return {*self.keep_input, *self.keep_weight}


def inputs_again(node: fx.Node) -> list[fx.Node]:
    """What a node of the forward reads when it is made again."""
    if name_of(node) == "native_dropout":  # the mask is kept, and applied
        return [node.args[0], mask_of(node)]
    # without the running statistics, which have changed
    if name_of(node) == "_native_batch_norm_legit_functional":
        return [n for n in node.args[:3] if n is not None]
    return node.all_input_nodes


def mask_of(dropout: fx.Node) -> fx.Node | None:
    return next(user for user in dropout.users if is_element(user) and user.args[1] == 1)


class Splitter:
    """Splits a joint graph, in as many ways as there are sets of nodes to make again."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.nodes = [n for n in joint.graph.nodes if n.op == "call_function"]
        self.order = {n: i for i, n in enumerate(joint.graph.nodes)}
        self.forward = self.ancestors([*joint.outputs, *joint.buffers], set())
        self.backward_input = self.ancestors(joint.grad_inputs, self.forward)
        self.backward_weight = self.ancestors(joint.gradients, self.forward | self.backward_input)
        self.move_readers_of_weights()

    def ancestors(self, roots: Iterable[fx.Node | None], known: Collection[fx.Node]) -> set[fx.Node]:
        found, todo = set(), [r for r in roots if r is not None and r.op == "call_function"]
        while todo:
            node = todo.pop()
            if node not in found and node not in known:
                found.add(node)
                todo += [n for n in node.all_input_nodes if n.op == "call_function"]
        return found | {n for n in self.nodes if is_element(n) and n.args[0] in found}

    def is_of(self, node: fx.Node, letters: str) -> bool:
        """Whether it is a parameter, buffer or constant of these letters, or a view of one."""
        if node.op == "placeholder":
            return self.joint.roles[node][0] in letters
        if is_element(node):
            return self.is_of(node.args[0], letters)
        return is_view(node) and all(self.is_of(n, letters) for n in node.all_input_nodes)

    def move_readers_of_weights(self) -> None:
        """The weight half has no weights: by then they may be of another version. What reads some becomes the
        input half's, whole, with all that it needs, and what it makes is handed on."""
        found = {n for n in self.backward_weight if any(self.is_of(r, "pu") for r in n.all_input_nodes)}
        if found:
            moved = self.ancestors(found, self.forward | self.backward_input) & self.backward_weight
            self.backward_input |= moved
            self.backward_weight -= moved

    def reads(
        self, part: set[fx.Node], letters: str, again: Collection[fx.Node]
    ) -> tuple[set[fx.Node], set[fx.Node]]:
        """The part with what it makes again, and what it reads of earlier parts."""
        part, outside, todo = set(part), set(), list(part)
        while todo:
            node = todo.pop()
            for read in inputs_again(node) if node in again else node.all_input_nodes:
                if read in part:
                    continue
                if read in again or (read.op == "call_function" and self.is_of(read, letters)):
                    part.add(read)
                    todo.append(read)
                else:
                    outside.add(read)
        return part, outside

    def parts(self, again: frozenset[fx.Node] = frozenset()) -> Parts:
        """`again`: nodes of the forward that the input half makes again, with all views of them and elements
        that the backward reads."""
        joint, forward = self.joint, self.forward
        backward_weight, from_outside = self.reads(self.backward_weight, "c", frozenset())
        # a norm's, made in the input half
        from_outside |= {g for g in joint.gradients if g is not None and g not in backward_weight}
        wanted = {n for n in from_outside if n in again}
        backward_input, of_input = self.reads(self.backward_input | wanted, "pc", again)

        def in_order(found: Iterable[fx.Node]) -> list[fx.Node]:
            return sorted(found, key=self.order.__getitem__)

        def is_kept(n: fx.Node) -> bool:
            return (n in forward and n not in again) if n.op == "call_function" else joint.roles[n][0] in "if"

        again = frozenset(n for n in backward_input if n in again)
        return Parts(
            forward=[n for n in self.nodes if n in forward],
            backward_input=self.late(in_order(backward_input), again),
            backward_weight=[n for n in self.nodes if n in backward_weight],
            keep_input=in_order(n for n in of_input if is_kept(n)),
            keep_weight=in_order(n for n in from_outside if is_kept(n) and n not in backward_input),
            hand_weight=in_order(
                n
                for n in from_outside
                if n in backward_input or (n.op == "placeholder" and joint.roles[n][0] == "g")
            ),
            again=again,
        )

    def late(self, part: Collection[fx.Node], again: Collection[fx.Node]) -> list[fx.Node]:
        """The part with what is made again behind the last step that can do without it, so that it lives no
        longer than it must. What the weight half alone reads is made where the last of what it is made of is
        read."""
        fixed = [n for n in part if n not in again]
        remade = [n for n in part if n in again]
        first = sum(n in self.forward for n in fixed)  # views of weights, which what is made again may read
        position = {n: i for i, n in enumerate(fixed)}
        readers: dict[fx.Node, list[fx.Node]] = {}
        for node in part:
            for read in inputs_again(node) if node in again else node.all_input_nodes:
                readers.setdefault(read, []).append(node)
        inputs_last_read: dict[fx.Node, Any] = {}
        at: dict[fx.Node, Any] = {}
        for node in remade:
            reads = inputs_again(node)
            inputs_last_read[node] = max(
                [position[r] for n in reads for r in readers[n] if r in position]
                + [inputs_last_read.get(n, first) for n in reads]
                + [first]
            )
        for node in reversed(remade):
            at[node] = min(
                [at[u] if u in at else position[u] for u in readers.get(node, [])],
                default=inputs_last_read[node],
            )
        for node in remade:  # elements follow what they are elements of
            if is_element(node) and node.args[0] in at:
                at[node] = at[node.args[0]]
        out = []
        for i in range(len(fixed) + 1):
            out += [n for n in remade if at[n] == i] + fixed[i : i + 1]
        return out


def split(joint: Joint, again: frozenset[fx.Node] = frozenset()) -> Parts:
    return Splitter(joint).parts(again)
