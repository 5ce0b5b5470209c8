"""What layers read of constants: stored in the model folder where it is the same at every size of
micro-batch, made in each step elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .composite import dependencies
from .cut import add_constants, constant_only, derived
from .torch_private import pytree

if TYPE_CHECKING:
    from .composite import Composite
    from .cut import Piece


def digest(tensor: torch.Tensor) -> str:
    tensor = tensor.detach().contiguous().cpu()
    about = f"{tensor.dtype} {list(tensor.shape)}".encode()
    return hashlib.sha256(about + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def computed(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    def read(n: fx.Node) -> Any:
        return values[n]

    with torch.no_grad():
        return node.target(*fx.map_arg(node.args, read), **fx.map_arg(node.kwargs, read))


def constant_values(
    composite: Composite, constant: Collection[fx.Node], batch: dict[str, torch.Tensor] | None = None
) -> dict[fx.Node, Any]:
    """node -> its tensor, for nodes that depend on constants only, and on fields of `batch`."""
    values = {n: tensor for n, (_, _, tensor) in composite.tensors.items() if n in constant}
    values.update({n: batch[name] for n, name in composite.fields.items()} if batch else {})
    for node in composite.nodes:
        if node in constant:
            values[node] = computed(node, values)
    return values


class Definitions:
    """Numbers that constants of two exports share where the same operators make them of the same arguments,
    so that they have the same value."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.digests: dict[Any, Any] = {}

    def of(self, composite: Composite, constant: Collection[fx.Node]) -> dict[fx.Node, int]:
        """node -> its number."""
        needs, found = dependencies(composite), {}
        for node, (_, _, tensor) in composite.tensors.items():
            if node in constant:
                if id(tensor) not in self.digests:
                    self.digests[id(tensor)] = digest(tensor)
                found[node] = self.numbers.setdefault(self.digests[id(tensor)], len(self.numbers))
        for node in (n for n in composite.nodes if n in constant):
            given = fx.map_arg((node.args, node.kwargs), lambda n: Number(found[n]))
            # who wrote to what it reads is among what it needs
            key = repr((str(node.target), given, [found[n] for n in needs[node]]))
            found[node] = self.numbers.setdefault(key, len(self.numbers))
        return found


class Number(str):
    """Stands for a node among the arguments of another. No text that is an argument prints as it does."""

    def __new__(cls, number: int) -> Number:
        return super().__new__(cls, f"%{number}")

    def __repr__(self) -> str:
        return str(self)


MAY_TAKE = 2**26  # bytes, to compute a constant with many samples


class Large:
    """Constants of the export with most samples. A mask for each sample may be larger than the memory there,
    so only those are computed that may have the value that they have with few samples, are made in another
    way, and are small. `few`: that export; `known`: its values."""

    def __init__(
        self,
        composite: Composite,
        constant: set[fx.Node],
        few: Composite,
        constant_of_few: set[fx.Node],
        known: dict[fx.Node, Any],
    ) -> None:
        definitions = Definitions()
        self.composite, self.known, self.needs = composite, known, dependencies(composite)
        self.numbers, self.numbers_of_few = (
            definitions.of(composite, constant),
            definitions.of(few, constant_of_few),
        )

    def made_of(self, node: fx.Node) -> set[fx.Node]:
        wanted, todo = set(), [node]
        while todo:
            at = todo.pop()
            if at not in wanted:
                wanted.add(at)
                todo += self.needs.get(at, [])
        return wanted

    def values(self, wanted: set[fx.Node]) -> dict[fx.Node, Any]:
        """node -> its tensor."""
        values = {
            n: tensor
            for n, (_, _, tensor) in self.composite.tensors.items()
            if n in wanted and n.op != "call_function"
        }
        for at in (n for n in self.composite.nodes if n in wanted):
            values[at] = computed(at, values)
        return values

    def equals(self, node: fx.Node, other: torch.Tensor) -> bool:
        """Whether its value is known to be that of `other`, a constant of the export with few samples."""
        made, expected = node.meta["val"], self.known[other]
        if made.shape != expected.shape or made.dtype != expected.dtype:
            return False
        if self.numbers[node] == self.numbers_of_few[other]:
            return True
        wanted = self.made_of(node)
        takes = sum(
            t.numel() * t.element_size()
            for n in wanted
            for t in pytree.tree_leaves(n.meta.get("val"))
            if isinstance(t, torch.Tensor)
        )
        return takes <= MAY_TAKE and torch.equal(self.values(wanted)[node], expected)


def settle_constants(composites: dict[int, Composite], cuts: dict[int, list[Piece]]) -> None:
    """What layers read of constants, and is the same at every size, is stored instead of made in every
    step."""
    constants = {b: constant_only(c, dependencies(c)) for b, c in composites.items()}
    *few, most = sorted(composites)
    values = {b: constant_values(composites[b], constants[b]) for b in few}
    large = Large(composites[most], constants[most], composites[few[0]], constants[few[0]], values[few[0]])
    for index in range(len(next(iter(cuts.values())))):
        at = {b: pieces[index] for b, pieces in cuts.items()}
        read = {
            b: [
                n
                for node in piece.nodes
                for n in node.all_input_nodes
                if n in constants[b] and n.op == "call_function"
            ]
            for b, piece in at.items()
        }
        if len({len(r) for r in read.values()}) != 1:
            continue
        for k in range(len(next(iter(read.values())))):
            tensors = [values[b][read[b][k]] for b in few]
            if not all(
                isinstance(t, torch.Tensor)
                and t.dtype != torch.complex128
                and t.shape == tensors[0].shape
                and torch.equal(t, tensors[0])
                for t in tensors
            ):
                continue
            if large.equals(read[most][k], read[few[0]][k]):
                for b, composite in composites.items():
                    composite.tensors[read[b][k]] = (
                        "constant",
                        "constant/" + digest(tensors[0]),
                        tensors[0].contiguous(),
                    )
    for b, composite in composites.items():
        needs = dependencies(composite)
        unsettled = derived(composite, needs) - {n for n in composite.tensors if n.op == "call_function"}
        for piece in cuts[b]:
            add_constants(piece, unsettled, needs, composite)
    for composite in composites.values():
        settled = constant_only(composite, dependencies(composite))
        for node, (kind, _name, tensor) in list(composite.tensors.items()):
            if kind == "constant" or (kind == "buffer" and node in settled):
                composite.tensors[node] = ("constant", "constant/" + digest(tensor), tensor)
