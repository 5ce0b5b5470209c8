"""The self-check: the captured layers beside the module itself, in eager mode, with the same random gradient."""

import copy

import torch

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


def check(module, layers, inputs):
    """What manifest.json says under `checked`."""
    module = copy.deepcopy(module)
    replayed = [Replayed(layer.graph, layer.tensors) for layer in layers]
    x = next(iter(inputs.values()))

    module.eval()
    with torch.no_grad():
        expected, found = module(**inputs), x
        for layer in replayed:
            found = layer.evaluate(found)
    worst, evaluation = difference(found, expected), same(found, expected)

    module.train()
    torch.manual_seed(1)
    output = module(**inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        found = x
        for layer in replayed:
            found = layer.forward(found)
    equal = same(found, output.detach())
    worst = max(worst, difference(found, output.detach()))

    tangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
    output.backward(tangent)
    gradients, g = {}, tangent
    with torch.no_grad():
        for layer, run in reversed(list(zip(layers, replayed))):
            g, of_parameters = run.backward(g)
            gradients.update(zip(layer.tensors.names["p"], of_parameters))
    expected = expected_gradients(module, gradients)
    matched = [n for n, grad in expected.items() if gradients.get(n) is not None and same(gradients[n], grad)]
    worst = max([worst] + [difference(gradients[n], g) for n, g in expected.items() if gradients.get(n) is not None])
    buffers = dict(module.named_buffers())
    changed = [(n, run.fixed[f"u{i}"]) for layer, run in zip(layers, replayed) for i, n in enumerate(layer.tensors.names["u"])]
    buffers_equal = sum(same(value, buffers[n]) for n, value in changed)
    return {
        "output": "equal" if equal else "differs",
        "evaluation": "equal" if evaluation else "differs",
        "gradients": len(expected),
        "equal": len(matched),
        "buffers": len(changed),
        "buffers_equal": buffers_equal,
        "worst": worst,
    }
