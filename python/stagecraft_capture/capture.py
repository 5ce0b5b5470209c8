"""From a module to layers: exported at several micro-batch sizes, cut, differentiated, split, and fitted over
the sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .composite import dependencies
from .constants import constant_values, settle_constants
from .cut import derived, finish
from .differences import REMEDY, Listed, Unlike, first_difference, of_sizes
from .draws import draws_of
from .equal_pieces import describe
from .errors import CaptureError, place_of
from .graph_text import fit, graph_json
from .joint import Tensors, trace
from .keep import BUDGET, choose, kept_bytes
from .layers import blocks_of, checked
from .layouts import gradients_between, orders_between, own_order
from .losses import reduction_of, units_of
from .memory import refuse_shared_with_parameters
from .multiply_adds import multiply_adds
from .no_weights import mode_of
from .repeated import put_together, read_apart
from .seams import cut_alike, values_between
from .size_numbers import numbers_by_tensors
from .sizes import RUN, exported_at_sizes
from .small_twin import structure
from .split import split
from .state import Changes, examined
from .torch_private import FakeTensorMode

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Cuts, Json, Modes
    from .batch import Batch
    from .composite import Composite
    from .cut import Piece
    from .draws import Draws
    from .joint import Joint
    from .losses import WithLoss
    from .sizes import Exports


@dataclass
class Layer:
    name: str
    reads: list[tuple[int, int]]  # values
    makes: list[tuple[int, int]]  # values; what goes through it is there too, under the same name
    graph: Json  # the graph file's JSON
    tensors: Tensors
    kept: int  # bytes per sample that wait between forward and backward
    kept_all: int  # the same with nothing made again
    structure: str  # of small_twin.py


@dataclass
class Model:
    layers: list[Layer]
    loss: Layer | None = None
    terms: list[str] = field(default_factory=list)  # names of what its graph makes behind the loss
    units: Json | None = None  # what a mean counts, as the manifest has it; None: samples
    reduction: str = "mean"  # or "sum", or "whole": neither, of reduction_of
    draws: dict[int, Draws] = field(default_factory=dict)  # by micro-batch size
    changes: Changes = field(default_factory=Changes)
    # layers that are part of the first: no gradient goes further back
    joined: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()  # of micro-batches that its graphs were exported at
    fails: str = ""  # why not at more samples, of sizes.py
    gaps: bool = False  # whether something lies with gaps between layers in eager mode
    moved: bool = False  # whether calls of a module were put together, of repeated.py
    # in which the output goes to the loss, of layouts.py; None: that of its dimensions
    order: list[int] | None = None
    columns: tuple[int, list[int]] | None = None  # of composite.py
    unchecked: list[str] = field(default_factory=list)  # of composite.py
    apart: list[str] = field(default_factory=list)  # of read_apart(), of repeated.py

    @property
    def parts(self) -> list[Layer]:
        """All that have a graph."""
        return [*self.layers, *([self.loss] if self.loss else [])]


def capture(
    module: WithLoss,
    batch: Batch,
    has_loss: bool = False,
    budget: float = BUDGET["cheap"],
    choice: str = "auto",
    gaps: bool = False,
    together: bool = True,
) -> Model:
    """`module` takes the fields of `batch` and returns its output; with `has_loss` (output, loss). `budget`:
    of keep.py. `choice`: of layers.py. `gaps`: of gaps.py. `together`: calls of a module are, where they
    can be, of repeated.py."""
    checked(choice, module)
    changes = examined(module, batch)
    exports = exported_at_sizes(module, batch, has_loss)
    try:
        return cut_and_fitted(module, batch, has_loss, exports, changes, budget, choice, gaps, together)
    except Unlike as error:
        raise exports.explained(error) from error


def cut_and_fitted(
    module: torch.nn.Module,
    batch: Batch,
    has_loss: bool,
    exports: Exports,
    changes: Changes,
    budget: float,
    choice: str,
    gaps: bool,
    together: bool,
) -> Model:
    exported, sizes, fake = exports.by_mode, exports.sizes, mode_of(module)
    refuse_shared_with_parameters(module, exported[True][RUN])
    require_same_terms(exported)
    changing = set().union(*(composite.changing for composite in exported[True].values()))
    for composite in (c for at in exported.values() for c in at.values()):
        composite.changing = changing  # evaluation reads what training changes
    moved = [put_together(composite) for at in exported.values() for composite in at.values() if together]
    blocks = blocks_of(module)

    def given_gradients(composite: Composite, pieces: list[Piece]) -> Any:
        return gradients_between(composite, pieces, exports.given(RUN))

    try:
        with fake or contextlib.nullcontext():
            cuts, gradients, joined = cut_alike(
                exported, RUN, given_gradients, choice, getattr(module, "PREFIX", ""), blocks
            )
    except CaptureError as error:
        raise exports.explained(error) from error
    names, values = [piece.name for piece in cuts[True][RUN]], values_between(cuts[True][RUN])
    orders = orders_between(cuts[True][RUN])
    to_loss = own_order(cuts[True][RUN][-2].outputs[0].meta["val"]) if has_loss else None
    for mode, at in cuts.items():
        for b, pieces in at.items():
            finish(pieces, exported[mode][b], orders, gradients if mode else None, gaps)
    units, reduction = loss_units(exported, cuts, batch, RUN) if has_loss else (None, "mean")
    if has_loss and units is None and reduction == "mean" and not fake:
        reduction = reduction_of(module, batch)
    for mode in (True, False):
        settle_constants(exported[mode], cuts[mode])
    layers: list[Layer] = []
    graphs: dict[Any, tuple[Json, Tensors]] = {}
    chosen: dict[Any, frozenset[int]] = {}
    for index, name in enumerate(names):
        tensors, about = describe(index, exported, cuts, sizes)
        if about not in graphs:
            with fake or contextlib.nullcontext():
                graph = capture_graph(index, exported, cuts, sizes, budget, chosen, tensors)
                graphs[about] = graph, tensors
        graph, of_first = graphs[about]
        tensors.with_constants_of(of_first)
        reads, makes = values[index]
        layers.append(Layer(name, reads, makes, tensors=tensors, **graph))
    loss = layers.pop() if has_loss else None
    draws = {b: draws_of(composite) for b, composite in exported[True].items()}
    return Model(
        layers,
        loss,
        list(exported[True][RUN].terms),
        units,
        reduction,
        draws,
        changes,
        joined,
        sizes,
        exports.fails,
        gradients.gaps,
        any(moved),
        to_loss,
        exported[True][RUN].columns,
        list(dict.fromkeys(line for mode in exported.values() for line in mode[RUN].unchecked)),
        read_apart(exported[True][RUN]),
    )


def require_same_terms(exported: Modes) -> None:
    """A run has a number of each term for every step and every validation."""
    training, evaluation = (set(exported[mode][RUN].terms) for mode in (True, False))
    if training != evaluation:
        only = "training" if training - evaluation else "evaluation"
        raise CaptureError(
            f"the loss has the term {min(training ^ evaluation)!r} in {only} alone: return the same terms in"
            " both, such as output.new_zeros(()) where there is none"
        )


def loss_units(exported: Modes, cuts: Cuts, batch: Batch, b: int) -> tuple[Json | None, str]:
    composite = exported[True][b]
    known = derived(composite, dependencies(composite))
    return units_of(
        cuts[True][b][-1],
        composite.inner,
        lambda fields: constant_values(composite, known, fields),
        batch.at(b),
    )


def capture_graph(
    index: int,
    exported: Modes,
    cuts: Cuts,
    sizes: Sequence[int],
    budget: float,
    chosen: dict[Any, frozenset[int]],
    tensors: Tensors,
) -> Json:
    """What equal layers share. `chosen` remembers what they make again."""
    joints: dict[int, dict[bool, Joint]] = {}
    without_memory = FakeTensorMode()
    for b in sizes:
        joints[b] = {}
        for mode in (True, False):
            piece = cuts[mode][b][index]
            read = [node.meta["val"] for node in piece.inputs]
            with without_memory:
                examples = [
                    torch.zeros([int(size) for size in like.shape], dtype=like.dtype) for like in read
                ]
            joints[b][mode] = trace(piece, exported[mode][b], examples, tensors, mode)
    for mode in (True, False):
        numbers_by_tensors({b: joints[b][mode].graph for b in sizes})
    # Only now are all names known.
    texts: dict[int, Json] = {}
    again: frozenset[int] = frozenset()
    # what is made again is chosen once, for few samples: a step's own time counts there
    for b in sorted(sizes, key=lambda b: b != RUN):
        training, evaluation = joints[b][True], evaluation_only(joints[b][False])
        training.buffers += [None] * (len(tensors.names["u"]) - len(training.buffers))
        training.gradients += [None] * (len(tensors.names["p"]) - len(training.gradients))
        nodes = list(training.graph.nodes)
        if b == RUN:
            again = made_again(training, nodes, budget, chosen)
        parts = split(training, frozenset(nodes[i] for i in again if i < len(nodes)))
        texts[b] = graph_json(training, parts, (evaluation, split(evaluation).forward), tensors)
    try:
        graph = fit({b: texts[b] for b in sizes})
    except ValueError as error:
        found = [
            first_difference({b: listed(joints[b][mode], tensors) for b in sizes}) for mode in (True, False)
        ]
        known = next((of_sizes(each) for each in found if each), None)
        raise known or Unlike(
            f"{place_of(cuts[True][RUN][index].nodes[-1])}: its graph differs between micro-batches of"
            f" {', '.join(map(str, sizes))} samples: {error}; {REMEDY}"
        ) from error
    graph["multiply_adds"] = multiply_adds(graph)
    kept, kept_all = kept_per_sample(joints, again)
    return {
        "graph": graph,
        "kept": kept,
        "kept_all": kept_all,
        "structure": structure(joints[max(sizes)].values()),
    }


def listed(joint: Joint, tensors: Tensors) -> Listed:
    names = {
        node: (
            tensors.names[role[0]][int(role[1:])].removeprefix("wrapped.")
            if role[0] in tensors.names
            else role
        )
        for node, role in joint.roles.items()
    }
    return Listed([n for n in joint.graph.nodes if n.op == "call_function"], names)


def made_again(
    joint: Joint, nodes: list[fx.Node], budget: float, chosen: dict[Any, frozenset[int]]
) -> frozenset[int]:
    """Places of the nodes."""
    key = str(
        [
            (
                n.op,
                str(n.target),
                str(n.args),
                str(n.kwargs),
                n.meta["val"].shape if isinstance(n.meta.get("val"), torch.Tensor) else None,
            )
            for n in nodes
        ]
    )
    if key not in chosen:
        found = choose(joint, budget)
        chosen[key] = frozenset(i for i, n in enumerate(nodes) if n in found)
    return chosen[key]


def kept_per_sample(joints: dict[int, dict[bool, Joint]], again: Collection[int]) -> list[int]:
    few, many = min(joints), max(joints)

    def bytes_at(b: int, places: Collection[int]) -> int:
        return kept_bytes(
            split(
                joints[b][True],
                frozenset(n for i, n in enumerate(joints[b][True].graph.nodes) if i in places),
            )
        )

    return [(bytes_at(many, places) - bytes_at(few, places)) // (many - few) for places in (again, ())]


def evaluation_only(joint: Joint) -> Joint:
    for results in (joint.grad_inputs, joint.gradients, joint.buffers):
        results[:] = [None] * len(results)
    return joint
