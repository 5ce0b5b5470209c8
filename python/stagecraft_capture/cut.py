"""Where a model can be cut into layers, and what goes on from one to the next.

One tensor goes on, or several. A value that is read in one layer and again behind it goes through that layer:
it is one of its outputs, so that each value has one gradient at every cut, and gradients are added in the
order of eager, wherever the cuts are.

Nodes that depend on constants and on fields of the batch only (masks, positions, rotary tables) travel
nowhere: each layer that reads one makes it, or has it as a constant. So they do not count as crossing a cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .composite import dependencies
from .errors import CaptureError, place_of
from .in_place import storage, written_by
from .layers import chosen
from .layouts import Gradients, dense_between, dense_output, gradients_in_order
from .nodes import modules_of
from .noise import is_random
from .repeated import HELD, calls_at, calls_of

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Needs
    from .composite import Composite


class WeightInTheLoss(CaptureError):
    """A loss that reads one."""


@dataclass
class Piece:
    """One layer's part of a composite graph."""

    name: str
    nodes: list[fx.Node]  # what it computes, in order
    constant_nodes: list[fx.Node]  # what it makes of constants alone
    inputs: list[fx.Node]  # the nodes it reads of other pieces
    # the nodes that go on behind it: those it makes, then those of its inputs that are read again
    outputs: list[fx.Node]
    differentiable: list[bool] | None = None  # of each input, whether eager has a gradient for it
    silent: list[bool] | None = None  # of each output, whether eager has none for what it goes through to
    # of inputs that arrive in another order of dimensions: the node that is the value again, the order
    views: dict[fx.Node, Any] = field(default_factory=dict)


def module_of(node: fx.Node) -> str:
    """Path of the innermost module that made the node."""
    return (modules_of(node) or [""])[-1]


def derived(composite: Composite, needs: Needs) -> set[fx.Node]:
    """Nodes that follow from constants and fields of the batch alone. They travel nowhere: who reads one
    makes it."""
    return constant_only(composite, needs, composite.fields)


def constant_only(composite: Composite, needs: Needs, also: Iterable[fx.Node] = ()) -> set[fx.Node]:
    """Nodes that no input, parameter or buffer reaches, but those of `also`. What others write to (zeros that
    steps are put into) is none."""
    filled: set[int | None] = set()
    while True:
        constant = made_of_constants(composite, needs, also, filled)
        held = {storage(n) for n in constant if n.op == "call_function"}
        more = {storage(w) for n in composite.nodes if n not in constant for w in written_by(n)} & held
        if not more:
            return constant
        filled |= more


def made_of_constants(
    composite: Composite, needs: Needs, also: Iterable[fx.Node], filled: Collection[int | None]
) -> set[fx.Node]:
    """`filled`: memory that is not constant."""
    constant = {*also} | {
        n
        for n, (kind, name, _) in composite.tensors.items()
        if kind == "constant" or (kind == "buffer" and name not in composite.changing)
    }
    overwritten = {storage(w) for n in composite.nodes for w in written_by(n)}
    random = {storage(n) for n in composite.nodes if is_random(n)}
    outside = {storage(n) for n in composite.graph.nodes if n.op != "call_function"}
    for node in composite.nodes:
        writes = any(storage(w) in random | outside for w in written_by(node))
        changes = (
            writes or is_random(node) or (not node.all_input_nodes and storage(node) in overwritten & random)
        )
        if not changes and storage(node) not in filled and all(n in constant for n in needs[node]):
            constant.add(node)
    return constant


def is_numbers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def may_cross(node: fx.Node) -> bool:
    """Whether a value may go from one layer to the next: complex numbers stay within one."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.is_complex()


def uses_of_changing(composite: Composite, position: dict[fx.Node, int]) -> list[tuple[int, int]]:
    """Of each buffer that the forward changes, the first and the last time that it is used. Its reads and
    writes are one layer's."""
    found = []
    for placeholder, (_, name, _) in composite.tensors.items():
        at = [
            i
            for n, i in position.items()
            if name in composite.changing
            and any(storage(r) == storage(placeholder) for r in n.all_input_nodes)
        ]
        found += [(min(at), max(at))] if at else []
    return found


def writes_to_parts(composite: Composite, position: dict[fx.Node, int]) -> list[tuple[int, int]]:
    """Of each tensor that is written to in place, its making and the last write: one layer's."""
    made: dict[int | None, int] = {}
    for node, i in position.items():
        made.setdefault(storage(node), i)
    last = {storage(w): i for node, i in position.items() for w in written_by(node)}
    return [(made[at], i) for at, i in last.items() if at in made]


def calls_of_repeated(composite: Composite, position: dict[fx.Node, int]) -> list[tuple[int, int]]:
    """Of each module that reads the same parameter several times (ALBERT calls one block for all), the first
    and the last time."""
    found = []
    for calls in calls_of(composite):
        at = [position[node] for node in calls if node in position]
        found += [(min(at), max(at))] if len(at) > 1 else []
    return found


