"""A loss of the module's own that reads more of it than its output, such as an auxiliary head's logits: what
it reads lies side by side in one tensor, which is then the model's output, and the loss gets it out of there.

Joining and splitting round nothing, neither forward nor backward. results.py does the same for a loss that is
a function of what the module returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .composite import dependencies
from .cut import HELD, ancestors, behind_output, derived, is_numbers
from .nodes import name_of

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Needs
    from .composite import Composite

ATEN = torch.ops.aten
VIEWS = (
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "permute",
    "transpose",
    "slice",
    "select",
    "squeeze",
    "unsqueeze",
)


def reads_several(composite: Composite) -> bool:
    """Whether the loss reads another number of values of the model than one."""
    if composite.loss is None:
        return False
    needs = dependencies(composite)
    given = derived(composite, needs)
    order = [n for n in composite.nodes if n not in given]
    return len(behind_output(composite, needs, order)[1]) != 1


def join_what_the_loss_reads(composite: Composite) -> None:
    """Where that is several values with numbers of each sample, or one number. The output comes first."""
    if composite.loss is None:
        return
    needs = dependencies(composite)
    given, within = derived(composite, needs), set(composite.nodes)
    loss = with_views(nodes_of_loss(composite, needs), composite, given)
    read = {n for node in loss for n in needs[node] if n in within - given - loss}
    if len(read) == 1 or not loss or composite.output in loss | given:
        return
    samples = composite.input.meta["val"].shape[0]
    values = [composite.output, *(n for n in composite.nodes if n in read - {composite.output})]
    kind = composite.output.meta["val"].dtype
    if any(not is_numbers(n) or n.meta["val"].dtype != kind for n in values):
        return
    if any(n.meta["val"].dim() and n.meta["val"].shape[0] % samples for n in values):
        return
    made: list[fx.Node] = []
    end = next(n for n in composite.graph.nodes if n.op == "output")

    def call(target: Any, args: tuple[Any, ...], value: torch.Tensor) -> fx.Node:
        with composite.graph.inserting_before(end):
            node = composite.graph.call_function(target, args)
        like = args[0][0] if isinstance(args[0], list) else args[0]
        node.meta = {**like.meta, "val": value}
        made.append(node)
        return node

    def row(node: fx.Node) -> fx.Node:
        value = node.meta["val"]
        if value.dim() == 0:
            return call(ATEN.expand.default, (node, [samples, 1]), value.expand(samples, 1))
        return call(ATEN.reshape.default, (node, [samples, -1]), value.reshape(samples, -1))

    rows = [row(node) for node in values]
    joined = call(ATEN.cat.default, (rows, 1), torch.cat([r.meta["val"] for r in rows], 1))
    begin, readers = 0, {node: [n for n in loss if node in n.all_input_nodes] for node in values}
    for node, of_node in zip(values, rows):
        width, value = of_node.meta["val"].shape[1], node.meta["val"]
        whole = joined.meta["val"].narrow(1, begin, width)
        part = call(ATEN.slice.Tensor, (joined, 1, begin, begin + width), whole)
        if value.dim() == 0:
            first = call(ATEN.select.int, (part, 0, 0), whole.select(0, 0))
            part = call(ATEN.select.int, (first, 0, 0), whole.select(0, 0).select(0, 0))
        else:
            dense = call(ATEN.contiguous.default, (part,), whole.contiguous())
            part = call(ATEN.view.default, (dense, list(value.shape)), whole.contiguous().view(value.shape))
        for reader in readers[node]:
            reader.replace_input_with(node, part)
        begin += width
    behind = [n for n in composite.nodes if n in loss]
    for node in behind:
        end.prepend(node)
    composite.columns = (rows[0].meta["val"].shape[1], list(composite.output.meta["val"].shape[1:]))
    composite.nodes = [n for n in composite.nodes if n not in loss] + made + behind
    composite.output = joined


def with_views(loss: set[fx.Node], composite: Composite, given: set[fx.Node]) -> set[fx.Node]:
    """With what it alone views of others (logits.view(-1, classes))."""
    found = set(loss)
    for node in reversed(composite.nodes):
        alone = node is not composite.output and node.users and all(user in found for user in node.users)
        if alone and name_of(node) in VIEWS and node not in given:
            found.add(node)
    return found


def nodes_of_loss(composite: Composite, needs: Needs) -> set[fx.Node]:
    """What the loss and its terms compute of fields that the output does not depend on, of labels. Where
    there are none, all that the output does not depend on, behind the last weights."""
    results = [composite.loss, *composite.terms.values()]
    wanted = set().union(*(ancestors(result, needs) for result in results))
    of_output = ancestors(composite.output, needs)
    labels = {n for n in composite.fields if n in wanted and n not in of_output}
    found = set(composite.terms.values())
    if not labels:
        beside = wanted - of_output
        held = {n for n, (kind, _, _) in composite.tensors.items() if kind in HELD}
        weighty = [n for n in composite.nodes if n in beside and held.intersection(n.all_input_nodes)]
        of_model = set().union(*(ancestors(n, needs) for n in weighty))
        return found | {n for n in composite.nodes if n in beside - of_model}
    reached = set(labels)
    for node in composite.nodes:
        if node in wanted and (node in found or any(n in reached for n in needs[node])):
            reached.add(node)
    given = derived(composite, needs)
    return {n for n in composite.nodes if n in found | (reached - labels - given)} - of_output
