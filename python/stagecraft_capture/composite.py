"""A module as one graph of composite operators, before differentiation: linear, layer_norm, dropout.

Cutting comes before differentiating: a joint graph of a whole model, cut afterwards, rounds otherwise than
eager does.
"""

from __future__ import annotations

import contextlib
import io
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .as_eager import as_eager
from .assignments import data_as_detached, returned, written_back
from .conversions import without_conversions
from .ctc import ctc_by_samples
from .custom_functions import as_operators, refuse_read_again
from .diagonals import by_views
from .differences import Listed
from .eager_kernels import eager_kernels
from .errors import CaptureError, place_of
from .export_errors import branches_of, explained, refuse_dependent, with_place
from .gru import grus_by_layers
from .hugging_face import eager_masks
from .in_place import out_of_place, storage, without_out, written_by
from .lstm import lstms_by_layers
from .nodes import name_of
from .noise import is_random
from .number_checks import without_number_checks
from .pooling import pool_by_means
from .python_numbers import PythonNumbers
from .quick import quick
from .reach import Snapshot
from .real_strides import real_strides
from .sized import of_given_sizes
from .stack_traces import with_users_frames
from .terms import of_module
from .torch_private import HigherOrderOperator, pytree
from .transforms import refuse_constants, refuse_foreign, without_derivatives

if TYPE_CHECKING:
    from .aliases import Needs


ATEN = torch.ops.aten


@dataclass
class Composite:
    """One export, for one micro-batch size."""

    graph: fx.Graph
    input: fx.Node  # the placeholder of the model's input
    fields: dict  # placeholder -> name, of all fields of the batch, the input among them
    output: fx.Node  # the value the model returns
    loss: fx.Node  # the loss behind it, or None
    terms: dict  # name -> number that is reported beside the loss, without a gradient
    # placeholder -> (kind, name, tensor); kind: parameter, frozen (which has no gradient), buffer, constant
    tensors: dict
    nodes: list  # the operators, in order
    drawing: list = field(default_factory=list)  # operators that draw, in eager's order
    changing: set = field(default_factory=set)  # names of buffers that a forward in training changes
    # of an output that joined.py made: so many columns are the module's own output, and its shape
    columns: tuple[int, list[int]] | None = None
    # places of lines of Python that look at numbers to refuse some, of refusing_lines.py
    unchecked: list[str] = field(default_factory=list)
    inner: set = field(default_factory=set)  # of the loss, what is computed where it arises, of joined.py

    def listed(self) -> Listed:
        names = {node: name.removeprefix("wrapped.") for node, (_, name, _) in self.tensors.items()}
        return Listed(self.nodes, {**names, **self.fields})


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Puts the bodies of wrap_with_... regions (no_grad, autocast off) in their places. What a no_grad region
    makes says so in its meta."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not str(node.target).startswith("wrap_with"):
            continue
        at = next(i for i, a in enumerate(node.args) if isinstance(a, fx.Node) and a.op == "get_attr")
        body, about = getattr(module, node.args[at].target), node.args[:at]
        if "autocast" in str(node.target) and about[0] == "cpu" and about[2]:
            first = next((n for n in body.graph.nodes if n.op == "call_function"), node)
            raise CaptureError(
                f"{place_of(first)}: computes under torch.autocast, which runs do not know; convert with"
                " .to(dtype) where it shall be so"
            )
        inline_regions(body)
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        known = dict(zip(placeholders, node.args[at + 1 :]))
        results: Any = None
        with module.graph.inserting_before(node):
            for inner in body.graph.nodes:
                if inner.op == "call_function":
                    known[inner] = module.graph.node_copy(inner, known.__getitem__)
                    if "set_grad_enabled" in str(node.target):
                        known[inner].meta.setdefault("differentiable", about[0])
                elif inner.op == "output":
                    results = fx.map_arg(inner.args[0], known.__getitem__)
        for user in list(node.users) if not isinstance(results, fx.Node) else []:
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        if isinstance(results, fx.Node):
            node.replace_all_uses_with(results)
        module.graph.erase_node(node)


def is_numbers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


RETURN_ITSELF = ("flatten", "contiguous", "to", "type_as", "dropout", "conj", "resolve_conj", "positive")


def returns_itself(node: fx.Node) -> bool:
    """Whether eager returns the argument, the same tensor, as 2-dimensional numbers flattened from 1 on."""
    if name_of(node) not in RETURN_ITSELF or not isinstance(node.args[0], fx.Node):
        return False
    made, given = node.meta.get("val"), node.args[0].meta.get("val")
    if name_of(node) == "dropout" and node.args[1] != 0 and node.args[2]:
        return False
    copies = node.kwargs.get("copy") or (name_of(node) == "to" and True in node.args[1:])
    like = isinstance(made, torch.Tensor) and isinstance(given, torch.Tensor) and not copies
    return like and (made.shape, made.dtype, made.stride()) == (given.shape, given.dtype, given.stride())