def ancestors(node: fx.Node, needs: Needs) -> set[fx.Node]:
    found, todo = set(), [node]
    while todo:
        at = todo.pop()
        if at not in found:
            found.add(at)
            todo += needs.get(at, [])
    return found


def behind_output(
    composite: Composite, needs: Needs, order: list[fx.Node]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """What the loss and its terms compute that the output does not need, and the values that they read of the
    model. `order`: of take_loss()."""
    terms = set(composite.terms.values())
    wanted = ancestors(composite.loss, needs).union(*(ancestors(term, needs) for term in terms))
    # and what the model writes to it, an output made by assignments to its parts
    writers = [
        n
        for n in composite.nodes
        if modules_of(n) and any(storage(w) == storage(composite.output) for w in written_by(n))
    ]
    of_output = ancestors(composite.output, needs).union(*(ancestors(w, needs) for w in writers))
    within = set(order)
    nodes = [n for n in composite.nodes if n in terms or (n in wanted & within and n not in of_output)]
    read = {n for node in nodes for n in needs[node] if n in within and n not in (*nodes, *writers)}
    return nodes, read


def take_loss(composite: Composite, needs: Needs, order: list[fx.Node]) -> tuple[list[fx.Node], fx.Node]:
    """The nodes of the loss and of its terms, and the value that they read of the model. `order`: the nodes
    that do not follow from constants and fields alone; a term may."""
    nodes, read = behind_output(composite, needs, order)
    terms = composite.terms
    if len(read) != 1:
        places = "; ".join(place_of(n) for n in sorted(read, key=order.index)[:3])
        raise CaptureError(
            f"the loss{' with its terms' if terms else ''} reads {len(read)} values of the model ({places});"
            " it may read one, the output: return from the module's forward what it reads"
        )
    for node in nodes:
        held = [composite.tensors[n] for n in node.all_input_nodes if n in composite.tensors]
        for name in (name for kind, name, _ in held if kind == "parameter"):
            raise WeightInTheLoss(f"{place_of(node)}: {weight_in_the_loss(name)}")
        if changing := sorted({name for _, name, _ in held} & composite.changing):
            raise CaptureError(
                f"{place_of(node)}: the loss reads {changing[0].removeprefix('wrapped.')!r}, which the"
                " forward changes; a loss has no state: make what reads it the model's"
            )
    return nodes, read.pop()


def weight_in_the_loss(name: str) -> str:
    """Why a loss may not read it, and what to do."""
    own = name.removeprefix("wrapped.")
    if own == name:
        return f"the loss has parameters ({name}); make them the model's"
    return (
        f"the loss reads the weight {own!r}, and a loss has no weights: compute that number in the module's"
        " forward and return it beside the output, as in return y, weight.abs().sum(); of a loss that the"
        " module makes itself return the losses of all samples, and give their mean as the loss; of a decay"
        " weight_decay= of the optimizer is the usual form"
    )


def pieces_of(groups: list[list[fx.Node]], composite: Composite, output: fx.Node) -> list[Piece]:
    """Pieces from lists of nodes. `output`: what the last of them makes."""
    maker = {n: i for i, nodes in enumerate(groups) for n in nodes}
    last_reader = {}
    for i, nodes in enumerate(groups):
        for read in (n for node in nodes for n in node.all_input_nodes if n in maker):
            last_reader[read] = i
    last_reader[output] = len(groups)  # also where the model reads it itself, or writes to it
    pieces, first = [], True
    for i, nodes in enumerate(groups):
        read = dict.fromkeys(n for node in nodes for n in node.all_input_nodes)
        before = [n for n in maker if maker[n] < i]
        inputs = [composite.input] if first else [n for n in before if n in read]
        # a graph knows its micro-batch's size from an input
        inputs = inputs or [n for n in before if last_reader.get(n, i) > i][:1]
        made = [n for n in nodes if last_reader.get(n, i) > i]
        pieces.append(Piece("", nodes, [], inputs, made + [n for n in inputs if last_reader.get(n, i) > i]))
        first = False
    return pieces


def read_up_to(
    composite: Composite, groups: list[list[fx.Node]], common: frozenset[str]
) -> list[frozenset[str]]:
    """Of each group of nodes which parameters of `common` are read in it and in those before it."""
    found: list[frozenset[str]] = []
    read: frozenset[str] = frozenset()
    for nodes in groups:
        names = {
            composite.tensors[n][1] for node in nodes for n in node.all_input_nodes if n in composite.tensors
        } & common
        if not names <= read:
            read |= names
        found.append(read)
    return found


def cut(
    composite: Composite,
    choice: str = "auto",
    prefix: str = "",
    blocks: frozenset[str] = frozenset(),
    forbidden: Collection[Any] = frozenset(),
    common: frozenset[str] = frozenset(),
) -> list[Piece]:
    """The model as a list of pieces, to be finished; the last is its loss, where it has one. `choice` and
    `blocks`: of layers.py; `forbidden` and `common`: of seams.py."""
    needs = dependencies(composite)
    given = derived(composite, needs)
    order = [n for n in composite.nodes if n not in given]
    output, loss = composite.output, None
    if composite.loss is not None:
        nodes, output = take_loss(composite, needs, order)
        loss = Piece("loss", nodes, [], [output], [composite.loss, *composite.terms.values()])
        order = [n for n in order if n not in set(nodes)]
    position = {n: i for i, n in enumerate(order)}
    last_use = {}
    for i, node in enumerate(order):
        for read in node.all_input_nodes:
            if read in position:
                last_use[read] = i
    last_use[output] = len(order)

    def crossing(i: int) -> list[fx.Node]:
        """Values that are made up to order[i] and read after it."""
        return [n for n, last in last_use.items() if last > i and position[n] <= i]

    candidates = []
    for i in range(len(order) - 1):
        live = crossing(i)
        if any(map(is_numbers, live)) and all(may_cross(n) for n in live):
            candidates.append((i, live))
    whole = uses_of_changing(composite, position) + writes_to_parts(composite, position)
    if choice == "auto" or choice.startswith("narrow:"):
        whole += calls_of_repeated(composite, position)
    candidates = [(i, live) for i, live in candidates if not any(first <= i < last for first, last in whole)]
    if forbidden:
        seams = read_up_to(composite, [[node] for node in order], common)
        candidates = [(i, live) for i, live in candidates if seams[i] not in forbidden]
    width = calls_at(composite, order)
    ends = [i for i, _ in chosen(candidates, order, choice, modules_of, prefix, blocks, width)]

    def holds(nodes: list[fx.Node]) -> bool:
        return any(composite.tensors.get(n, ("",))[0] in HELD for node in nodes for n in node.all_input_nodes)

    groups: list[list[fx.Node]] = []
    begin = 0
    for end in [*ends, len(order) - 1]:
        nodes = order[begin : end + 1]
        if groups and not holds(nodes):  # an activation or a pooling belongs to the layer before it
            groups[-1] += nodes
        else:
            groups.append(nodes)
        begin = end + 1
    if len(groups) > 1 and not holds(groups[0]):
        groups[:2] = [groups[0] + groups[1]]  # a flatten before the first layer
    pieces = pieces_of(groups, composite, output)
    name_pieces(pieces, composite)
    return pieces + ([loss] if loss is not None else [])


def finish(
    pieces: list[Piece],
    composite: Composite,
    orders: list[list[int] | None],
    gradients: Gradients | None = None,
    gaps: bool = False,
) -> None:
    """What goes on between the pieces becomes dense, and each makes its own of what follows from the data.
    `orders` and `gradients`: of layouts.py, the latter in training; `gaps`: of gaps.py, as in eager mode."""
    if gradients is not None:
        gradients_in_order(composite, pieces, gradients, gaps)
    needs = dependencies(composite)
    given = derived(composite, needs)
    dense_between(pieces, composite, needs, gaps, orders)
    dense_output(pieces[-1], composite, needs)
    for piece in pieces:
        add_constants(piece, given, needs, composite)


def add_constants(piece: Piece, constant: Collection[fx.Node], needs: Needs, composite: Composite) -> None:
    """What the piece reads of constants, with all that it is made of, in the graph's order."""
    wanted, todo = set(), [n for node in piece.nodes for n in needs[node]]
    while todo:
        node = todo.pop()
        if node in constant and node.op == "call_function" and node not in wanted:
            wanted.add(node)
            todo += needs[node]
    piece.constant_nodes = [n for n in composite.nodes if n in wanted]


def common_path(paths: Iterable[str]) -> str:
    """The module that all of them lie in."""
    common = []
    for parts in zip(*(path.split(".") for path in paths)):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def name_pieces(pieces: list[Piece], composite: Composite) -> None:
    """After the module that holds all parameters of a piece; where two pieces share one, after the module of
    most of the numbers. Of a weight that several pieces read it is the module that reads it there."""
    taken = set()
    held = [
        {
            n: node
            for node in piece.nodes
            for n in node.all_input_nodes
            if composite.tensors.get(n, ("",))[0] in HELD
        }
        for piece in pieces
    ]
    pieces_of = Counter(n for read in held for n in read)
    for piece, read in zip(pieces, held):
        sizes: dict[str, int] = {}
        for node, reader in read.items():
            _, name, tensor = composite.tensors[node]
            owner = name.rpartition(".")[0] if pieces_of[node] == 1 else module_of(reader)
            sizes[owner] = sizes.get(owner, 0) + tensor.numel()
        if not sizes:
            sizes = {path: 1 for path in map(module_of, piece.nodes) if path}
        largest = max(sorted(sizes), key=sizes.__getitem__, default="layer")
        name = common_path(list(sizes)) or largest
        if name in taken:
            name = largest.rpartition(".")[0] or largest
        base, k = name, 2
        while name in taken:
            name, k = f"{base}#{k}", k + 1
        taken.add(name)
        piece.name = name
