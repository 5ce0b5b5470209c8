"""From a module to layers: exported at several micro-batch sizes, cut, differentiated, split, and fitted over the sizes."""

import contextlib
import hashlib
from dataclasses import dataclass, field

import torch

from .composite import copied, export, same_graph
from .cut import add_constants, constant_only, derived, finish
from .composite import dependencies
from .equal_pieces import describe
from .errors import CaptureError
from .graph_text import fit, graph_json
from .joint import Tensors, trace
from .keep import BUDGET, choose, kept_bytes
from .layers import blocks_of, checked
from .layouts import gradients_between
from .losses import units_of
from .memory import refuse_shared_with_parameters
from .multiply_adds import multiply_adds
from .no_weights import mode_of
from .seams import cut_alike, values_between
from .small_twin import structure
from .split import split
from .state import examined

SIZES = (2, 3, 5)  # two make a line, the third must lie on it


@dataclass
class Layer:
    name: str
    reads: list  # values
    makes: list  # values; what goes through it is there too, under the same name
    graph: dict  # the graph file's JSON
    tensors: Tensors
    kept: int  # bytes per sample that wait between forward and backward
    kept_all: int  # the same with nothing made again
    structure: str  # of small_twin.py


def digest(tensor):
    tensor = tensor.detach().contiguous().cpu()
    about = f"{tensor.dtype} {list(tensor.shape)}".encode()
    return hashlib.sha256(about + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@dataclass
class Model:
    layers: list
    loss: Layer = None
    units: dict = None  # what a mean counts, as the manifest has it; None: samples
    reduction: str = "mean"
    unread: dict = None  # by micro-batch size, of composite.py
    changes: object = None  # of state.py
    joined: list = field(default_factory=list)  # layers that are part of the first: no gradient goes further back

    @property
    def parts(self):
        """All that have a graph."""
        return [*self.layers, *([self.loss] if self.loss else [])]


def constant_values(composite, constant, batch=None):
    """node -> its tensor, for nodes that depend on constants only, and on fields of `batch`."""
    values = {n: tensor for n, (_, _, tensor) in composite.tensors.items() if n in constant}
    values.update({n: batch[name] for n, name in composite.fields.items()} if batch else {})
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
        needs = dependencies(composite)
        unsettled = derived(composite, needs) - {n for n in composite.tensors if n.op == "call_function"}
        for piece in cuts[b]:
            add_constants(piece, unsettled, needs, composite)
    for composite in composites.values():
        settled = constant_only(composite, dependencies(composite))
        for node, (kind, name, tensor) in list(composite.tensors.items()):
            if kind == "constant" or (kind == "buffer" and node in settled):
                composite.tensors[node] = ("constant", "constant/" + digest(tensor), tensor)


def capture(module, batch, has_loss=False, sizes=SIZES, budget=BUDGET["cheap"], choice="auto"):
    """`module` takes the fields of `batch` and returns its output; with `has_loss` (output, loss). `budget`: of keep.py. `choice`: of
    layers.py."""
    checked(choice, module)
    changes = examined(module, batch)
    exported, fake = {}, mode_of(module)
    given = lambda b: {name: fake.from_tensor(t) if fake else t for name, t in batch.at(b).items()}
    exported[True] = {b: export(module.train(), given(b), has_loss) for b in sizes}
    exported[False] = {max(sizes): export(module.eval(), given(max(sizes)), has_loss)}
    if same_graph(exported[True][max(sizes)], exported[False][max(sizes)]):  # no dropout, no batch norm: one export does for both
        exported[False] = {b: copied(composite) for b, composite in exported[True].items()}
    else:
        exported[False] = {b: exported[False].get(b) or export(module, given(b), has_loss) for b in sizes}
    module.train()
    refuse_shared_with_parameters(module, exported[True][max(sizes)])
    changing = set().union(*(composite.changing for composite in exported[True].values()))
    for composite in (c for at in exported.values() for c in at.values()):
        composite.changing = changing  # evaluation reads what training changes
    blocks = blocks_of(module)
    given_gradients = lambda composite, pieces: gradients_between(composite, pieces, given(max(sizes)))
    with fake or contextlib.nullcontext():
        cuts, gradients, joined = cut_alike(exported, max(sizes), given_gradients, choice, getattr(module, "PREFIX", ""), blocks)
    names, values = [piece.name for piece in cuts[True][sizes[0]]], values_between(cuts[True][sizes[0]])
    for mode, at in cuts.items():
        for b, pieces in at.items():
            finish(pieces, exported[mode][b], gradients if mode else None)
    units, reduction = loss_units(exported, cuts, batch, max(sizes)) if has_loss else (None, "mean")
    for mode in (True, False):
        settle_constants(exported[mode], cuts[mode])
    layers, graphs, chosen = [], {}, {}
    for index, name in enumerate(names):
        tensors, about = describe(index, exported, cuts, sizes)
        if about not in graphs:
            with fake or contextlib.nullcontext():
                graphs[about] = capture_graph(name, index, exported, cuts, sizes, budget, chosen, tensors)
        layers.append(Layer(name, *values[index], tensors=tensors, **graphs[about]))
    loss = layers.pop() if has_loss else None
    return Model(layers, loss, units, reduction, {b: composite.unread for b, composite in exported[True].items()}, changes, joined)


def loss_units(exported, cuts, batch, b):
    composite = exported[True][b]
    known = derived(composite, dependencies(composite))
    return units_of(cuts[True][b][-1], lambda fields: constant_values(composite, known, fields), batch.at(b))


def capture_graph(name, index, exported, cuts, sizes, budget, chosen, tensors):
    """What equal layers share. `chosen` remembers what they make again."""
    joints = {}
    for b in sizes:
        joints[b] = {}
        for mode in (True, False):
            piece = cuts[mode][b][index]
            read = [node.meta["val"] for node in piece.inputs]
            examples = [torch.zeros([int(size) for size in like.shape], dtype=like.dtype) for like in read]
            joints[b][mode] = trace(piece, exported[mode][b], examples, tensors, mode)
    # Only now are all names known.
    texts, again = {}, None
    for b in sorted(sizes, reverse=True):  # what is made again is chosen once, for the largest
        training, evaluation = joints[b][True], evaluation_only(joints[b][False])
        training.buffers += [None] * (len(tensors.names["u"]) - len(training.buffers))
        training.gradients += [None] * (len(tensors.names["p"]) - len(training.gradients))
        nodes = list(training.graph.nodes)
        if again is None:
            again = made_again(training, nodes, budget, chosen)
        parts = split(training, frozenset(nodes[i] for i in again if i < len(nodes)))
        texts[b] = graph_json(training, parts, (evaluation, split(evaluation).forward), tensors)
    try:
        graph = fit({b: texts[b] for b in sizes})
    except ValueError as error:
        raise CaptureError(f"module {name!r}: its graph differs between micro-batches of {', '.join(map(str, sizes))} samples: {error}") from error
    graph["multiply_adds"] = multiply_adds(graph)
    kept, kept_all = kept_per_sample(joints, again)
    return {"graph": graph, "kept": kept, "kept_all": kept_all, "structure": structure(joints[max(sizes)].values())}


def made_again(joint, nodes, budget, chosen):
    """Places of the nodes."""
    key = str([(n.op, str(n.target), str(n.args), str(n.kwargs), n.meta["val"].shape if isinstance(n.meta.get("val"), torch.Tensor) else None) for n in nodes])
    if key not in chosen:
        found = choose(joint, budget)
        chosen[key] = frozenset(i for i, n in enumerate(nodes) if n in found)
    return chosen[key]


def kept_per_sample(joints, again):
    few, many = min(joints), max(joints)
    bytes_at = lambda b, places: kept_bytes(split(joints[b][True], frozenset(n for i, n in enumerate(joints[b][True].graph.nodes) if i in places)))
    return [(bytes_at(many, places) - bytes_at(few, places)) // (many - few) for places in (again, ())]


def evaluation_only(joint):
    for results in (joint.grad_inputs, joint.gradients, joint.buffers):
        results[:] = [None] * len(results)
    return joint
