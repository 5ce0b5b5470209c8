"""The loss that is captured behind the model's output: the model's own, the user's, or a usual one of
PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from . import stored
from .batch import Field
from .calls import called
from .errors import CaptureError, place_of_function
from .nodes import name_of, needed_by
from .precision import wide
from .terms import detached, loss_and_terms
from .users_code import state_kept

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Json
    from .batch import Batch
    from .cut import Piece
    from .results import Results
    from .stored import Place


USUAL = ("cross_entropy", "mse")
COUNTING = ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd")  # means over labels that count

SAME = 1e-3  # as close as narrow types come


def cross_entropy(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of [b, ..., classes] against one class each; -100 does not count."""
    return torch.nn.functional.cross_entropy(wide(output).flatten(0, -2), batch["targets"].flatten())


def mse(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(wide(output), batch["targets"])


def usual(
    name: str, output: torch.Tensor
) -> tuple[Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor], Field]:
    """The loss, and the field that it reads. `output`: an example of the module's."""
    if name == "mse":
        return mse, Field("targets", list(output.shape[1:]), wide(output).dtype, source="targets")
    return cross_entropy, Field(
        "targets", list(output.shape[1:-1]), below=output.shape[-1], ignore=-100, source="targets"
    )


class Fields(dict):
    """Of a batch, by name, as a loss reads them."""

    def __missing__(self, name: str) -> NoReturn:
        raise CaptureError(
            f"the loss reads {name!r}, which the batch does not have (it has {', '.join(self)}): give --field"
            f" {name}=TYPE[SIZES], as in {name}=f32[1,32,32], {name}=i64[128]<1000 or, for one class of ten"
            f" per sample, {name}=i64[]<10"
        )


class WithLoss(torch.nn.Module):
    """A module and its loss: from fields of the batch to (output, loss), with terms (output, loss, terms)."""

    PREFIX = "wrapped."

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., Any] | None,
        results: Results | None = None,
        places: Sequence[Place] = (),
    ) -> None:
        super().__init__()
        self.wrapped = module
        self.loss = loss
        self.results = results  # of results.py; None: what the module returns, as it is
        self.places = tuple(places)  # of stored.py: what the loss reads besides

    def forward(self, **batch: torch.Tensor) -> Any:
        made = called(self.wrapped, batch)
        if self.places:
            made = (made, stored.taken(self.wrapped, self.places))
        results = self.results and self.results.of(self.training)
        output = made if results is None else results.one(made)
        if self.loss is None:
            return output
        place = place_of_function(self.loss)
        at = f"{place}: " if place else ""
        given = made if results is None else results.again(made, output)
        loss, terms = loss_and_terms(self.loss_of(given, batch), at)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            shape = f"{list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            raise CaptureError(
                f"{at}the loss returns a {type(loss).__name__}{shape} instead of a tensor of one number: let"
                " it return the mean or the sum, alone or as in {'loss': total, 'ce': ce}"
            )
        if output.requires_grad and not loss.requires_grad:
            raise CaptureError(
                f"{at}the loss has no gradient: it comes from .detach(), torch.no_grad, argmax or a"
                " comparison; let it return one that does not"
            )
        return output, loss, *detached(terms)

    def loss_of(self, given: Any, batch: dict[str, torch.Tensor]) -> Any:
        assert self.loss is not None
        if not self.places:
            return self.loss(given, Fields(batch))
        output, values = given
        with stored.put(self.wrapped, self.places, values):
            return self.loss(output, Fields(batch))


def reduction_of(module: torch.nn.Module, batch: Batch) -> str:
    """Whether a batch's loss is the "mean" of its samples', the "sum", or something of the "whole" batch:
    of four samples beside two and two. In evaluation, where no sample depends on others by the model."""
    fields, training = batch.at(4), module.training
    with state_kept(module), torch.no_grad():
        module.eval()
        parts = ({name: t[first:last] for name, t in fields.items()} for first, last in ((0, 2), (2, 4)))
        halves = sum(float(module(**{name: t.clone() for name, t in part.items()})[1]) for part in parts)
        whole = float(module(**fields)[1])
    module.train(training)
    if math.isclose(whole, halves / 2, rel_tol=SAME, abs_tol=SAME):
        return "mean"
    return "sum" if math.isclose(whole, halves, rel_tol=SAME, abs_tol=SAME) else "whole"


def units_of(
    piece: Piece,
    inner: set[fx.Node],
    values_of: Callable[..., Any],
    batch: dict[str, torch.Tensor],
) -> tuple[Json | None, str]:
    """What a mean counts, as the manifest has it, or None where that is samples; and the reduction. From the
    loss's composite operators: cross entropy against targets that follow from the batch alone. `values_of`:
    from a batch, a dictionary of fields, to node -> tensor; `inner`: what is computed
    in other pieces."""
    of_loss = needed_by(piece.outputs[0])  # terms count what they like
    losses = [n for n in (*piece.nodes, *inner) if name_of(n) in COUNTING and n in of_loss]
    if len(losses) != 1:
        return None, "mean"
    node = losses[0]
    given = {
        a.name: node.args[i] if i < len(node.args) else node.kwargs.get(a.name, a.default_value)
        for i, a in enumerate(node.target._schema.arguments)
    }
    if given["reduction"] == 2:
        return None, "sum"
    ignore, targets = given["ignore_index"], values_of(batch).get(given["target"])
    if (
        given["reduction"] != 1
        or targets is None
        or targets.is_floating_point()
        or given["weight"] is not None
    ):
        return None, "mean"

    def counted(fields: dict[str, torch.Tensor]) -> int:
        return int(values_of(fields)[given["target"]].ne(ignore).sum())

    for name, field in batch.items():
        if field.dtype != torch.int64:
            continue
        # Nothing of what was drawn is left: which labels count is known of both.
        whole = torch.full_like(field, 1 if ignore == 0 else 0)
        marked = whole.clone()
        marked.view(-1)[2::3] = ignore
        try:
            of_whole, of_marked = counted({**batch, name: whole}), counted({**batch, name: marked})
        except (IndexError, RuntimeError):  # no label: it is read as a place, and this is none
            continue
        for skipped in (0, 1) if field.dim() > 1 else (0,):
            if (of_whole, of_marked) == tuple(
                int(labels[..., skipped:].ne(ignore).sum() if skipped else labels.ne(ignore).sum())
                for labels in (whole, marked)
            ) and of_whole != of_marked:
                return {"field": name, "ignore": ignore, **({"from": skipped} if skipped else {})}, "mean"
    if int(targets.ne(ignore).sum()) == targets.numel():
        return None, "mean"
    raise CaptureError(
        "the loss is a mean over entries that no field of the batch tells; make it a sum, or a mean over"
        f" labels that are {ignore} where they do not count"
    )
