"""A piece as one graph of forward and backward, as autograd would record it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .as_eager import values_alone
from .constants import digest
from .eager_kernels import eager_kernels
from .errors import CaptureError, place_in, place_of
from .export_errors import said
from .in_place import storage, written_by
from .layouts import PERMUTE, other_memory_order
from .nodes import owner
from .quick import quick_without_modules
from .real_strides import real_strides
from .real_types import real_types
from .simplify import simplify
from .torch_private import aot_export_joint

if TYPE_CHECKING:
    from .composite import Composite
    from .cut import Piece


CLONE = torch.ops.aten.clone.default


@dataclass
class Joint:
    """Roles of the nodes: values are named as in a graph file."""

    graph: fx.Graph
    roles: dict  # placeholder -> "in0", "g0", "p0", "u0", "c0"
    outputs: list  # may be placeholders: inputs that go through
    buffers: list  # new value of each buffer, or None
    grad_inputs: list  # of each input, or None
    gradients: list  # of each parameter, or None


def module_of_piece(
    piece: Piece, named: list[fx.Node], orders: dict[fx.Node, list[int]]
) -> torch.fx.GraphModule:
    """A module of the piece's nodes, with inputs in the order of `named`, then those of the piece. `orders`:
    of those of `named` that lie otherwise than files hold them, the order of their memory."""
    graph, copies = fx.Graph(), {}
    for node in [*named, *piece.inputs]:
        copies[node] = graph.placeholder(node.name)
    for node, order in orders.items():
        laid_out = graph.call_function(
            CLONE,
            (graph.call_function(PERMUTE, (copies[node], order)),),
            {"memory_format": torch.contiguous_format},
        )
        copies[node] = graph.call_function(
            PERMUTE, (laid_out, sorted(range(len(order)), key=order.__getitem__))
        )
    for node in piece.constant_nodes + piece.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    shared = sharing(piece, named)

    def clone(n: fx.Node) -> fx.Node:
        return graph.call_function(CLONE, (copies[n],))

    graph.output(
        tuple(
            through(n, piece, graph, copies) if n in piece.inputs else clone(n) if n in shared else copies[n]
            for n in piece.outputs
        )
    )
    return fx.GraphModule({}, graph)


def sharing(piece: Piece, named: list[fx.Node]) -> set[fx.Node]:
    """What the piece makes that has the memory of something it reads, or of another output. It is cloned
    while it is traced: AOTAutograd takes no gradient for what it takes for the same tensor."""
    taken, shared = {storage(n) for n in [*named, *piece.inputs]}, set()
    for node in (n for n in piece.outputs if n not in piece.inputs):
        if storage(node) in taken:
            shared.add(node)
        taken.add(storage(node))
    return shared


def through(node: fx.Node, piece: Piece, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """An input that goes on: a clone, the youngest reader. So autograd adds what the piece makes of the
    value's gradient, one by one, to the gradient that comes in, as eager does."""
    value, order = piece.views.get(node, (node, None))
    clone = graph.call_function(CLONE, (copies[value],))
    if piece.silent and piece.silent[piece.outputs.index(node)]:  # it would wait for a gradient
        clone = graph.call_function(torch.ops.aten.detach.default, (clone,))
    return clone if order is None else graph.call_function(PERMUTE, (clone, order))


