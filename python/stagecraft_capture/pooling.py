"""Adaptive pooling to one number per channel, written out. It is a mean, whose result it gives the strides of
channels last where its input has them, by an operator that captured graphs do not have. A copy in that order
of memory has the same strides, and what follows sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Json


ATEN = torch.ops.aten
POOLS = {
    ATEN.adaptive_avg_pool1d.default: 1,
    ATEN.adaptive_avg_pool2d.default: 2,
    ATEN.adaptive_avg_pool3d.default: 3,
}
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def pool_by_means(graph: fx.Graph) -> None:
    for node in list(graph.nodes):
        count = POOLS.get(node.target) if node.op == "call_function" else None
        if count is None or any(size != 1 for size in node.args[1]):
            continue
        pooled, x = node.meta["val"], node.args[0]
        node.target, node.args = ATEN.mean.dim, (x, [-d for d in range(1, count + 1)], True)
        if pooled.dim() == count + 2 and pooled.stride()[-count:] != (1,) * count:  # of a mean they are 1
            node.meta["val"] = x.meta["val"].mean(node.args[1], True)
            in_order(graph, node, count)


def in_order(graph: fx.Graph, mean: fx.Node, count: int) -> None:
    """Behind `mean` a copy with channels last, which goes on instead."""
    readers = list(mean.users)
    steps: list[tuple[Any, tuple[int, ...], Json]] = [
        (ATEN.clone.default, (), {"memory_format": FORMATS[max(count, 2)]})
    ]
    if count == 1:  # eager pools it as an image of one row
        steps = [(ATEN.unsqueeze.default, (-2,), {}), *steps, (ATEN.squeeze.dim, (-2,), {})]
    made = mean
    for target, args, kwargs in steps:
        with graph.inserting_after(made):
            step = graph.call_function(target, (made, *args), kwargs)
        step.meta = {**mean.meta, "val": target(made.meta["val"], *args, **kwargs)}
        made = step
    for reader in readers:
        reader.replace_input_with(mean, made)
