"""A piece as one graph of forward and backward, as autograd would record it, and its split into the three parts of a layer."""

import contextlib
import operator
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from .errors import CaptureError, place_of

ATEN = torch.ops.aten


@dataclass
class Joint:
    """Roles of the nodes: values are named as in a graph file."""

    graph: fx.Graph
    roles: dict  # placeholder -> "in", "g", "p0", "u0", "c0"
    output: fx.Node
    buffers: list  # new value of each buffer, or None
    grad_input: fx.Node  # or None
    gradients: list  # of each parameter, or None


@dataclass
class Parts:
    """Node lists of a layer, and what one part keeps for the next."""

    forward: list = field(default_factory=list)
    backward_input: list = field(default_factory=list)
    backward_weight: list = field(default_factory=list)
    keep_input: list = field(default_factory=list)
    keep_weight: list = field(default_factory=list)
    hand_weight: list = field(default_factory=list)


def name_of(node):
    return node.target._schema.name.removeprefix("aten::") if isinstance(node.target, torch._ops.OpOverload) else ""


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
        self.names = {"p": [], "u": [], "c": []}
        self.values = {}

    def role(self, kind, name, value):
        letter = {"parameter": "p", "buffer": "u", "constant": "c"}[kind]
        if name not in self.names[letter]:
            self.names[letter].append(name)
        self.values[name] = value
        return f"{letter}{self.names[letter].index(name)}"


def trace(piece, composite, example, tensors):
    """The joint graph for the piece's input `example`, which needs a gradient unless it is the batch's own. `tensors` learns names."""
    used = {n for node in piece.constant_nodes + piece.nodes for n in node.all_input_nodes}
    named, role_names, arguments = [], [], []
    for node in (n for n in composite.tensors if n in used):
        kind, name, tensor = composite.tensors[node]
        named.append(node)
        role_names.append(tensors.role(kind, name, tensor))
        value = tensor.detach().clone()
        arguments.append(value.requires_grad_() if kind == "parameter" else value)
    role_names.append("in")
    first = piece.input is composite.input
    read = example.detach().clone()
    if not first:
        read.requires_grad_()
    try:
        with contextlib.ExitStack() as stack:
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
        elif "Mutation" in kind:
            joint.buffers[int(role_names[about.mutated_input.idx][1:])] = node
        else:
            joint.output = node
    return joint


def simplify(graph):
    """Removes what changes nothing, and writes some operators so that their halves part."""
    for node in list(graph.nodes):
        op = name_of(node)
        if op in ("detach", "alias"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif op == "clone" and not node.kwargs and node.args[0].op == "call_function" and same_layout(node):
            node.replace_all_uses_with(node.args[0])  # a dropout of probability 0
            graph.erase_node(node)
        elif op == "native_batch_norm_backward" and node.args[7]:
            # In training the kernel does not read the running statistics, which by then another micro-batch has changed.
            node.args = (*node.args[:3], None, None, *node.args[5:])
        elif op == "convolution_backward" and node.args[10][0] and any(node.args[10][1:]):
            with graph.inserting_before(node):
                halves = [graph.call_function(node.target, (*node.args[:10], mask)) for mask in ([True, False, False], [False, *node.args[10][1:]])]
            for half in halves:
                half.meta = dict(node.meta)
            for user in list(node.users):
                user.args = (halves[user.args[1] != 0], user.args[1])
            graph.erase_node(node)


def same_layout(node):
    before, after = node.args[0].meta.get("val"), node.meta.get("val")
    return before is not None and after is not None and before.stride() == after.stride()


VIEWS = {"view", "t", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "select", "split", "split_with_sizes", "unbind", "chunk"}


def split(joint):
    """The joint graph's nodes as forward, input half and weight half."""
    graph = joint.graph
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    order = {n: i for i, n in enumerate(graph.nodes)}

    def ancestors(roots, known):
        found, todo = set(), [r for r in roots if r is not None and r.op == "call_function"]
        while todo:
            node = todo.pop()
            if node not in found and node not in known:
                found.add(node)
                todo += [n for n in node.all_input_nodes if n.op == "call_function"]
        return found | {n for n in nodes if n.target is operator.getitem and n.args[0] in found}

    forward = ancestors([joint.output, *joint.buffers], set())
    backward_input = ancestors([joint.grad_input], forward)
    backward_weight = ancestors(joint.gradients, forward | backward_input)

    def made_again(node):
        """Views of weights and inputs cost nothing, and would only be kept."""
        if node.op == "placeholder":
            return joint.roles[node][0] in "pc"
        if node.target is operator.getitem:
            return made_again(node.args[0])
        return name_of(node) in VIEWS and all(made_again(n) for n in node.all_input_nodes)

    def reads(part):
        """The part with what it makes again, and what it reads of earlier parts."""
        part, outside, todo = set(part), set(), list(part)
        while todo:
            for node in todo.pop().all_input_nodes:
                if node in part:
                    continue
                if node.op == "call_function" and made_again(node):
                    part.add(node)
                    todo.append(node)
                else:
                    outside.add(node)
        return part, outside

    backward_weight, from_outside = reads(backward_weight)
    from_outside |= {g for g in joint.gradients if g is not None and g not in backward_weight}  # a norm's, made in the input half
    backward_input, of_input = reads(backward_input)
    in_order = lambda found: sorted(found, key=order.get)
    is_kept = lambda n: n in forward if n.op == "call_function" else joint.roles[n] in ("in",)
    return Parts(
        forward=[n for n in nodes if n in forward],
        backward_input=[n for n in nodes if n in backward_input],
        backward_weight=[n for n in nodes if n in backward_weight],
        keep_input=in_order(n for n in of_input if is_kept(n)),
        keep_weight=in_order(n for n in from_outside if is_kept(n)),
        hand_weight=in_order(n for n in from_outside if n in backward_input or (n.op == "placeholder" and joint.roles[n] == "g")),
    )
