"""The self-check: the captured layers beside the module itself, in eager mode, with the same random numbers."""

import contextlib
import copy

import torch

from . import replay
from .capture import MODEL_INPUT
from .layouts import memory_order
from .noise import draw_of
from .replay import Replayed


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def difference(a, b):
    if a.shape != b.shape:
        return float("inf")
    return (a.double() - b.double()).abs().max().item() if a.numel() else 0.0


def expected_gradients(module, named):
    """Gradients of parameters, under those of their names that layers use."""
    names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {next((n for n in of if n in named), of[0]): p.grad for p, of in names.items() if p.grad is not None}


class Comparison:
    """Counts what is equal, and remembers the largest difference."""

    def __init__(self):
        self.worst = 0.0

    def equal(self, found, expected):
        self.worst = max(self.worst, difference(found, expected))
        return same(found, expected)

    def word(self, found, expected):
        return "equal" if self.equal(found, expected) else "differs"


def beside(module):
    """A copy with gradients and buffers of its own; parameters have the same memory."""
    same = {id(p): torch.nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in module.parameters()}
    made = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    same |= {id(t): t.detach() for t in made}  # by torch.nn.utils.weight_norm, and again in each forward
    return copy.deepcopy(module, same)


def handed_to_loss(output):
    """As layouts.py hands it on: with its dimensions in the order of its memory."""
    order = None if output.is_contiguous() else memory_order(output)
    return output if order is None else output.permute(order)


@contextlib.contextmanager
def without_fast_path():
    """torch.nn.TransformerEncoderLayer has a kernel of its own for evaluation, which is not in exported graphs and rounds otherwise."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def drawing_as_eager(unread, b):
    """Between the draws of layers, those whose results nothing reads. `unread`: of Model."""
    (few, first), (more, second) = sorted(unread.items())[:2]
    sizes = lambda x, y: [n + (m - n) // (more - few) * (b - few) for n, m in zip(x.meta["val"].shape, y.meta["val"].shape)]
    left = [(place, draw_of(x), sizes(x, y)) for (place, x), (_, y) in zip(first, second)]
    count = 0

    def before():
        nonlocal count
        while left and left[0][0] == count:
            _, draw, shape = left.pop(0)
            draw(shape)
        count += 1

    replay.before_draw = before
    try:
        yield
    finally:
        replay.before_draw = None


def check(module, model, batch):
    """What manifest.json says under `checked`. `batch`: fields by name."""
    module, compare = beside(module), Comparison()
    replayed = [Replayed(layer.graph, layer.tensors) for layer in model.layers]
    loss = Replayed(model.loss.graph, model.loss.tensors) if model.loss else None
    results = lambda made: (handed_to_loss(made[0]), made[1]) if loss else (made, None)

    def layers_of(run):
        """The output. Each layer reads what others have left, and what goes through it is its own output from then on."""
        values = {MODEL_INPUT: next(iter(batch.values()))}
        for layer, replay in zip(model.layers, replayed):
            made = run(replay)([values.pop(n) for n in layer.reads], batch)
            values.update(zip(layer.makes, made))
        (found,) = values.values()
        return found

    module.eval()
    with torch.no_grad(), without_fast_path():
        output, expected_loss = results(module(**batch))
        found = layers_of(lambda layer: layer.evaluate)
        evaluation = compare.equal(found, output)
        if loss:
            evaluation &= compare.equal(loss.evaluate([found], batch)[0], expected_loss)

    module.train()
    torch.manual_seed(1)
    output, expected_loss = results(module(**batch))
    torch.manual_seed(1)
    with torch.no_grad(), drawing_as_eager(model.unread, next(iter(batch.values())).shape[0]):
        found = layers_of(lambda layer: layer.forward)
    checked = {"output": compare.word(found, output.detach())}
    if loss:
        with torch.no_grad():
            (found,) = loss.forward([found], batch)
            checked["loss"] = compare.word(found, expected_loss.detach())
            (g,), _ = loss.backward([torch.ones_like(found)])
        expected_loss.backward()
    else:
        g = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
        output.backward(g)
    checked["evaluation"] = "equal" if evaluation else "differs"
    expected = expected_gradients(module, {name for layer in model.layers for name in layer.tensors.names["p"]})
    of_both, found_of = set(expected), {}
    with torch.no_grad():
        gradients = {model.layers[-1].makes[0]: g}
        for layer, run in reversed(list(zip(model.layers, replayed))):
            of_inputs, of_parameters = run.backward([gradients.pop(n, None) for n in layer.makes])
            gradients.update((n, g) for n, g in zip(layer.reads, of_inputs) if g is not None)
            for name, gradient in zip(layer.tensors.names["p"], of_parameters):
                if gradient is not None:  # of a tied weight the last layer's comes first, as eager adds them
                    found_of[name] = found_of[name] + gradient if name in found_of else gradient
        of_both |= set(found_of)  # where eager has none, it differs
        equal = sum(name in expected and compare.equal(gradient, expected[name]) for name, gradient in found_of.items())
    buffers = dict(module.named_buffers())
    changed = [(n, run.fixed[f"u{i}"]) for layer, run in zip(model.layers, replayed) for i, n in enumerate(layer.tensors.names["u"]) if n in buffers]
    buffers_equal = sum(compare.equal(value, buffers[n]) for n, value in changed)
    return {
        **checked,
        "gradients": len(of_both),
        "equal": equal,
        "buffers": len(changed),
        "buffers_equal": buffers_equal,
        "worst": compare.worst,
    }
