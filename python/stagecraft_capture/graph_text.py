"""A layer as the JSON of a graph file, and the fit of its sizes over micro-batch sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from . import operators
from .errors import CaptureError, place_of
from .instead import not_executed
from .nodes import name_of
from .noise import DRAWS, OURS, TRACED, is_random, refused_draw
from .split import mask_of
from .torch_private import OpOverload

if TYPE_CHECKING:
    from .aliases import Json, Step
    from .joint import Joint, Tensors
    from .split import Parts


TYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def type_text(tensor: torch.Tensor) -> str:
    if tensor.dtype not in TYPES:
        raise CaptureError(
            f"a tensor of {tensor.dtype}: runs do not have them; compute with {', '.join(map(str, TYPES))}"
        )
    return f"{TYPES[tensor.dtype]}[{','.join(str(int(size)) for size in tensor.shape)}]"


# Of operators that runs do not execute, what does the same.
class Names:
    """%0, %1, ... in the order of appearance."""

    def __init__(self, roles: dict[fx.Node, str]) -> None:
        self.names = dict(roles)
        self.count = 0

    def new(self, node: fx.Node) -> str:
        self.names[node] = f"%{self.count}"
        self.count += 1
        return self.names[node]

    def __getitem__(self, node: fx.Node) -> str:
        return self.names[node]


def argument(value: Any, kind: Any, names: Names) -> Any:
    """One argument of a step. `kind`: of the operator's schema."""
    if isinstance(value, fx.Node):
        return names[value]
    if value is None or isinstance(value, bool):
        return value
    if value == 2**63 - 1 and kind.startswith("Optional"):
        return None  # a slice to the end; readers of JSON hold numbers as doubles
    if isinstance(value, (int, float, complex)):
        if kind == "Tensor":
            return {"scalar": number(value)}
        return number(value)
    if isinstance(value, str):
        return {"string": value}
    if isinstance(value, (list, tuple)):
        inner = kind.removeprefix("List[").removesuffix("]").removeprefix("Optional[").removesuffix("]")
        return [argument(v, inner, names) for v in value]
    if isinstance(value, torch.dtype):
        if value not in TYPES:
            raise CaptureError(
                f"numbers of {value}: runs do not have them; compute with {', '.join(map(str, TYPES))}"
            )
        return {"dtype": TYPES[value]}
    if isinstance(value, torch.device):
        return {"device": "run"}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"format": str(value).removeprefix("torch.").removesuffix("_format")}
    raise CaptureError(
        f"an argument of type {type(value).__name__}, where runs have numbers, text and tensors; write it"
        " without"
    )


