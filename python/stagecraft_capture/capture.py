"""From a module to layers: exported at several micro-batch sizes, cut, differentiated, split, and fitted over the sizes."""

import contextlib
import hashlib
from dataclasses import dataclass

import torch

from .composite import export
from .cut import add_constants, constant_only, cut
from .composite import dependencies
from .equal_pieces import describe
from .errors import CaptureError
from .graph_text import fit, graph_json
from .joint import Tensors, split, trace
from .multiply_adds import multiply_adds
from .no_weights import mode_of

SIZES = (2, 3, 5)  # two make a line, the third must lie on it


@dataclass
class Layer:
    name: str
    graph: dict  # the graph file's JSON
    tensors: Tensors


def digest(tensor):
    tensor = tensor.detach().contiguous().cpu()
    about = f"{tensor.dtype} {list(tensor.shape)}".encode()
    return hashlib.sha256(about + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def constant_values(composite, constant):
    """node -> its tensor, for nodes that depend on constants only."""
    values = {n: tensor for n, (_, _, tensor) in composite.tensors.items() if n in constant}
    with torch.no_grad():
        for node in composite.nodes:
            if node in constant:
                read = lambda n: values[n]
                args, kwargs = torch.fx.node.map_arg(node.args, read), torch.fx.node.map_arg(node.kwargs, read)
                values[node] = node.target(*args, **kwargs)
    return values


def settle_constants(composites, cuts):
    """What layers read of constants, and is the same at every size, is stored instead of made in every step."""
    constants = {b: constant_only(c, dependencies(c)) for b, c in composites.items()}
    values = {b: constant_values(c, constants[b]) for b, c in composites.items()}
    for index in range(len(next(iter(cuts.values())))):
        at = {b: pieces[index] for b, pieces in cuts.items()}
        read = {b: [n for node in piece.nodes for n in node.all_input_nodes if n in constants[b] and n.op == "call_function"] for b, piece in at.items()}
        if len({len(r) for r in read.values()}) != 1:
            continue
        for k in range(len(next(iter(read.values())))):
            tensors = [values[b][read[b][k]] for b in composites]
            if all(isinstance(t, torch.Tensor) and t.shape == tensors[0].shape and torch.equal(t, tensors[0]) for t in tensors):
                for b, composite in composites.items():
                    composite.tensors[read[b][k]] = ("constant", "constant/" + digest(tensors[0]), tensors[0].contiguous())
    for b, composite in composites.items():
        unsettled = constants[b] - {n for n in composite.tensors if n.op == "call_function"}
        needs = dependencies(composite)
        for piece in cuts[b]:
            add_constants(piece, unsettled, needs, composite)
    for composite in composites.values():
        for node, (kind, name, tensor) in list(composite.tensors.items()):
            if kind == "constant" or (kind == "buffer" and node in constant_only_placeholders(composite)):
                composite.tensors[node] = ("constant", "constant/" + digest(tensor), tensor)


def constant_only_placeholders(composite):
    constant = constant_only(composite, dependencies(composite))
    return {n for n in composite.tensors if n in constant}


def capture(module, inputs_at, sizes=SIZES):
    """Layers of `module`. `inputs_at(b)`: keyword arguments of a micro-batch of b samples."""
    exported, fake = {}, mode_of(module)
    given = lambda b: {name: fake.from_tensor(t) if fake else t for name, t in inputs_at(b).items()}
    for mode in (True, False):
        module.train(mode)
        exported[mode] = {b: export(module, given(b)) for b in sizes}
    module.train()
    cuts = {mode: {b: cut(c) for b, c in at.items()} for mode, at in exported.items()}
    names = [piece.name for piece in cuts[True][sizes[0]]]
    if any([piece.name for piece in pieces] != names for at in cuts.values() for pieces in at.values()):
        raise CaptureError("the model has other layers in evaluation, or at other micro-batch sizes: its Python takes other branches there")
    for mode in (True, False):
        settle_constants(exported[mode], cuts[mode])
    layers, graphs = [], {}
    for index, name in enumerate(names):
        tensors, about = describe(index, exported, cuts, sizes)
        if about not in graphs:
            with fake or contextlib.nullcontext():
                graphs[about] = capture_graph(name, index, exported, cuts, sizes, tensors)
        layers.append(Layer(name, graphs[about], tensors))
    check_not_tied(layers)
    return layers


def capture_graph(name, index, exported, cuts, sizes, tensors):
    texts = {}
    for b in sizes:
        joints = {}
        for mode in (True, False):
            piece = cuts[mode][b][index]
            like = piece.input.meta["val"]
            example = torch.zeros([int(size) for size in like.shape], dtype=like.dtype)
            joints[mode] = trace(piece, exported[mode][b], example, tensors)
        texts[b] = (joints[True], joints[False])
    # Only now are all names known.
    for b, (training, evaluation) in texts.items():
        training.buffers += [None] * (len(tensors.names["u"]) - len(training.buffers))
        training.gradients += [None] * (len(tensors.names["p"]) - len(training.gradients))
        forward = split(evaluation_only(evaluation)).forward
        texts[b] = graph_json(training, split(training), (evaluation, forward), tensors)
    try:
        graph = fit(texts)
    except ValueError as error:
        raise CaptureError(f"module {name!r}: its graph differs between micro-batches of {', '.join(map(str, sizes))} samples: {error}") from error
    graph["multiply_adds"] = multiply_adds(graph)
    return graph


def evaluation_only(joint):
    joint.grad_input, joint.gradients, joint.buffers = None, [None] * len(joint.gradients), [None] * len(joint.buffers)
    return joint


def check_not_tied(layers):
    holders = {}
    for layer in layers:
        for name in layer.tensors.names["p"]:
            if name in holders:
                raise CaptureError(f"parameter {name!r} is used by layers {holders[name]!r} and {layer.name!r}; tied weights are not supported yet: give --untie")
            holders[name] = layer.name