def output_as_made(graph: fx.Graph) -> None:
    """A tensor that went through .float() as it was has the last of its names in what torch.export returns.
    A loss that calls it would seem to read two values of the model, the output and what it was made of."""
    results = next(n for n in graph.nodes if n.op == "output").args[0]
    names = [n for n in results if isinstance(n, fx.Node)][:1]
    while names and returns_itself(names[-1]):
        names.append(names[-1].args[0])
    if all(len(name.users) == 1 for name in names[1:]):
        return
    for name in names[:-1]:
        name.replace_all_uses_with(names[-1])
        graph.erase_node(name)


def detach_regions(graph: fx.Graph) -> None:
    """What a no_grad region made has no gradient outside of it. What went through it as it was has one, and
    so has what torch.export takes for it from then on."""

    def under_no_grad(node: fx.Node) -> bool:
        return not node.meta.get("differentiable", True)

    for node in [n for n in graph.nodes if under_no_grad(n) and returns_itself(n)]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    for node in [n for n in graph.nodes if under_no_grad(n)]:
        readers = {user for user in node.users if not under_no_grad(user)}
        if readers and is_numbers(node):
            with graph.inserting_after(node):
                detached = graph.call_function(ATEN.detach.default, (node,))
            detached.meta = dict(node.meta)
            node.replace_all_uses_with(detached, delete_user_cb=readers.__contains__)
    for node in [n for n in graph.nodes if under_no_grad(n) and written_by(n)]:  # nor has what it wrote to
        for value in [n for n in node.all_input_nodes if n not in written_by(node) and is_numbers(n)]:
            with graph.inserting_before(node):
                detached = graph.call_function(ATEN.detach.default, (value,))
            detached.meta = dict(value.meta)
            node.replace_input_with(value, detached)


def drop_broadcasts(graph: fx.Graph) -> None:
    """Tensors of one shape are broadcast to themselves: losses do so, and the model's output would seem to
    come behind the targets."""
    for node in [
        n
        for n in graph.nodes
        if n.op == "call_function" and n.target == torch.ops.aten.broadcast_tensors.default
    ]:
        for element in list(node.users):
            given = node.args[0][element.args[1]]
            if given.meta["val"].shape == element.meta["val"].shape:
                element.replace_all_uses_with(given)
                graph.erase_node(element)
        if not node.users:
            graph.erase_node(node)


def refuse_branches(graph: fx.Graph) -> None:
    """torch.cond, torch.while_loop and the like, which hold graphs of their own."""
    for node in graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise CaptureError(f"{place_of(node)}: {branches_of(node.target)}")


def is_assertion(node: fx.Node) -> bool:
    return "assert" in str(node.target) or "sym_constrain" in str(node.target)


