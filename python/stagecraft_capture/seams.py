"""Which cuts all graphs of a model share: those of training and of evaluation, at every size of micro-batch.

A graph is cut by itself (cut.py). Then a cut stays where every graph has it, with the same values going on
there, where no buffer that the training changes is used on both sides of it in any of the graphs (each side
would hold a copy, and one of them would stay as it was), and where a gradient comes back over it, unless all
before it is frozen. The others are forbidden, and all graphs are cut again, so that the pieces on both sides
are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .cut import HELD, cut, is_numbers, read_up_to
from .in_place import storage

if TYPE_CHECKING:
    import torch
    from torch import fx

    from .aliases import Cuts, Modes
    from .composite import Composite
    from .cut import Piece


MODEL_INPUT = (-1, 0)  # as a value: the layer that makes it, and which of those it makes


def values_between(pieces: list[Piece]) -> list[Any]:
    """Of each piece the values that it reads and makes, each named after the piece that makes it first."""
    known, found = {pieces[0].inputs[0]: MODEL_INPUT}, []
    for i, piece in enumerate(pieces):
        reads = [known[node] for node in piece.inputs]
        made = [node for node in piece.outputs if node not in piece.inputs]
        known.update((node, (i, k)) for k, node in enumerate(made))
        found.append((reads, [known[node] for node in piece.outputs]))
    return found


def held_by(composite: Composite) -> set[str]:
    """Names of the parameters that its nodes read."""
    return {
        composite.tensors[n][1]
        for node in composite.nodes
        for n in node.all_input_nodes
        if composite.tensors.get(n, ("",))[0] in HELD
    }


def unshared(keys: list[Any]) -> set[Any]:
    """Those that not all graphs have. `keys`: of each graph."""
    counts = [Counter(of_graph) for of_graph in keys]
    return {key for count in counts for key in count if any(other[key] != count[key] for other in counts)}


def of_other_values(all_pieces: list[list[Piece]], keys: list[Any]) -> set[Any]:
    """Seams where not the same values go on in all graphs."""
    found, between = set(), [values_between(pieces) for pieces in all_pieces]
    for i, key in enumerate(keys):
        if any(
            values[i][1] != between[0][i][1] or values[i + 1][0] != between[0][i + 1][0] for values in between
        ):
            found.add(key)
    return found


def over_buffers(all_pieces: list[list[Piece]], composites: list[Composite], keys: list[Any]) -> set[Any]:
    """Seams with uses of a buffer that the forward changes on both sides, in the same graph or in two."""
    users: dict[Any, set[int]] = {}
    for pieces, composite in zip(all_pieces, composites):
        memory = {
            storage(n): name for n, (_, name, _) in composite.tensors.items() if name in composite.changing
        }
        for i, piece in enumerate(pieces):
            for name in {
                memory[storage(n)]
                for node in piece.nodes
                for n in node.all_input_nodes
                if n.op != "get_attr" and storage(n) in memory
            }:
                users.setdefault(name, set()).add(i)
    return {key for i, key in enumerate(keys) if any(min(at) <= i < max(at) for at in users.values())}


def without_samples(all_pieces: list[list[Piece]], keys: list[Any]) -> set[Any]:
    """Seams over which no numbers of samples go: positions, or a weight made of others (parametrizations).
    A layer of these would not know how many samples there are."""

    def shapes(pieces: list[Piece], i: int) -> list[torch.Size | None]:
        return [node.meta["val"].shape if is_numbers(node) else None for node in pieces[i].outputs]

    found = set()
    for i, key in enumerate(keys):
        at = [shapes(pieces, i) for pieces in all_pieces]
        if all(len(set(of_value)) == 1 for of_value in zip(*at)):
            found.add(key)
    return found


def of_other_types(
    all_pieces: list[list[Piece]], graphs: list[tuple[bool, int]], keys: list[Any]
) -> set[Any]:
    """Seams where evaluation has other sizes or types than training, as behind tokens that training drops."""

    def types(pieces: list[Piece], i: int) -> list[Any]:
        return [(node.meta["val"].shape, node.meta["val"].dtype) for node in pieces[i].outputs]

    by_graph = dict(zip(graphs, all_pieces))
    return {
        key
        for i, key in enumerate(keys)
        if any(types(pieces, i) != types(by_graph[True, b], i) for (_, b), pieces in by_graph.items())
    }


def trains(piece: Piece, composite: Composite) -> bool:
    """Whether it reads a weight that is not frozen."""
    return any(
        composite.tensors.get(n, ("",))[0] == "parameter"
        for node in piece.nodes
        for n in node.all_input_nodes
    )


def without_gradient(
    pieces: list[Piece], composite: Composite, keys: list[Any], reached: set[fx.Node]
) -> set[Any]:
    """Seams that no gradient comes back over, though what is before them trains. `reached`: nodes that have
    one in eager mode."""
    found, trained = set(), False
    for key, piece in zip(keys, pieces):
        trained = trained or trains(piece, composite)
        if trained and not any(node in reached for node in piece.outputs):
            found.add(key)
    return found


def cut_alike(
    exported: Modes,
    largest: int,
    gradients_of: Callable[..., Any],
    choice: str,
    prefix: str,
    blocks: frozenset[str],
) -> tuple[Cuts, Any, list[str]]:
    """The pieces of all graphs, by mode and size; what `gradients_of`, of layouts.py, says of the largest in
    training; and the names of the layers that are part of the first, because no gradient comes back to what
    lies in front of them. `choice`, `prefix` and `blocks`: of cut()."""
    graphs = [(mode, b) for mode, at in exported.items() for b in at]
    composites = [exported[mode][b] for mode, b in graphs]
    common = frozenset.intersection(*(frozenset(held_by(composite)) for composite in composites))
    forbidden: set[Any] = set()
    joined: list[Any] = []
    while True:
        cuts = {
            mode: {
                b: cut(composite, choice, prefix, blocks, forbidden, common) for b, composite in at.items()
            }
            for mode, at in exported.items()
        }
        has_loss = composites[0].loss is not None
        all_pieces = [cuts[mode][b][:-1] if has_loss else cuts[mode][b] for mode, b in graphs]
        # a seam's name in all graphs
        keys = [
            read_up_to(composite, [piece.nodes for piece in pieces[:-1]], common)
            for pieces, composite in zip(all_pieces, composites)
        ]
        wrong = unshared(keys) or of_other_values(all_pieces, keys[0]) | over_buffers(
            all_pieces, composites, keys[0]
        )
        if not wrong:
            gradients = gradients_of(exported[True][largest], cuts[True][largest])
            pieces = all_pieces[graphs.index((True, largest))]
            wrong = without_samples(all_pieces, keys[0]) | of_other_types(all_pieces, graphs, keys[0])
            if wrong:
                forbidden |= wrong
                continue
            wrong = without_gradient(pieces, exported[True][largest], keys[0], gradients.reached)
            if not wrong:
                return cuts, gradients, joined
            joined = [piece.name for piece, key in zip(pieces[1:], keys[0]) if key in wrong]
        forbidden |= wrong
