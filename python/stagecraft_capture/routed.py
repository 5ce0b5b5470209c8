"""Models of transformers whose routers have a loss of their own (output_router_logits)."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .results import Results, structure
from .tasks import Logits
from .terms import detached

BALANCE = "load_balancing_loss_func"
RECORDED = ("output_router_logits", "output_hidden_states", "output_attentions", "use_weighted_layer_sum")


def has_router_loss(model: torch.nn.Module) -> bool:
    """Whether its loss has a term of its routers, as transformers computes it for nearly all such models."""
    asked = getattr(getattr(model, "config", None), "output_router_logits", False)
    known = hasattr(model, "router_aux_loss_coef") and hasattr(model, "num_experts_per_tok")
    return bool(asked) and known and hasattr(sys.modules[type(model).__module__], BALANCE)


def with_hooks(module: torch.nn.Module) -> None:
    """Registers the hooks by which models of transformers record what their configs ask for. The first
    forward would, and a graph has a forward as the next one is."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None:
        return
    from transformers import PreTrainedModel

    for part in module.modules():
        if isinstance(part, PreTrainedModel) and (
            any(getattr(part.config, name, False) for name in RECORDED) or _always_records(part)
        ):
            capturing.maybe_install_capturing_hooks(part)


def _always_records(model: torch.nn.Module) -> bool:
    """Whether its forward asks for hidden states whatever the config says, as those on a backbone and of
    speech do."""
    forward: Any = type(model).forward
    asking = getattr(sys.modules.get("transformers.backbone_utils"), "filter_output_hidden_states", None)
    if asking is None:
        return False
    asks = asking(forward).__code__
    while forward is not None and getattr(forward, "__code__", None) is not asks:
        forward = getattr(forward, "__wrapped__", None)
    return forward is not None


class Routed(Logits):
    """A language model with experts. The logits of its routers travel to the loss beside its own, in one
    tensor, and the loss is made there of both, as the model's forward makes it. What the model returns as
    aux_loss is a term of it."""

    def forward(self, **batch: torch.Tensor) -> Any:
        model: Any = self.wrapped
        given = {name: tensor for name, tensor in batch.items() if name != "labels"}
        made = model(**given, **self.fixed)
        leaves = {"logits": made.logits, "router_logits": made.router_logits}
        count = 1 + len(made.router_logits)
        packed = Results(list(range(count)), structure(leaves))
        output = packed.one(leaves)
        if "labels" not in batch:
            return output
        parts = packed.again(leaves, output)
        labels = batch["labels"]
        loss = model.loss_function(parts["logits"].contiguous(), labels, model.vocab_size)
        # without a mask transformers counts by a histogram: of ones it is the same to the bit
        mask = batch.get("attention_mask", torch.ones(labels.shape, dtype=torch.int64))
        balance = getattr(sys.modules[type(model).__module__], BALANCE)
        logits = tuple(part.contiguous() for part in parts["router_logits"])
        routers = balance(logits, model.num_experts, model.num_experts_per_tok, mask)
        return output, loss + model.router_aux_loss_coef * routers, *detached({"aux_loss": routers})