def number(value: Any) -> Any:
    if isinstance(value, complex):
        return {"complex": [number(value.real), number(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def arguments(node: fx.Node, names: Names) -> list[Any]:
    out = []
    for i, parameter in enumerate(node.target._schema.arguments):
        value = (
            node.args[i] if i < len(node.args) else node.kwargs.get(parameter.name, parameter.default_value)
        )
        if value == 2**63 - 1 and name_of(node) == "slice_backward":
            value = node.args[1][node.args[2]]  # to the end of what was sliced
        out.append(argument(value, str(parameter.type), names))
    return out


def made_again(node: fx.Node, names: Names, read: Collection[fx.Node]) -> Step | None:
    """The step that makes a node's results again from what is kept, where it is another than the node's own;
    or None."""

    def result(n: fx.Node) -> str:
        return f"{names.new(n)} {type_text(n.meta['val'])}"

    elements = {u.args[1]: u for u in node.users if u.target is operator.getitem and u in read}
    if name_of(node) == "native_dropout":
        given = [names[node.args[0]], names[mask_of(node)], node.args[1]]
        return ["stagecraft::dropout_apply", [result(elements[0])], given]
    # the running statistics have changed by now, and are not read
    if name_of(node) == "_native_batch_norm_legit_functional":
        x, weight, bias, _, _, training, momentum, epsilon = node.args
        given = [argument(a, "Tensor", names) for a in (x, weight, bias)] + [
            training,
            number(momentum),
            number(epsilon),
        ]
        return [
            "aten::_native_batch_norm_legit.no_stats",
            [result(elements[i]) if i in elements else None for i in range(3)],
            given,
        ]
    return None


def steps(
    nodes: list[fx.Node],
    names: Names,
    read: Collection[fx.Node],
    streams: dict[fx.Node, int],
    again: Collection[fx.Node] = frozenset(),
    draws: bool = True,
) -> list[Step]:
    """The nodes as steps. `read`: nodes whose results something reads; the others' results are null. `again`:
    nodes that are made again. Without `draws` none may draw random numbers."""
    out, taken = [], set(nodes)
    for node in nodes:
        if node.target is operator.getitem:
            continue
        if not isinstance(node.target, OpOverload):
            raise CaptureError(
                f"{place_of(node)}: {node.target} is no operator of ATen; write it with tensors alone"
            )
        remade = made_again(node, names, read) if node in again else None
        if remade is not None:
            out.append(remade)
            continue
        if is_random(node) and name_of(node) != "native_dropout":
            raise CaptureError(f"{place_of(node)}: {refused_draw(node)}")
        schema = node.target._schema
        several = len(schema.returns) > 1 or "List" in str(schema.returns[0].type)
        if several:
            parts = {u.args[1]: u for u in node.users if u.target is operator.getitem and u in taken}
            made = node.meta["val"]
            count = len(made)
            nodes_made = [parts.get(i) for i in range(count)]
        else:
            nodes_made = [node]
        try:
            given = arguments(node, names)
            results = [
                f"{names.new(n)} {type_text(n.meta['val'])}" if n is not None and n in read else None
                for n in nodes_made
            ]
        except CaptureError as error:
            raise CaptureError(f"{place_of(node)}: {node.target}: {error}") from error
        name = schema.name + ("." + schema.overload_name if schema.overload_name else "")
        name = name.replace(f"{TRACED}::", f"{OURS}::", 1)
        if name == "aten::native_dropout":
            name, given = "stagecraft::dropout", [given[0], given[1], streams.setdefault(node, len(streams))]
        elif name == "aten::native_dropout_backward":
            # given: gradient, mask, scale = 1 / (1 - p)
            name, given = "stagecraft::dropout_apply", [given[0], given[1], round(1 - 1 / given[2], 12)]
        elif name == "aten::_grouped_mm":
            if any(each is not None for each in given[3:]) or given[2] is None:
                raise CaptureError(
                    f"{place_of(node)}: grouped_mm with bias or out_dtype, or without offs: give it offs"
                    " alone, add the bias behind it, and convert its result with .to()"
                )
            name, given = "stagecraft::grouped_mm", given[:3]
        elif name == "stagecraft::bernoulli":
            given = [given[1], streams.setdefault(node, len(streams))]  # how many is in the result's type
        elif name in ("stagecraft::uniform", "stagecraft::normal", "stagecraft::exponential"):
            given = [streams.setdefault(node, len(streams))]
        if not draws and name in DRAWS:
            raise CaptureError(
                f"{place_of(node)}: draws random numbers in evaluation too, which runs do not; draw where"
                " self.training is true, and decide without chance elsewhere"
            )
        if not name.startswith("stagecraft::") and name.removeprefix("aten::") not in operators.NAMES:
            raise CaptureError(f"{place_of(node)}: {not_executed(name)}")
        out.append([name, results, given])
    return out


def readers(nodes: list[fx.Node], kept: Iterable[fx.Node | None]) -> set[fx.Node]:
    """Nodes that some node of the lists, or a result of the layer, reads."""
    return {n for node in nodes for n in node.all_input_nodes} | {n for n in kept if n is not None}


def field_types(training: Joint, evaluation: Joint, tensors: Tensors) -> list[str]:
    found = {
        role: type_text(n.meta["val"])
        for joint in (training, evaluation)
        for n, role in joint.roles.items()
        if role[0] == "f"
    }
    return [found[f"f{i}"] for i in range(len(tensors.names["f"]))]


def graph_json(joint: Joint, parts: Parts, evaluation: tuple[Joint, list[fx.Node]], tensors: Tensors) -> Json:
    """The graph file's contents at one micro-batch size. `evaluation`: joint and nodes of the graph in
    evaluation."""

    def ordered(letter: str) -> list[str]:
        for name in tensors.names[letter]:
            if letter != "c" and tensors.values[name].is_complex():
                raise CaptureError(
                    f"{name} is complex, and what a forward changes is held as real numbers: hold"
                    " torch.view_as_real of it, and read it by torch.view_as_complex"
                )
            if tensors.values[name].dtype == torch.complex128:
                raise CaptureError(
                    f"{name} is a constant of torch.complex128, which files do not hold: make it with"
                    " .to(torch.complex64)"
                )
        return [type_text(tensors.values[name]) for name in tensors.names[letter]]

    names = Names(joint.roles)
    streams: dict[fx.Node, int] = {}
    kept = [
        *joint.outputs,
        *joint.buffers,
        *joint.grad_inputs,
        *joint.gradients,
        *parts.keep_input,
        *parts.keep_weight,
        *parts.hand_weight,
    ]
    read = readers(parts.forward + parts.backward_input + parts.backward_weight, kept)

    def text(n: fx.Node | None) -> str | None:
        return None if n is None else names[n]

    node_of = {role: n for n, role in joint.roles.items()}
    inputs = [node_of[f"in{i}"] for i in range(len(joint.grad_inputs))]
    forward = steps(parts.forward, names, read, streams)
    out = {
        "format": 2,
        "parameters": ordered("p"),
        "buffers": ordered("u"),
        "constants": ordered("c"),
        **({"fields": field_types(joint, evaluation[0], tensors)} if tensors.names["f"] else {}),
        "inputs": [type_text(n.meta["val"]) for n in inputs],
        "outputs": [type_text(n.meta["val"]) for n in joint.outputs],
        "forward": {
            "steps": forward,
            "outputs": [text(n) for n in joint.outputs],
            "buffers": [text(n) for n in joint.buffers],
            "keep_input": [text(n) for n in parts.keep_input],
            "keep_weight": [text(n) for n in parts.keep_weight],
        },
    }
    halves = steps(parts.backward_input, names, read, streams, parts.again)
    out["backward_input"] = {
        "steps": halves,
        "outputs": [text(n) for n in joint.grad_inputs],
        "keep_weight": [text(n) for n in parts.hand_weight],
    }
    halves = steps(parts.backward_weight, names, read, streams)
    out["backward_weight"] = {"steps": halves, "gradients": [text(n) for n in joint.gradients]}
    ejoint, enodes = evaluation
    enames = Names(ejoint.roles)
    out["evaluate"] = {
        "steps": steps(enodes, enames, readers(enodes, ejoint.outputs), {}, draws=False),
        "outputs": [enames[n] for n in ejoint.outputs],
    }
    out["multiply_adds"] = 0
    return out


def affine(at: dict[int, int]) -> tuple[int, int] | None:
    """{b: number} as c * b + d, or None."""
    sizes = sorted(at)
    (x, y), (u, v) = [(b, at[b]) for b in sizes[-2:]]
    if (v - y) % (u - x):
        return None
    c = (v - y) // (u - x)
    d = y - c * x
    return (c, d) if all(c * b + d == n for b, n in at.items()) else None


def fit(texts: dict[int, Any]) -> Any:
    """One JSON value for all micro-batch sizes: {b: value} with equal structure. Raises ValueError where
    there is none."""
    values = list(texts.values())
    first = values[0]
    if all(v == first and type(v) is type(first) for v in values):
        return first
    if isinstance(first, dict):
        if any(not isinstance(v, dict) or v.keys() != first.keys() for v in values):
            raise ValueError("other arguments")
        return {k: fit({b: t[k] for b, t in texts.items()}) for k in first}
    if isinstance(first, list):
        if any(not isinstance(v, list) or len(v) != len(first) for v in values):
            raise ValueError("another number of steps or arguments")
        return [fit({b: t[i] for b, t in texts.items()}) for i in range(len(first))]
    if isinstance(first, str) and all(isinstance(v, str) for v in values):
        return fit_type(texts)
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        found = affine(texts)
        if found is not None:
            return {"size": list(found)}
    raise ValueError(f"{values}")


def fit_type(texts: dict[int, str]) -> str:
    """ "%3 f32[32,64]" at b = 2 and "%3 f32[48,64]" at 3 is "%3 f32[16*b,64]"."""
    heads = {t[: t.index("[")] for t in texts.values() if "[" in t}
    if len(heads) != 1:
        raise ValueError(f"{list(texts.values())}")
    shapes = {b: [int(s) for s in t[t.index("[") + 1 : -1].split(",") if s] for b, t in texts.items()}
    if len({len(s) for s in shapes.values()}) != 1:
        raise ValueError(f"{list(texts.values())}")
    out = []
    for i in range(len(next(iter(shapes.values())))):
        found = affine({b: s[i] for b, s in shapes.items()})
        if found is None:
            raise ValueError(f"{list(texts.values())}")
        c, d = found
        out.append(str(d) if c == 0 else ("b" if c == 1 else f"{c}*b") + (f"{d:+d}" if d else ""))
    return f"{heads.pop()}[{','.join(out)}]"
