"""What a loss computes of one inner value alone: an auxiliary head's cross entropy, a router's balance.

It is computed where the value is made, so its gradient begins there, and numbers go to the loss in place of
logits. The loss adds them as it did, in its order, so no bit differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .composite import dependencies
from .cut import ancestors, derived, is_numbers
from .in_place import written_by
from .noise import is_random

if TYPE_CHECKING:
    from torch import fx

    from .composite import Composite


@dataclass
class Reads:
    """What a loss reads of the model, the model's output first."""

    values: list[fx.Node]
    seen: list[fx.Node | None]  # each as the loss has it; None where it reads nothing of it
    loss: set[fx.Node]  # its nodes


@dataclass
class Inner:
    nodes: set[fx.Node]  # what the loss computes of one value alone
    numbers: list[fx.Node]  # those of them that the rest of the loss reads


def inner_losses(composite: Composite, reads: Reads) -> dict[int, Inner]:
    """By place of the value, where all that the loss reads of it are numbers."""
    needs = dependencies(composite)
    given = derived(composite, needs)
    sources = {node: {i} for i, node in enumerate(reads.seen) if node is not None}
    values = set(sources)
    results = {composite.loss, *composite.terms.values()}
    for node in (n for n in composite.nodes if n in reads.loss and n not in values):
        others = {-1} if node in results or is_random(node) or written_by(node) else set()
        sources[node] = others.union(*(sources.get(n, set() if n in given else {-1}) for n in needs[node]))
    kind, within, found = composite.output.meta["val"].dtype, set(composite.nodes) - given, {}
    for i, value in list(enumerate(reads.seen))[1:]:
        if value is None or reads.values[i] not in within:
            continue
        nodes = {n for n, at in sources.items() if at == {i} and n not in values}
        outside = {n for n in sources if n not in nodes}
        numbers = [n for n in composite.nodes if n in nodes and outside.intersection(n.users)]
        wide = value.meta["val"].dim() > 0 and value.meta["val"][0].numel() > len(numbers) > 0
        if wide and not outside.intersection(value.users) and all(is_number(n, kind) for n in numbers):
            found[i] = Inner(nodes, numbers)
    return found


def is_number(node: fx.Node, kind: torch.dtype) -> bool:
    return is_numbers(node) and node.meta["val"].dim() == 0 and node.meta["val"].dtype == kind


def computed_where_made(composite: Composite, reads: Reads, inner: dict[int, Inner]) -> Reads:
    """What the loss reads then: numbers. `inner`: of inner_losses(), or some of it."""
    needs = dependencies(composite)
    given, trained = derived(composite, needs), ancestors(composite.loss, needs)
    for value, seen in zip(reads.values, reads.seen):
        if seen is not None and seen is not value:
            seen.replace_all_uses_with(value)
    values: list[fx.Node] = []
    for i, value in enumerate(reads.values):
        if i not in inner:
            values.append(value)
            continue
        wanted = set().union(*(ancestors(n, needs) & given for n in inner[i].nodes)) | inner[i].nodes
        numbers = [
            number if number in trained else detached(composite, number, inner[i].nodes)
            for number in inner[i].numbers
        ]
        wanted.update(numbers)
        behind = composite.nodes.index(value) + 1
        moved = [n for n in composite.nodes[behind:] if n in wanted]
        rest = [n for n in composite.nodes[behind:] if n not in wanted]
        composite.nodes[behind:] = moved + rest
        for node in moved:  # parts of the module that made the value
            node.meta = {**node.meta, "nn_module_stack": value.meta.get("nn_module_stack")}
        composite.inner |= wanted - given
        values += numbers
    return Reads(values, list(values), reads.loss - composite.inner)


def detached(composite: Composite, number: fx.Node, nodes: set[fx.Node]) -> fx.Node:
    """For the loss's terms: eager has no gradient for it."""
    with composite.graph.inserting_after(number):
        alone = composite.graph.call_function(torch.ops.aten.detach.default, (number,))
    alone.meta = dict(number.meta)
    composite.nodes.insert(composite.nodes.index(number) + 1, alone)
    number.replace_all_uses_with(alone, delete_user_cb=lambda user: user not in nodes and user is not alone)
    return alone
