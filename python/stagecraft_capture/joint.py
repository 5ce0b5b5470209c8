"""A piece as one graph of forward and backward, as autograd would record it."""

import contextlib
from dataclasses import dataclass

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from .errors import CaptureError, place_of
from .simplify import simplify


@dataclass
class Joint:
    """Roles of the nodes: values are named as in a graph file."""

    graph: fx.Graph
    roles: dict  # placeholder -> "in", "g", "p0", "u0", "c0"
    output: fx.Node
    buffers: list  # new value of each buffer, or None
    grad_input: fx.Node  # or None
    gradients: list  # of each parameter, or None


def module_of_piece(piece, read, named):
    """A module of the piece's nodes, with inputs in the order of `named`, then `read`."""
    graph, copies = fx.Graph(), {}
    for node in [*named, read]:
        copies[node] = graph.placeholder(node.name)
    for node in piece.constant_nodes + piece.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output((copies[piece.output],))
    return fx.GraphModule({}, graph)


class Tensors:
    """Names and types of a layer's parameters, buffers and constants, in the order p0, p1, ..., u0, ..., c0, ..."""

    def __init__(self):
        self.names = {"p": [], "u": [], "c": [], "f": []}
        self.values = {}

    def role(self, kind, name, value):
        letter = {"parameter": "p", "frozen": "u", "buffer": "u", "constant": "c", "field": "f"}[kind]
        if name not in self.names[letter]:
            self.names[letter].append(name)
        if kind != "field":
            self.values[name] = value
        return f"{letter}{self.names[letter].index(name)}"


def trace(piece, composite, example, tensors, training=True):
    """The joint graph for the piece's input `example`, which needs a gradient unless it is the batch's own. `tensors` learns names. Without
    `training` no result needs a gradient, as eager has it under no_grad: kernels of attention and of products are chosen by that."""
    used = {n for node in piece.constant_nodes + piece.nodes for n in node.all_input_nodes}
    named, role_names, arguments = [], [], []
    for node in (n for n in composite.tensors if n in used):
        kind, name, tensor = composite.tensors[node]
        named.append(node)
        role_names.append(tensors.role(kind, name, tensor))
        value = tensor.detach().clone()
        arguments.append(value.requires_grad_() if kind == "parameter" else value)
    for node, name in composite.fields.items():
        if node in used and node is not piece.input:
            like = node.meta["val"]
            named.append(node)
            role_names.append(tensors.role("field", name, None))
            arguments.append(torch.zeros([int(size) for size in like.shape], dtype=like.dtype))
    role_names.append("in")
    first = piece.input is composite.input
    read = example.detach().clone()
    if not first and training:
        read.requires_grad_()
    try:
        with contextlib.ExitStack() as stack, torch.set_grad_enabled(training):
            module = module_of_piece(piece, piece.input, named)
            graph = aot_export_joint_with_descriptors(stack, module, (*arguments, read)).graph_module.graph
    except Exception as error:
        text = str(error).strip().splitlines()
        raise CaptureError(f"{place_of(piece.nodes[-1])}: cannot be differentiated: {text[0] if text else error}") from error

    roles = {}
    for node in (n for n in graph.nodes if n.op == "placeholder"):
        about = node.meta["desc"]
        roles[node] = "g" if "Tangent" in type(about).__name__ else role_names[about.idx]
    simplify(graph)
    results = next(n for n in graph.nodes if n.op == "output")
    joint = Joint(graph, roles, None, [None] * len(tensors.names["u"]), None, [None] * len(tensors.names["p"]))
    for about, node in zip(results.meta["desc"], results.args[0]):
        kind = type(about).__name__
        if node is None:
            continue
        if "Grad" in kind:
            role = role_names[about.grad_of.idx]
            if role == "in":
                joint.grad_input = node
            elif role.startswith("p"):
                joint.gradients[int(role[1:])] = node
        elif "Mutation" in kind and not role_names[about.mutated_input.idx].startswith("u"):
            writers = [n for n in piece.nodes if isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable]
            raise CaptureError(f"{place_of((writers or piece.nodes)[-1])}: writes in place to what another layer made, or to a constant; use the operator that returns a new tensor")
        elif "Mutation" in kind:
            joint.buffers[int(role_names[about.mutated_input.idx][1:])] = node
        else:
            joint.output = node
    return joint
