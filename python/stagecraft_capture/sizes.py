"""The micro-batch sizes that a model is exported at, and what its exports say of each other.

Few samples tell how sizes and numbers follow from the number of samples, and many whether that goes on: a
branch of Python on the number (`if len(x) > 16`, `min(len(x), 8)`) shows there. Exports compute nothing, so
many samples need neither memory nor time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .composite import copied, export, same_graph
from .differences import first_difference, of_forwards, of_sizes
from .errors import CaptureError
from .export_errors import place_of_error, said
from .joined import join_what_the_loss_reads
from .no_weights import mode_of
from .nodes import name_of
from .torch_private import pytree

if TYPE_CHECKING:
    from torch import fx

    from .batch import Batch
    from .composite import Composite


REPEAT = torch.ops.aten.repeat.default
FEW = (2, 3)  # two make a line, the third must lie on it
RUN = FEW[-1]  # of these sizes, the one that graphs are run at
# at least so many, in steps: more than 64, and a multiple of 4, 8, 16 and 32, which Python may ask for
MANY, STEP = 96, 32
FEWER = (32, 12, 5)  # of a model that fails with as many


@dataclass
class Exports:
    module: torch.nn.Module
    batch: Batch
    has_loss: bool
    sizes: tuple
    by_mode: dict  # whether in training -> size -> Composite
    fails: str  # why the model was not exported with MANY samples, or ""

    def given(self, b: int) -> dict[str, torch.Tensor]:
        """The fields of a batch."""
        fake = mode_of(self.module)
        return {name: fake.from_tensor(t) if fake else t for name, t in self.batch.at(b).items()}

    def exported(self, training: bool, b: int) -> Composite:
        return export(self.module.train(training), self.given(b), self.has_loss)

    def explained(self, error: BaseException) -> BaseException:
        """The error of where the exports differ first; `error` where they do not."""
        for training, at in self.by_mode.items():
            found = first_difference({b: composite.listed() for b, composite in at.items()})
            if found is not None:
                again = first_difference(
                    {f: self.exported(training, FEW[0]).listed() for f in (1, 2)}, numbers=False
                )
                self.module.train()
                return of_forwards(again) if again else of_sizes(found, "" if training else "in evaluation ")
        return error


def many_for(composite: Composite) -> int:
    """A number of samples that is no other size in the model, which an operator could take it for."""
    sizes = {
        size
        for node in composite.graph.nodes
        for t in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(t, torch.Tensor)
        for size in t.shape
    }
    return next(n for n in itertools.count(MANY, STEP) if n not in sizes)


def exported_at_sizes(module: torch.nn.Module, batch: Batch, has_loss: bool) -> Exports:
    """Exports in training and in evaluation. The module is in training afterwards."""
    exports = Exports(module, batch, has_loss, FEW, {}, "")
    training = {b: exports.exported(True, b) for b in FEW}
    for many in (many_for(training[FEW[0]]), *FEWER):
        try:
            training[many] = exports.exported(True, many)
            break
        except (CaptureError, RuntimeError, MemoryError) as error:
            exports.fails = exports.fails or f"it fails with {many}: {reason(error, module)}"
            if many == FEWER[-1]:
                raise
    exports.sizes = tuple(training)
    evaluation = {b: exports.exported(False, b) for b in (FEW[0], many)}
    # no dropout, no batch norm: one export does for both
    if all(same_graph(training[b], composite) for b, composite in evaluation.items()):
        evaluation = {b: copied(composite) for b, composite in training.items()}
    else:
        evaluation = {b: evaluation.get(b) or exports.exported(False, b) for b in training}
    module.train()
    exports.by_mode = {True: training, False: evaluation}
    for at in exports.by_mode.values():
        copies_as_few(at)
        lists_by_row(at)
    join_what_the_loss_reads(exports.by_mode)
    return exports


def lists_by_row(at: dict[int, Composite]) -> None:
    """A constant with the same row for each sample (torch.tensor([0] * len(x))) is that row, repeated."""
    held = [[(n, about) for n, about in c.tensors.items() if about[0] == "constant"] for c in at.values()]
    if len({len(constants) for constants in held}) != 1:
        return
    for same in list(zip(*held)):
        values = [tensor for _, (_, _, tensor) in same]
        row = values[0][:1] if values[0].dim() else None
        if row is None or any(
            t.shape != (b, *row.shape[1:]) or t.dtype != row.dtype or not torch.equal(t, row.expand_as(t))
            for b, t in zip(at, values)
        ):
            continue
        for (b, composite), (node, (kind, name, _)) in zip(at.items(), same):
            first = next(n for n in composite.nodes if node in n.all_input_nodes)
            with composite.graph.inserting_before(first):
                repeated = composite.graph.call_function(REPEAT, (node, [b, *[1] * (row.dim() - 1)]))
            repeated.meta = {**first.meta, "val": node.meta["val"]}
            node.replace_all_uses_with(repeated, delete_user_cb=lambda user, made=repeated: user is not made)
            node.meta = {**node.meta, "val": node.meta["val"][:1]}
            composite.nodes.insert(composite.nodes.index(first), repeated)
            composite.tensors[node] = (kind, name, row.clone())


def kind_of(node: fx.Node) -> str:
    return name_of(node) or str(node.target)


def is_copy(node: fx.Node) -> bool:
    return name_of(node) == "contiguous"


def without_copies(node: fx.Node) -> fx.Node:
    """What a .contiguous() was made of."""
    return without_copies(node.args[0]) if is_copy(node) else node


def copies_as_few(at: dict[int, Composite]) -> None:
    """Each .contiguous() that many samples alone get is dropped (diffusers makes some from 64 on), and each
    that few alone get is made: it changes where numbers lie, and none of them."""
    few, many = at[RUN], at[max(at)]
    if [kind_of(n) for n in few.nodes] == [kind_of(n) for n in many.nodes]:
        return
    pairs = dict(zip(*([n for n in c.nodes if not is_copy(n)] for c in (few, many))))
    results = [n for c in (few, many) for n in (c.output, c.loss, *c.terms.values()) if n is not None]
    copies = [n for n in few.nodes if is_copy(n)]
    if (
        [kind_of(n) for n in few.nodes if not is_copy(n)]
        != [kind_of(n) for n in many.nodes if not is_copy(n)]
        or any(map(is_copy, results))
        or any(without_copies(copy) not in pairs for copy in copies)
        or any(without_copies(copy) in user.all_input_nodes for copy in copies for user in copy.users)
    ):
        return  # they differ in more than that
    for node in [n for n in many.nodes if is_copy(n)]:
        node.replace_all_uses_with(node.args[0])
        many.nodes.remove(node)
        many.graph.erase_node(node)
    for before, copy in zip(few.nodes, few.nodes[1:]):
        if not is_copy(copy):
            continue
        source, place = pairs[without_copies(copy)], pairs[before]
        with many.graph.inserting_after(place):
            made = many.graph.call_function(copy.target, (source, *copy.args[1:]), copy.kwargs)
        made.meta = {**copy.meta, "val": source.meta["val"].contiguous()}
        many.nodes.insert(many.nodes.index(place) + 1, made)
        pairs[copy] = made
        for user in (n for n in copy.users if n in pairs):
            pairs[user].replace_input_with(source, made)
    by_place = {pair: n for n, pair in pairs.items()}
    for node in many.nodes:
        like = by_place[node].meta.get("val")
        if isinstance(like, torch.Tensor):
            node.meta["val"] = lying_as(like, node.meta["val"])


def lying_as(few: torch.Tensor, many: torch.Tensor) -> torch.Tensor:
    """A tensor of many samples with its dimensions in memory as one of few has them."""

    def order(tensor: torch.Tensor) -> list[int]:
        return sorted(range(tensor.dim()), key=lambda i: (-tensor.stride(i), i))

    if order(few) == order(many):
        return many
    strides, step = [0] * many.dim(), 1
    for i in reversed(order(few)):
        strides[i], step = step, step * many.shape[i]
    return many.as_strided(many.shape, strides)


def reason(error: BaseException, module: torch.nn.Module) -> str:
    cause = error.__cause__ or error
    place = place_of_error(cause, module)
    return f"{f'{place}: ' if place else ''}{said(cause)}"
