"""The loss that is captured behind the model's output: the model's own, the user's, or a usual one of PyTorch."""

import inspect

import torch

from .batch import Field
from .errors import CaptureError
from .precision import wide

USUAL = ("cross_entropy", "mse")


def cross_entropy(output, batch):
    """Of [b, ..., classes] against one class each; -100 does not count."""
    return torch.nn.functional.cross_entropy(wide(output).flatten(0, -2), batch["targets"].flatten())


def mse(output, batch):
    return torch.nn.functional.mse_loss(wide(output), batch["targets"])


def usual(name, output):
    """The loss, and the field that it reads. `output`: an example of the module's."""
    if name == "mse":
        return mse, Field("targets", list(output.shape[1:]), wide(output).dtype, source="targets")
    return cross_entropy, Field("targets", list(output.shape[1:-1]), below=output.shape[-1], ignore=-100, source="targets")


class WithLoss(torch.nn.Module):
    """A module and its loss: from fields of the batch to (output, loss)."""

    PREFIX = "wrapped."

    def __init__(self, module, loss):
        super().__init__()
        self.wrapped = module
        self.loss = loss
        self.names = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind != p.VAR_KEYWORD]

    def forward(self, **batch):
        output = self.wrapped(**{name: batch[name] for name in self.names if name in batch})
        if not isinstance(output, torch.Tensor):
            raise CaptureError(f"with --loss the model returns one tensor, this one returns a {type(output).__name__}")
        if self.loss is None:
            return output
        loss = self.loss(output, batch)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise CaptureError("the loss is no tensor of one number")
        return output, loss


def units_of(piece, values_of, batch):
    """What a mean counts, as the manifest has it, or None where that is samples; and the reduction. From the loss's composite operators:
    cross entropy against targets that follow from the batch alone. `values_of`: from a batch, a dictionary of fields, to node -> tensor."""
    losses = [n for n in piece.nodes if "cross_entropy_loss" in str(n.target) or "nll_loss" in str(n.target)]
    if len(losses) != 1:
        return None, "mean"
    node = losses[0]
    given = {a.name: node.args[i] if i < len(node.args) else node.kwargs.get(a.name, a.default_value) for i, a in enumerate(node.target._schema.arguments)}
    if given["reduction"] == 2:
        return None, "sum"
    ignore, targets = given["ignore_index"], values_of(batch).get(given["target"])
    if given["reduction"] != 1 or targets is None or targets.is_floating_point() or given["weight"] is not None:
        return None, "mean"
    before = int(targets.ne(ignore).sum())
    for name, field in batch.items():
        if field.dtype != torch.int64:
            continue
        marked = field.clone()
        marked.view(-1)[2::3] = ignore
        try:
            counted = int(values_of({**batch, name: marked})[given["target"]].ne(ignore).sum())
        except (IndexError, RuntimeError):  # no label: it is read as a place, and this is none
            continue
        for skipped in (0, 1) if field.dim() > 1 else (0,):
            if counted != before and counted == int((marked[..., skipped:] if skipped else marked).ne(ignore).sum()):
                return {"field": name, "ignore": ignore, **({"from": skipped} if skipped else {})}, "mean"
    if before == targets.numel():
        return None, "mean"
    raise CaptureError(f"the loss is a mean over entries that no field of the batch tells; make it a sum, or a mean over labels that are {ignore} where they do not count")
