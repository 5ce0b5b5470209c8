"""What a loss reads of a model, where that is several values, as one tensor: they lie side by side in it, it
is then the model's output, and the loss gets them out of there.

Of a loss that the module computes, such as one that reads an auxiliary head's logits, that is made here.
Where the loss is a function of what the module returns, results.py has done it. Joining and splitting round
nothing, neither forward nor backward. What the loss computes of one of them alone goes to where it is made,
of inner_losses.py.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from .composite import dependencies, wanted
from .cut import HELD, ancestors, behind_output, derived, is_numbers
from .inner_losses import Reads, computed_where_made, inner_losses
from .layouts import memory_order, with_gradient_in_order
from .nodes import name_of

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Modes, Needs
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


def join_what_the_loss_reads(exported: Modes) -> None:
    """Where that is several values with numbers of each sample, or one number. The output comes first. All
    modes and sizes are joined alike."""
    composites = [composite for at in exported.values() for composite in at.values()]
    if composites[0].loss is None:
        return
    of_module = all(map(reads_several, composites))
    reads = [of_its_own(c) if of_module else of_results(c) for c in composites]
    # `columns` tells the output by its samples
    by_samples = all(of_samples(c, r) for c, r in zip(composites, reads) if r is not None)
    found = [{} if r is None or not by_samples else inner_losses(c, r) for c, r in zip(composites, reads)]
    alike = {
        i for i, of in found[0].items() if all(i in o and len(o[i].numbers) == len(of.numbers) for o in found)
    }
    for composite, what, inner in zip(composites, reads, found):
        if what is not None and (of_module or alike):
            joined(composite, computed_where_made(composite, what, {i: inner[i] for i in alike}))
    for composite, what in zip(exported[True].values(), reads):
        if what is not None:
            with_dense_gradients(composite)


def of_its_own(composite: Composite) -> Reads | None:
    """Of a loss that the module computes."""
    needs = dependencies(composite)
    given, within = derived(composite, needs), set(composite.nodes)
    loss = with_views(nodes_of_loss(composite, needs), composite, given)
    read = {n for node in loss for n in needs[node] if n in within - given - loss}
    if len(read) == 1 or not loss or composite.output in loss | given:
        return None
    samples = composite.input.meta["val"].shape[0]
    values = [composite.output, *(n for n in composite.nodes if n in read - {composite.output})]
    kind = composite.output.meta["val"].dtype
    if any(not is_numbers(n) or n.meta["val"].dtype != kind for n in values):
        return None
    if any(n.meta["val"].dim() and n.meta["val"].shape[0] % samples for n in values):
        return None
    return Reads(values, list(values), loss)


def of_results(composite: Composite) -> Reads | None:
    """Of a loss of what the module returns: from where results.py takes it apart."""
    splits = [n for n in composite.output.users if name_of(n) == "split_with_sizes"]
    if name_of(composite.output) != "cat" or len(splits) != 1:
        return None
    rows = composite.output.args[0]
    values = [row.args[0] if name_of(row) in ("reshape", "expand") else row for row in rows]
    seen: list[fx.Node | None] = [None] * len(values)
    for part in splits[0].users:
        i, node = part.args[1], part
        while node.meta["val"].shape != values[i].meta["val"].shape and len(node.users) == 1:
            (node,) = node.users
        seen[i] = node if node.users else None
    needs = dependencies(composite)
    behind = {*splits}
    for node in composite.nodes:
        if not behind.isdisjoint(needs[node]):
            behind.add(node)
    return Reads(values, seen, behind)


def of_samples(composite: Composite, reads: Reads) -> bool:
    """Whether the first dimension of each value counts samples."""
    samples = composite.input.meta["val"].shape[0]
    return all(n.meta["val"].dim() == 0 or n.meta["val"].shape[0] % samples == 0 for n in reads.values)


def joined(composite: Composite, reads: Reads) -> None:
    samples = composite.input.meta["val"].shape[0]
    made: list[fx.Node] = []
    end = next(n for n in composite.graph.nodes if n.op == "output")

    def call(target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
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

    rows = [row(node) for node in reads.values]
    whole = call(ATEN.cat.default, (rows, 1), torch.cat([r.meta["val"] for r in rows], 1))
    widths = [r.meta["val"].shape[1] for r in rows]
    parts = call(ATEN.split_with_sizes.default, (whole, widths, 1), whole.meta["val"].split(widths, 1))
    readers = {node: [n for n in reads.loss if node in n.all_input_nodes] for node in reads.values}
    for i, node in enumerate(reads.values):
        value, part = node.meta["val"], call(operator.getitem, (parts, i), parts.meta["val"][i])
        if value.dim() == 0:
            first = call(ATEN.select.int, (part, 0, 0), part.meta["val"].select(0, 0))
            part = call(ATEN.select.int, (first, 0, 0), first.meta["val"].select(0, 0))
        else:
            dense = call(ATEN.contiguous.default, (part,), part.meta["val"].contiguous())
            part = call(ATEN.view.default, (dense, list(value.shape)), dense.meta["val"].view(value.shape))
        for reader in readers[node]:
            reader.replace_input_with(node, part)
    behind = [n for n in composite.nodes if n in reads.loss]
    for node in behind:
        end.prepend(node)
    composite.columns = (widths[0], list(reads.values[0].meta["val"].shape[1:]))
    composite.nodes = [n for n in composite.nodes if n not in reads.loss] + made + behind
    composite.output = whole
    composite.nodes = wanted(composite)


def with_dense_gradients(composite: Composite) -> None:
    """Of what lies in the output: dense, as in eager mode, and no part of the whole's. A sum of a part rounds
    otherwise."""
    for row in composite.output.args[0]:
        value = row.args[0]
        if name_of(row) != "reshape":  # one number, or zeros for what is absent
            continue
        order = memory_order(value.meta["val"]) or list(range(value.meta["val"].dim()))
        with composite.graph.inserting_before(row):
            dense = composite.graph.call_function(with_gradient_in_order, (value, order))
        dense.meta = dict(value.meta)
        row.replace_input_with(value, dense)
        composite.nodes.insert(composite.nodes.index(row), dense)


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
