"""Numbers that follow from the number of samples and are no sums or multiples of it, which graph files have
not: a mean over all pairs of samples divides by its square, in its backward at least, and the backward of a
variance over samples has a quotient. Such a number becomes a tensor that is made of two numbers which files
have, and is rounded as the number is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .torch_private import OpOverload

ATEN = torch.ops.aten
BY_TENSOR = {
    ATEN.div.Scalar: ATEN.div.Tensor,
    ATEN.div.Tensor: ATEN.div.Tensor,
    ATEN.mul.Scalar: ATEN.mul.Tensor,
    ATEN.mul.Tensor: ATEN.mul.Tensor,
}


@dataclass(frozen=True)
class Made:
    """By an operator of two numbers."""

    operator: OpOverload
    numbers: tuple[int, int]


def square(numbers: Mapping[int, float]) -> dict[int, Made] | None:
    """By size b, of numbers that are c * b * b or c * b * (b - 1) at all of them."""
    for less in (0, 1):
        whole = {b: b * (b - less) for b in numbers}
        if any(n % whole[b] for b, n in numbers.items()):
            continue
        times = {int(n) // whole[b] for b, n in numbers.items()}
        if len(times) == 1:
            (c,) = times
            return {b: Made(ATEN.mul.Tensor, (c * b, b - less)) for b in numbers}
    return None


def quotient(numbers: Mapping[int, float]) -> dict[int, Made] | None:
    """The same of 2 by a sum or multiple of b."""
    below = {b: round(2 / n) for b, n in numbers.items()}
    if any(d == 0 or 2 / d != numbers[b] for b, d in below.items()):
        return None
    (few, of_few), (next_, of_next), *more = below.items()
    step, left = divmod(of_next - of_few, next_ - few)
    if left or step < 1 or any(d != of_few + step * (b - few) for b, d in more):
        return None
    return {b: Made(ATEN.div.Tensor, (2, d)) for b, d in below.items()}


def numbers_by_tensors(graphs: Mapping[int, fx.Graph]) -> None:
    """Of graphs of one model by their numbers of samples, which have the same operators."""
    if len(graphs) < 3:  # two numbers are on a line
        return
    for nodes in zip(*(list(graph.nodes) for graph in graphs.values())):
        if len({node.target for node in nodes}) > 1 or nodes[0].target not in BY_TENSOR:
            continue
        given: dict[int, Any] = {b: node.args[1] for b, node in zip(graphs, nodes)}
        if any(type(n) not in (int, float) or n == 0 for n in given.values()) or len({*given.values()}) == 1:
            continue
        if nodes[0].args[0].meta["val"].dtype not in (torch.float32, torch.float64):
            continue
        made = square(given) or quotient(given)
        for node, its in zip(nodes, made.values() if made else ()):
            by_tensor(node, its)


def by_tensor(node: fx.Node, made: Made) -> None:
    graph, given = node.graph, node.args[0]
    double, dtype = torch.empty((), dtype=torch.float64), given.meta["val"].dtype
    with graph.inserting_before(node):
        parts: Sequence[fx.Node] = [
            graph.call_function(ATEN.scalar_tensor.default, (n,), {"dtype": torch.float64})
            for n in made.numbers
        ]
        exact = graph.call_function(made.operator, tuple(parts))
        whole = graph.call_function(ATEN._to_copy.default, (exact,), {"dtype": dtype})
    for each in (*parts, exact, whole):
        each.meta = {**node.meta, "val": double if each is not whole else double.to(dtype)}
    node.target, node.args = BY_TENSOR[node.target], (given, whole)
