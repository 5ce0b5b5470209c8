"""Types that torch's fake kernels tell wrongly: norms of narrow inputs beside float32 weights, and their
statistics. The real kernels are asked."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from .nodes import name_of
from .torch_private import unset_fake_temporarily

if TYPE_CHECKING:
    from torch import fx


NORMS = {
    f"{name}{ending}"
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
    )
    for ending in ("", "_backward")
}
NARROW = (torch.bfloat16, torch.float16)


def real_types(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if name_of(node) in NORMS and any(n.meta["val"].dtype in NARROW for n in node.all_input_nodes):
            correct(node)


def correct(node: fx.Node) -> None:
    """The dtypes of its results. Sizes and strides are right."""

    def real(n: fx.Node) -> torch.Tensor:
        return torch.zeros(n.meta["val"].shape, dtype=n.meta["val"].dtype)

    with torch.no_grad(), unset_fake_temporarily():
        made = node.target(*torch.fx.map_arg(node.args, real), **torch.fx.map_arg(node.kwargs, real))

    def typed(fake: Any, found: Any) -> Any:
        return fake if fake is None or found is None or fake.dtype == found.dtype else fake.to(found.dtype)

    node.meta["val"] = tuple(map(typed, node.meta["val"], made))
    for user in node.users:
        if user.target is operator.getitem:
            user.meta["val"] = node.meta["val"][user.args[1]]