class Tensors:
    """Names and types of a layer's parameters, buffers and constants, in the order p0, p1, ..., u0, ..., c0,
    ..."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {"p": [], "u": [], "c": [], "f": []}
        self.values: dict[str, torch.Tensor] = {}

    def role(self, kind: str, name: str, value: torch.Tensor | None) -> str:
        letter = {"parameter": "p", "frozen": "u", "buffer": "u", "constant": "c", "field": "f"}[kind]
        if name not in self.names[letter]:
            self.names[letter].append(name)
        if kind != "field":
            self.values[name] = value
        return f"{letter}{self.names[letter].index(name)}"

    def with_constants_of(self, other: Tensors) -> None:
        """Of an equal layer that was traced, those which Python made meanwhile."""
        for name in other.names["c"][len(self.names["c"]) :]:
            self.role("constant", name, other.values[name])


def trace(
    piece: Piece, composite: Composite, examples: list[torch.Tensor], tensors: Tensors, training: bool = True
) -> Joint:
    """The joint graph for the piece's inputs `examples`, which need gradients where eager has them. `tensors`
    learns names. Without `training` no result needs a gradient, as eager has it under no_grad: kernels of
    attention and of products are chosen by that."""
    used = {n for node in piece.constant_nodes + piece.nodes for n in node.all_input_nodes}
    named, role_names, arguments, orders = [], [], [], {}
    for node in (n for n in composite.tensors if n in used):
        kind, name, tensor = composite.tensors[node]
        named.append(node)
        role_names.append(tensors.role(kind, name, tensor))
        value = tensor.detach().clone()
        if name not in composite.changing and (order := other_memory_order(value)):
            orders[node], value = order, value.contiguous()
        arguments.append(value.requires_grad_() if kind == "parameter" else value)
    for node, name in composite.fields.items():
        if node in used and node not in piece.inputs:
            like = node.meta["val"]
            named.append(node)
            role_names.append(tensors.role("field", name, None))
            arguments.append(torch.zeros([int(size) for size in like.shape], dtype=like.dtype))
    for i, (node, example) in enumerate(zip(piece.inputs, examples)):
        role_names.append(f"in{i}")
        arguments.append(example.detach().clone())
        needs = training and node is not composite.input and example.is_floating_point()
        if needs and (piece.differentiable is None or piece.differentiable[i]):
            arguments[-1].requires_grad_()
    try:
        with (
            contextlib.ExitStack() as stack,
            eager_kernels(),
            real_strides(),
            quick_without_modules(),
            torch.set_grad_enabled(training),
        ):
            module = module_of_piece(piece, named, orders)
            traced = aot_export_joint(
                stack, module, tuple(arguments), _disable_torch_fn_metadata_mode=True
            ).graph_module
            graph = traced.graph
    except Exception as error:
        place = place_in(error) or place_of(piece.nodes[-1])  # the former in a backward of the user's own
        raise CaptureError(
            f"{place}: cannot be differentiated: {said(error)}; write it in operators of torch that have a"
            " derivative, or under torch.no_grad()"
        ) from error

    roles = {}
    for node in (n for n in graph.nodes if n.op == "placeholder"):
        about = node.meta["desc"]
        if "Tangent" in type(about).__name__ and "Mutation" in type(about.output).__name__:
            written = role_names[about.output.mutated_input.idx]
            raise CaptureError(
                f"{place_of(writers(piece)[-1])}: writes to a buffer what has a gradient; write under"
                " torch.no_grad(), or what .detach() returns"
                if written[0] == "u"
                else writes_elsewhere(piece)
            )
        roles[node] = f"g{about.output.idx}" if "Tangent" in type(about).__name__ else role_names[about.idx]
    roles.update(constants_made(traced, tensors))
    simplify(graph)
    real_types(graph)
    if not training:
        values_alone(graph)
    results = next(n for n in graph.nodes if n.op == "output")

    def none(things: Sequence[Any]) -> list[None]:
        return [None] * len(things)

    joint = Joint(
        graph,
        roles,
        none(piece.outputs),
        none(tensors.names["u"]),
        none(piece.inputs),
        none(tensors.names["p"]),
    )
    for about, node in zip(results.meta["desc"], results.args[0]):
        kind = type(about).__name__
        if node is None:
            continue
        if "Grad" in kind:
            role = role_names[about.grad_of.idx]
            if role.startswith("in"):
                joint.grad_inputs[int(role[2:])] = node
            elif role.startswith("p"):
                joint.gradients[int(role[1:])] = node
        elif "Mutation" in kind and not role_names[about.mutated_input.idx].startswith("u"):
            raise CaptureError(writes_elsewhere(piece))
        elif "Mutation" in kind:
            joint.buffers[int(role_names[about.mutated_input.idx][1:])] = node
        else:
            joint.outputs[about.idx] = node
    # Clones were for gradients alone.
    placeholder, shared = {role: node for node, role in roles.items()}, sharing(piece, named)
    for k, node in enumerate(piece.outputs):
        if node in piece.inputs:
            joint.outputs[k] = placeholder[f"in{piece.inputs.index(node)}"]
        elif (
            node in shared
            and joint.outputs[k].target == CLONE
            and owner(joint.outputs[k].args[0]) not in changing(joint)
        ):
            joint.outputs[k] = joint.outputs[k].args[0]
    for i, new in enumerate(joint.buffers):
        # what is copied into a buffer lies in no other buffer
        if new is not None and owner(new).op == "placeholder":
            with graph.inserting_before(results):
                joint.buffers[i] = graph.call_function(CLONE, (new,))
            joint.buffers[i].meta = dict(new.meta)
    return joint


def constants_made(traced: fx.GraphModule, tensors: Tensors) -> dict[fx.Node, str]:
    """Tensors that Python made while it was traced (torch.tensor(0.5) in a torch.autograd.Function), as
    constants of the layer."""
    found = {}
    for node in [n for n in traced.graph.nodes if n.op == "get_attr"]:
        value = getattr(traced, node.target)
        with traced.graph.inserting_before(next(iter(traced.graph.nodes))):
            placeholder = traced.graph.placeholder(node.target)
        placeholder.meta = {**node.meta, "val": value}
        node.replace_all_uses_with(placeholder)
        traced.graph.erase_node(node)
        found[placeholder] = tensors.role("constant", f"constant/made-{digest(value)}", value)
    return found


def changing(joint: Joint) -> set[fx.Node]:
    """The placeholders of buffers that the forward changes."""
    return {
        n for n, role in joint.roles.items() if role[0] == "u" and joint.buffers[int(role[1:])] is not None
    }


def writers(piece: Piece) -> list[fx.Node]:
    return [n for n in piece.nodes if written_by(n)] or piece.nodes


def writes_elsewhere(piece: Piece) -> str:
    return (
        f"{place_of(writers(piece)[-1])}: writes in place to what another layer made, or to a constant; use"
        " the operator that returns a new tensor"
    )
