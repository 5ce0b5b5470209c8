"""Captures modules whose backward is no plain derivative (torch.autograd.Function, no_grad, writes to slices,
frozen weights), and holds every layer's replay against eager, to the bit."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from capture_cases import equal, nn, numbers, refused


class Rounded(torch.autograd.Function):
    """A straight-through estimator: its backward is not its forward's derivative."""

    @staticmethod
    def forward(ctx, x, steps=4.0):
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class ProductAndSum(torch.autograd.Function):
    """Two results, and a backward that says something else than the derivative."""

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, of_product, of_sum):
        x, y = ctx.saved_tensors
        return of_product * y * 2 + of_sum, of_product * x + of_sum


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Shifted(torch.autograd.Function):
    """Writes to its argument and says nothing of it, as TabNet's sparsemax."""

    @staticmethod
    def forward(ctx, x):
        x -= x.max(1, keepdim=True)[0]
        ctx.save_for_backward(made := x.exp())
        return made

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class RoundedToo(Rounded):
    """Has forward and backward from another function."""


class AsItIs(torch.autograd.Function):
    """Hands its argument on."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Nested(torch.autograd.Function):
    """Calls another function, and another's forward."""

    @staticmethod
    def forward(ctx, x):
        return Rounded.apply(x) + Rounded.forward(ctx, x * 2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def made_inside(x):
    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 5

    return Inside.apply(x)


class WithNumbers(torch.autograd.Function):
    """It makes tensors of numbers in Python, in both directions."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.masked_fill(x < torch.tensor(-0.5), torch.tensor(-0.5)) * torch.tensor([1.0, 2.0]).repeat(4)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        slopes = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]])
        return gradient * (x > torch.tensor(-0.5)) * slopes


class Around(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return x + self.function(self.linear(x))


def test_custom_functions():
    """A backward that the user wrote is the one that runs."""
    torch.manual_seed(0)

    def blocks(function):
        return nn.Sequential(Around(function), Around(function), Around(function), nn.Linear(8, 4))

    def both(x):
        return sum(ProductAndSum.apply(x, x.tanh()))

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(lambda y: y.tanh() * y, x, use_reentrant=False)

    functions = {
        "straight through": Rounded.apply,
        "two results": both,
        "checkpointed activations": checkpointed,
        "forward of another": RoundedToo.apply,
        "an argument handed on": lambda x: AsItIs.apply(x) + x.sin(),
        "one within another": Nested.apply,
        "a class made by the call": made_inside,
        "tensors made in Python": WithNumbers.apply,
        "an argument written to": lambda x: Doubled.apply(x + 1),
        "an argument written to and read again": lambda x: Doubled.apply(y := x + 1) + y.sin(),
        "an argument written to in silence": lambda x: Shifted.apply(x * 2),
    }
    # All in one model, each twice, behind a norm that gives it ordinary numbers.
    of_each = [(nn.LayerNorm(8), Around(function), Around(function)) for function in functions.values()]
    model = nn.Sequential(nn.Linear(8, 8), *(part for parts in of_each for part in parts), nn.Linear(8, 4))
    layers = equal(", ".join(functions), model, numbers(8, name="input"), 2 + 3 * len(functions))
    graphs = {layer.name: layer.graph for layer in layers}
    for index, name in enumerate(functions):
        first = 2 + 3 * index
        assert graphs[f"{first}.linear"] == graphs[f"{first + 1}.linear"], (
            f"{name}: equal blocks share one graph"
        )
    assert "forward" not in RoundedToo.__dict__ and isinstance(Rounded.__dict__["forward"], staticmethod), (
        "functions are left as they were"
    )
    for name, function, line in (
        ("by who called it", lambda x: Shifted.apply(y := x + 1) + y, "capture_functions_test.py"),
        (
            "by a view of it",
            lambda x: (y := x + 1).t().add(Shifted.apply(y).t()).t() + y.t()[0, 0],
            "Shifted",
        ),
    ):
        refused(
            f"an argument written to and read again {name}",
            blocks(function),
            numbers(8, name="input"),
            "a torch.autograd.Function, writes to its argument, which is read again",
            line,
        )


class Parts(nn.Module):
    """Gradients go through some of it only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            scale = x.tanh() * 2
            with torch.enable_grad():
                made = self.linear(x)
            target = made.relu()
        return made * scale + target


class Iterated(nn.Module):
    """A fixed point without gradients, and one step from there with them, by a weight that is flattened in
    both: what flatten returns of it is the weight itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))

    def forward(self, x):
        with torch.no_grad():
            z = torch.tanh(self.linear(x) + self.linear.bias.contiguous().to(torch.float32))
        return torch.tanh(self.linear(z) + self.linear.bias + x)


class Slices(nn.Module):
    """Writes to parts of tensors."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        bias = self.linear.bias.clone()
        bias[2:4].zero_()
        y, z = nn.functional.linear(x, self.linear.weight, bias), torch.zeros_like(x)
        z[:, 1:3] = y[:, :2]
        z[:, 0] = 1.0
        z[:, 4] *= 2
        y[y < 0] = 0.5
        y[:, 4:].add_(x[:, :4])
        return y + z


class Sized(nn.Module):
    """What a layer made has a gradient of its own, and a later one reads its sizes alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.a(x.view(-1, 2, 4)).relu()
        z = self.b((y * 2).flatten(0, 1)).tanh()
        return self.c(z).view_as(y).flatten(1) + torch.zeros_like(y).flatten(1)


class Half(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


def test_gradients_of_parts():
    torch.manual_seed(0)

    def around(module):
        return nn.Sequential(nn.Linear(8, 8), module, nn.Linear(8, 4))

    equal("no_grad within a forward", around(Parts()), numbers(8, name="input"), 3)
    equal("spectral norm, first under no_grad", around(Iterated()), numbers(8, name="input"), 2)
    equal("sizes of what a layer made", around(Sized()), numbers(8, name="input"), 4)
    equal("writes to slices", around(Slices()), numbers(8, name="input"), 3)
    frozen = around(nn.Linear(8, 8))
    frozen[1].weight.requires_grad_(False)
    layers = equal("a frozen weight", frozen, numbers(8, name="input"), 3)
    assert layers[1].tensors.names["p"] == ["1.bias"] and layers[1].tensors.names["u"] == ["1.weight"]
    refused(
        "autocast",
        around(Half(8, 8)),
        numbers(8, name="input"),
        "module '1'",
        "capture_functions_test.py",
        "torch.autocast",
    )
