"""Which pieces are equal, before anything is traced: of eighty equal blocks one is differentiated.

Tracing sees a piece's operators with their arguments, and of tensors their types and strides alone. Pieces
that agree in these, at every micro-batch size, in training and in evaluation, have one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from .joint import Tensors

if TYPE_CHECKING:
    import torch

    from .aliases import Cuts, Modes
    from .composite import Composite
    from .cut import Piece


def type_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        str(tensor.dtype),
        tuple(int(size) for size in tensor.shape),
        tuple(int(step) for step in tensor.stride()),
    )


def description(piece: Piece, composite: Composite, tensors: Tensors) -> tuple[Any, ...]:
    """What tracing sees of the piece. `tensors` learns the names of its parameters, buffers and constants."""
    nodes = piece.constant_nodes + piece.nodes
    used = {n for node in nodes for n in node.all_input_nodes}
    given, known = [], {node: f"in{i}" for i, node in enumerate(piece.inputs)}
    for node in (n for n in composite.tensors if n in used):
        kind, name, tensor = composite.tensors[node]
        known[node] = tensors.role(kind, name, tensor)
        given.append((known[node], type_of(tensor)))
    for node, name in composite.fields.items():
        if node in used and node not in piece.inputs:
            known[node] = tensors.role("field", name, None)
            given.append((known[node], type_of(node.meta["val"])))

    def value(n: fx.Node) -> str:
        return fx.Node.__repr__(n) if n not in known else known[n]

    lines = []
    for i, node in enumerate(nodes):
        lines.append(
            (str(node.target), repr(fx.map_arg((node.args, node.kwargs), lambda n: Named(value(n)))))
        )
        known[node] = f"%{i}"
    read = tuple((type_of(node.meta["val"]), node is composite.input) for node in piece.inputs)
    return (
        read,
        tuple(piece.differentiable or ()),
        tuple(piece.silent or ()),
        tuple(given),
        tuple(lines),
        tuple(known[node] for node in piece.outputs),
    )


class Named(str):
    """Prints without quotes, so that no string argument is taken for a value."""

    def __repr__(self) -> str:
        return str(self)


def describe(index: int, exported: Modes, cuts: Cuts, sizes: Sequence[int]) -> tuple[Tensors, Any]:
    """The layer's tensors, and what tells it from others, over all sizes and modes."""
    tensors = Tensors()
    about = tuple(
        description(cuts[mode][b][index], exported[mode][b], tensors) for b in sizes for mode in (True, False)
    )
    return tensors, about
