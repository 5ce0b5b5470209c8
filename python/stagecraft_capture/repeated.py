"""Modules that a forward calls several times.

Calls that do not read what another of them makes are put one behind the other: a tower that reads two images
becomes layers that each do a part of both, and no layer holds what another holds, too. Calls that read each
other's results (ALBERT's block) stay where they are, in one layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .composite import dependencies
from .in_place import storage, written_by
from .nodes import modules_of

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Needs
    from .composite import Composite

HELD = ("parameter", "frozen")  # what a layer holds of its own


def calls_of(composite: Composite) -> list[list[fx.Node]]:
    """Of each parameter that a module reads several times the operators that read it, in order."""
    within, found = set(composite.nodes), []
    for placeholder, (kind, _, _) in composite.tensors.items():
        if kind in HELD:
            readers: dict[str, list[fx.Node]] = {}
            for node in placeholder.users:
                if node in within:
                    readers.setdefault((modules_of(node) or [""])[-1], []).append(node)
            found += [at for at in readers.values() if len(at) > 1]
    place = {node: i for i, node in enumerate(composite.nodes)}
    return [sorted(at, key=place.__getitem__) for at in found]


def pinned(composite: Composite) -> Needs:
    """What each operator must come behind: what it reads, and whatever used memory that some operator writes
    to."""
    needs = {node: list(before) for node, before in dependencies(composite).items()}
    written = {storage(w) for node in composite.nodes for w in written_by(node)}
    last: dict[int | None, fx.Node] = {}
    for node in composite.nodes:
        for memory in {storage(n) for n in (node, *node.all_input_nodes)} & written:
            if memory in last:
                needs[node].append(last[memory])
            last[memory] = node
    return needs


def far_apart(calls: list[fx.Node], place: dict[fx.Node, int], weighty: list[int]) -> bool:
    """Whether weights of others are read between them. `weighty`: places where weights are read."""
    own = {place[node] for node in calls}
    return any(min(own) < i < max(own) and i not in own for i in weighty)


def read_apart(composite: Composite) -> list[str]:
    """Names of parameters that a module reads again behind weights of others, so that all between is one
    layer."""
    place = {node: i for i, node in enumerate(composite.nodes)}
    held = {n: name for n, (kind, name, _) in composite.tensors.items() if kind in HELD}
    weighty = [i for node, i in place.items() if any(n in held for n in node.all_input_nodes)]
    apart = [calls for calls in calls_of(composite) if far_apart(calls, place, weighty)]
    shared = (set.intersection(*(set(node.all_input_nodes) for node in calls)) for calls in apart)
    return sorted({held[n] for nodes in shared for n in nodes if n in held})


def put_together(composite: Composite) -> bool:
    """Moves calls beside each other, in the order that they have. Whether any moved."""
    place = {node: i for i, node in enumerate(composite.nodes)}
    held = {n for n, (kind, _, _) in composite.tensors.items() if kind in HELD}
    weighty = [i for node, i in place.items() if held.intersection(node.all_input_nodes)]
    groups = [calls for calls in calls_of(composite) if far_apart(calls, place, weighty)]
    if not groups:
        return False
    needs = pinned(composite)
    reads = {node: node.all_input_nodes for node in composite.nodes}
    out: list[fx.Node] = []
    done: set[fx.Node] = set()
    counters = [
        node for node in composite.nodes if written_by(node) and written_by(node) == node.all_input_nodes
    ]
    group_of = {node: calls for calls in groups for node in calls}

    def before(node: fx.Node, edges: Needs = needs) -> set[fx.Node]:
        """What is not done yet and must be, before the operator."""
        found: set[fx.Node] = set()
        todo = list(edges[node])
        while todo:
            at = todo.pop()
            if at in edges and at not in done and at not in found:
                found.add(at)
                todo += edges[at]
        return found

    def do(nodes: Iterable[fx.Node]) -> None:
        nodes = [node for node in nodes if node not in done]
        out.extend(sorted(nodes, key=place.__getitem__))
        done.update(nodes)
        for node in counters:  # of batch norm, whose calls have moved
            if node not in done and all(n in done for n in needs[node] if n in needs):
                out.append(node)
                done.add(node)

    for node in composite.nodes:
        if node in done:
            continue
        others = [
            other
            for other in group_of.get(node, ())
            if other is not node and other not in done and node not in before(other, reads)
        ]
        needed = set().union(*map(before, others))
        behind = {n for n in needed if node in before(n)}  # the next call's turn with what both write to
        do(before(node) | {n for n in needed if n not in behind and n not in (node, *others)})
        do([node])
        do({*behind, *others})
    moved = out != composite.nodes
    composite.nodes = out
    return moved


def calls_at(composite: Composite, order: list[fx.Node]) -> list[int]:
    """How many calls of one module go side by side, at each of the nodes: as many as read the last weight
    before it."""
    held = {n for n, (kind, _, _) in composite.tensors.items() if kind in HELD}
    count = {node: len(calls) for calls in calls_of(composite) for node in calls}
    found, now = [], 1
    for node in order:
        if held.intersection(node.all_input_nodes):
            now = count.get(node, 1)
        found.append(now)
    return found