def export(module: torch.nn.Module, inputs: dict[str, torch.Tensor], has_loss: bool = False) -> Composite:
    """The composite graph of `module` for the fields `inputs` of a batch, of which the first is the model's
    input."""
    logging.disable(logging.ERROR)  # what torch.export logs, the error below says in a line
    before = Snapshot(module, values=False)
    assigned: list[str] = []
    python_numbers = PythonNumbers()
    try:
        with (
            returned(module, assigned),
            data_as_detached(),
            eager_kernels(),
            real_strides(),
            eager_masks(inputs),
            as_operators(),
            lstms_by_layers(),
            grus_by_layers(),
            ctc_by_samples(),
            of_given_sizes(),
            by_views(),
            without_number_checks(),
            without_conversions(),
            without_derivatives(),
            with_users_frames(),
            quick(),
            python_numbers,
            contextlib.redirect_stderr(io.StringIO()),
        ):
            program = torch.export.export(module, (), inputs, strict=False)
    except CaptureError as error:
        raise with_place(error, module) from error
    except Exception as error:  # torch.export has many types of its own
        raise explained(error, module, inputs, python_numbers.sized) from error
    finally:
        logging.disable(logging.NOTSET)
        before.restore()  # attributes that the forward sets hold tensors without numbers now
    inline_regions(program.graph_module)
    graph = program.graph
    refuse_branches(graph)
    refuse_foreign(graph)
    refuse_read_again(graph)
    without_out(graph)
    by_name = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    written_back(
        graph,
        assigned,
        lambda name: next(n for n in graph.nodes if n.op == "placeholder" and n.name == by_name[name]),
    )
    detach_regions(graph)
    drop_broadcasts(graph)
    buffers, constants = dict(module.named_buffers(remove_duplicate=False)), program.constants
    parameters = dict(module.named_parameters(remove_duplicate=False))
    # of a tied one the first, as state_dict has it in weight files
    own_name = {id(parameter): name for name, parameter in reversed(parameters.items())}
    tensors, fields = {}, []
    placeholders = {n.name: n for n in graph.nodes if n.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = placeholders[spec.arg.name]
        if spec.target in parameters:
            parameter = parameters[spec.target]
            tensors[node] = (
                "parameter" if parameter.requires_grad else "frozen",
                own_name[id(parameter)],
                parameter,
            )
        elif spec.target in buffers:
            tensors[node] = ("buffer", spec.target, buffers[spec.target])
        elif spec.target in constants:
            tensors[node] = ("constant", spec.target, constants[spec.target])
        else:
            fields.append(node)
    for node in list(graph.nodes):
        if node.op == "call_function" and is_assertion(node):
            graph.erase_node(node)
        elif node.op == "get_attr" and node.users:
            tensors[node] = ("constant", node.target, getattr(program.graph_module, node.target))
    constants_read = ((n, value) for n, (kind, _, value) in tensors.items() if kind == "constant")
    refuse_constants(constants_read, before, set(own_name))
    out_of_place(graph, {storage(n) for n in tensors})
    as_eager(graph)
    pool_by_means(graph)
    output_as_made(graph)
    results = next(n for n in graph.nodes if n.op == "output").args[0]
    outputs = [n for n in results if isinstance(n, fx.Node)]
    terms = terms_of(program) if has_loss else []
    if len(outputs) != (2 + len(terms) if has_loss else 1):
        raise CaptureError(
            f"the model returns {len(outputs)} tensors; make it return the one that the loss reads"
        )
    reported = {name: as_term(graph, node) for name, node in zip(terms, outputs[2:])}
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    composite = Composite(
        graph,
        fields[0],
        dict(zip(fields, inputs)),
        outputs[0],
        outputs[1] if has_loss else None,
        reported,
        tensors,
        nodes,
    )
    drawing = [n for n in composite.nodes if is_random(n) and not is_idle_dropout(n)]
    composite.nodes = wanted(composite)
    composite.changing = changed_by(composite)
    composite.drawing = drawing
    composite.unchecked = list(python_numbers.unchecked)
    refuse_dependent(composite.nodes)
    return composite


def terms_of(program: torch.export.ExportedProgram) -> list[str]:
    """Names of what a module with a loss returns behind it, in the order of its results."""
    spec = program.call_spec.out_spec
    assert spec is not None
    made, _assigned = pytree.tree_unflatten(range(spec.num_leaves), spec)
    return list(of_module(made))


def as_term(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The number as a node that nothing else is, and that no gradient goes through."""
    results = next(n for n in graph.nodes if n.op == "output")
    with graph.inserting_before(results):
        detached = graph.call_function(ATEN.detach.default, (node,))
    detached.meta = dict(node.meta)
    return detached


def is_idle_dropout(node: fx.Node) -> bool:
    return node.target == ATEN.dropout.default and (node.args[1] == 0 or not node.args[2])


def copied(composite: Composite) -> Composite:
    """The same graph with nodes of its own."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(composite.graph, known))

    def of(node: fx.Node | None) -> Any:
        return None if node is None else known[node]

    def named(about: dict[fx.Node, Any]) -> dict[fx.Node, Any]:
        return {known[node]: value for node, value in about.items()}

    return Composite(
        graph,
        of(composite.input),
        named(composite.fields),
        of(composite.output),
        of(composite.loss),
        {name: known[node] for name, node in composite.terms.items()},
        named(composite.tensors),
        [known[n] for n in composite.nodes],
    )


def same_graph(a: Composite, b: Composite) -> bool:
    """Whether two exports have the same operators, reading the same values."""

    def lines(composite: Composite) -> list[tuple[str, ...]]:
        return [
            (n.op, str(n.target), str(n.args), str(n.kwargs), str(n.meta.get("val")))
            for n in composite.graph.nodes
        ]

    def held(composite: Composite) -> dict[str, Any]:
        return {n.name: about for n, about in composite.tensors.items()}

    x, y = held(a), held(b)
    same_tensors = x.keys() == y.keys() and all(
        x[n][:2] == y[n][:2] and (x[n][2] is y[n][2] or torch.equal(x[n][2], y[n][2])) for n in x
    )
    return lines(a) == lines(b) and same_tensors


def wanted(composite: Composite) -> list[fx.Node]:
    """The operators that the results need, and those that update buffers (a pooler that nobody reads is left
    out)."""
    needs = dependencies(composite)
    results = [n for n in (composite.output, composite.loss, *composite.terms.values()) if n is not None]
    outlasting = {storage(n) for n in (*composite.tensors, *results)}
    todo = [*results, *(n for n in composite.nodes if any(storage(w) in outlasting for w in written_by(n)))]
    found = set()
    while todo:
        node = todo.pop()
        if node not in found and node in needs:
            found.add(node)
            todo += needs[node]
    return [n for n in composite.nodes if n in found]


def changed_by(composite: Composite) -> set[str]:
    """Names of what a layer holds and its operators write to."""
    written = {storage(w) for n in composite.nodes for w in written_by(n)}
    return {
        name
        for n, (kind, name, _) in composite.tensors.items()
        if kind != "constant" and storage(n) in written
    }


def dependencies(composite: Composite) -> Needs:
    """node -> the nodes it needs, those that write to what it reads (batch norm's counters) among them."""
    writers: dict[int | None, list[fx.Node]] = {}
    needs: Needs = {}
    for node in composite.nodes:
        reads = list(node.all_input_nodes)
        needs[node] = reads + [w for r in reads for w in writers.get(storage(r), []) if w is not node]
        for written in written_by(node):
            writers.setdefault(storage(written), []).append(node)
    return needs
