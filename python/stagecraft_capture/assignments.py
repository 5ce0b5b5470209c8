"""Buffers that a forward replaces by new tensors (`self.m = ...`), as writes to the buffers that they were.

torch.export follows such assignments to the buffers of the root module alone. Here the module returns the new
tensors besides its output, and each becomes a copy into the buffer, behind the last reader of the old one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError
from .in_place import storage, written_by
from .torch_private import TensorBase

if TYPE_CHECKING:
    from torch import fx


ATEN = torch.ops.aten


@contextlib.contextmanager
def data_as_detached() -> Iterator[None]:
    """`x.data` is x.detach(): an operator, where torch.export would see a tensor from nowhere."""
    plain = TensorBase.data
    torch.Tensor.data = property(lambda tensor: tensor.detach(), plain.__set__, plain.__delete__)
    try:
        yield
    finally:
        del torch.Tensor.data


@contextlib.contextmanager
def returned(module: torch.nn.Module, names: list[str]) -> Iterator[None]:
    """Within, the module returns a pair: its output, and what it assigned to buffers, whose names go into
    `names`. Assignments are undone."""
    paths, before = {}, {}

    def remember(*_: object) -> None:
        paths.update(
            {part: path for path, part in reversed(list(module.named_modules(remove_duplicate=False)))}
        )
        before.update({part: (dict(vars(part)), dict(part._buffers)) for part in paths})

    def hand_on(_: object, given: Any, output: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        made = {}
        for part, (attributes, buffers) in before.items():
            for name, old in buffers.items():
                new = part._buffers.get(name)
                if new is old:
                    continue
                if not isinstance(new, torch.Tensor) or new.shape != old.shape or new.dtype != old.dtype:
                    path = f"{paths[part]}.".removeprefix("wrapped.").rstrip(".")
                    raise CaptureError(
                        f"{f'module {path!r}' if path else 'the model itself'}: the forward gives its buffer"
                        f" {name!r} another shape or type; a buffer keeps both: write to it with copy_()"
                    )
                made[f"{paths[part]}.{name}".removeprefix(".")] = new
            part._buffers.clear()
            part._buffers.update(buffers)
            vars(part).clear()
            vars(part).update(attributes)
        names[:] = made
        return output, tuple(made.values())

    hooks = [module.register_forward_pre_hook(remember, prepend=True), module.register_forward_hook(hand_on)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def written_back(graph: fx.Graph, names: list[str], placeholder_of: Callable[[str], fx.Node]) -> None:
    """Takes the assigned tensors off the graph's results. `placeholder_of`: of a buffer's name."""
    results = next(n for n in graph.nodes if n.op == "output")
    flat = list(results.args[0])
    count = len(flat) - len(names)
    results.args = (tuple(flat[:count]),)
    buffers = {name: placeholder_of(name) for name in names}
    without_copies_of_export(graph, set(buffers.values()))
    values = dict(zip(names, flat[count:]))
    for buffer in buffers.values():
        read_as_it_was(graph, buffer)
    position = {n: i for i, n in enumerate(graph.nodes)}
    operators, first = (
        [n for n in graph.nodes if n.op == "call_function"],
        [n for n in graph.nodes if n.op == "placeholder"][-1],
    )

    def touches(n: fx.Node, memory: int | None) -> bool:
        return any(storage(r) == memory for r in n.all_input_nodes)

    def writes(n: fx.Node, memory: int | None) -> bool:
        return any(storage(w) == memory for w in written_by(n))

    def behind(value: fx.Node, own: int | None) -> fx.Node:
        return max(
            [first, value, *(n for n in operators if touches(n, own) or writes(n, storage(value)))],
            key=position.__getitem__,
        )

    anchors = {name: behind(value, storage(buffers[name])) for name, value in values.items()}
    of_others = {storage(n) for n in graph.nodes if n.op == "placeholder"}
    for group in exchanged(names, buffers, values, of_others):  # all are read before the first is written
        last = max((anchors[name] for name in group), key=position.__getitem__)
        for name in (name for name in group if storage(values[name]) in of_others):
            with graph.inserting_after(last):
                last = graph.call_function(ATEN.clone.default, (values[name],))
            last.meta = {**values[name].meta, "val": torch.empty_like(values[name].meta["val"])}
            values[name] = last
        anchors.update(dict.fromkeys(group, last))
    for name in names:
        with graph.inserting_after(anchors[name]):
            detached = graph.call_function(ATEN.detach.default, (values[name],))
        with graph.inserting_after(detached):
            copy = graph.call_function(ATEN.copy_.default, (buffers[name], detached))
        detached.meta, copy.meta = (
            {**values[name].meta},
            {**values[name].meta, "val": buffers[name].meta["val"]},
        )


def exchanged(
    names: list[str], buffers: dict[str, fx.Node], values: dict[str, fx.Node], of_others: set[int | None]
) -> list[list[str]]:
    """Sets of buffers of which some get what others are, as in `self.a, self.b = self.b, self.a`.
    `of_others`: memory of all placeholders."""
    groups: list[set[str]] = []
    for name in (name for name in names if storage(values[name]) in of_others):
        group = {name, *(other for other in names if storage(buffers[other]) == storage(values[name]))}
        joined = [g for g in groups if g & group]
        groups = [g for g in groups if g not in joined] + [group.union(*joined)]
    return [[name for name in names if name in group] for group in groups]


def read_as_it_was(graph: fx.Graph, buffer: fx.Node) -> None:
    """Autograd may keep the old tensor for the backward: what reads it reads a copy."""
    first = next(
        (
            n
            for n in graph.nodes
            if n.op == "call_function" and any(storage(r) == storage(buffer) for r in n.all_input_nodes)
        ),
        None,
    )
    if first is None:
        return
    with graph.inserting_before(first):
        old = graph.call_function(ATEN.clone.default, (buffer,))
    old.meta = {**first.meta, "val": buffer.meta["val"]}
    buffer.replace_all_uses_with(old, delete_user_cb=lambda user: user is not old)


def without_copies_of_export(graph: fx.Graph, buffers: set[fx.Node]) -> None:
    """Those that torch.export itself puts at the end, for the root's buffers."""
    for node in reversed(list(graph.nodes)):
        if node.op == "output":
            continue
        if node.target != ATEN.copy_.default or node.args[0] not in buffers or node.users:
            return
        graph.erase_node(node)
