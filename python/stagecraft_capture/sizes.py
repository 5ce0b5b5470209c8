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
from .no_weights import mode_of
from .nodes import name_of
from .torch_private import pytree

if TYPE_CHECKING:
    from .batch import Batch
    from .composite import Composite


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
        without_copies_of_many(at)
    return exports


def without_copies_of_many(at: dict[int, Composite]) -> None:
    """Drops each .contiguous() that many samples get and few do not (diffusers, from 64 on): it changes where
    numbers lie, and none of them."""
    few, many = at[RUN], at[max(at)]
    left, more = [name_of(n) or str(n.target) for n in few.nodes], []
    for node in many.nodes:
        if left and (name_of(node) or str(node.target)) == left[0]:
            del left[0]
        elif name_of(node) == "contiguous" and node is not many.output:
            more.append(node)
        else:
            return  # they differ in more than that
    for node in more if not left else ():
        node.replace_all_uses_with(node.args[0])
        many.nodes.remove(node)
        many.graph.erase_node(node)
    if more and not left:
        for one, other in zip(few.nodes, many.nodes):
            if isinstance(one.meta.get("val"), torch.Tensor):
                other.meta["val"] = lying_as(one.meta["val"], other.meta["val"])


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
