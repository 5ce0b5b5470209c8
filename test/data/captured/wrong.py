# Modules that a capture refuses, or unwraps, and losses of the kind: capture_refusals_test.py has what it
# says of each.

import random

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Two linear layers around what `between` does; `returned` makes what it returns."""

    def __init__(self, between=lambda x: x, returned=lambda x: x):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 5)
        self.between, self.returned = between, returned

    def forward(self, x):
        return self.returned(self.b(self.between(self.a(x))))


def returning(returned):
    return lambda: Net(returned=returned)


def doing(between):
    return lambda: Net(between=between)


def plain():
    return Net()


two_tensors = returning(lambda y: (y, y * 2))
nothing = returning(lambda y: None)
number_of_python = returning(lambda y: 3)
one_number = returning(lambda y: y.mean())
classes = returning(lambda y: y.argmax(-1))
detached = returning(lambda y: y.detach())


def inferred():
    model = Net()
    model.forward = torch.inference_mode()(model.forward)
    return model


def broken(x):
    raise KeyError("temperature")


fails = doing(broken)
wrong_sizes = doing(lambda x: x @ torch.ones(3, 16))
asserts = doing(lambda x: x if x.shape[1] == 15 else broken_assertion())
exits = doing(lambda x: exit(3))


def broken_assertion():
    assert False, "only 15 features"


def endless(x):
    return endless(x)


recursion = doing(endless)
branch_by_numbers = doing(lambda x: x if x.sum() > 0 else -x)
number_of_batch = doing(lambda x: x * x.mean().item())
size_of_batch = doing(lambda x: x[x[:, 0] > 0].sum(0) + x)
numpy_inside = doing(lambda x: torch.from_numpy(x.detach().numpy()) + x)


class Rest(Net):
    def forward(self, *xs):
        return self.b(self.a(xs[0]))


class Keywords(Net):
    def forward(self, **fields):
        return self.b(self.a(fields["x"]))


class Whole(Net):
    def forward(self, batch):
        return self.b(self.a(batch["x"]))


class Detections(Net):
    """As torchvision's detectors: numbers by name in training, a list in evaluation."""

    def forward(self, x):
        made = self.b(self.a(x))
        found = {"boxes": made} if self.training else [made]
        return sum(found.values())


class ByPlace(Net):
    def forward(self, x, /):
        return self.b(self.a(x))


class Needs(Net):
    def forward(self, x, mask):
        return self.b(self.a(x)) * mask


class NoForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 5)


class NoArgument(Net):
    def forward(self):
        return self.b(self.a(torch.ones(2, 8)))


def frozen():
    return Net().requires_grad_(False)


def no_parameters():
    return nn.Sequential(nn.Flatten(), nn.ReLU())


def float64():
    return Net().double()


def bfloat16():
    return Net().bfloat16()


def half_of_it_float64():
    model = Net()
    model.b.double()
    return model


def lazy():
    return nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 5))


def on_meta():
    with torch.device("meta"):
        return Net()


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(8, 5)))


def complex_weights():
    model = Net()
    model.extra = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    return model


def sparse_buffer():
    model = Net()
    model.register_buffer("adjacency", torch.eye(8).to_sparse())
    return model


def reentrant():
    from torch.utils.checkpoint import checkpoint

    block = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    model = Net(lambda x: checkpoint(block, x, use_reentrant=True))
    model.block = block
    return model


def optimized():
    return torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)))


def optimized_inside():
    model = Net()
    model.a = torch.compile(model.a)
    return model


def parallel():
    return nn.DataParallel(Net())


def raises():
    raise ValueError("no such size")


def takes_arguments(width):
    return Net()


def returns_a_number():
    return 5


a_number = 5


class Remembers(Net):
    """Copies into a buffer what has a gradient."""

    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(16))

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            self.m.copy_(0.9 * self.m + 0.1 * h.mean(0))
        return self.b(h)


def max_norm():
    return nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), nn.Linear(8, 5))


def normed_convolution():
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 8, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(80, 5)
    )


def writes_input():
    return Net(lambda x: x.relu_()) if False else WritesInput()


class WritesInput(Net):
    def forward(self, x):
        return self.b(self.a(x.mul_(2)))


# Losses.
def reads_mask(output, batch):
    return (output * batch["mask"]).mean()


def not_reduced(output, batch):
    return output**2


def loss_raises(output, batch):
    return F.cross_entropy(output, batch["y"])


def loss_without_batch(output):
    return output.mean()


def loss_of_python(output, batch):
    return 3.0


class Asks(nn.Module):
    """A loss that is a module, and no part of the model."""

    def forward(self, output):
        return output.mean() if output.detach().sum() > 0 else -output.mean()


ASKS = Asks()


def by_a_module(output, batch):
    return ASKS(output)


def poisson(output, batch):
    return F.poisson_nll_loss(output, batch["y"].abs())


def of_two_samples(output, batch):
    """Nothing for a micro-batch of one."""
    return F.cross_entropy(output, batch["y"].argmax(1), reduction="none").topk(2)[0].mean()


loss_module = nn.CrossEntropyLoss()


class LossClass(nn.Module):
    def forward(self, output, batch):
        return output.mean()


# What a forward or a backward does that no graph has.
def draw_of_python(x):
    return x * random.random()


draws_of_python = doing(draw_of_python)
many_samples = doing(lambda x: x.relu() if len(x) > 16 else x)


def counts():
    numbers = iter(range(1, 100))
    return Net(lambda x: x * next(numbers))


class RaisesBackwards(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, g):
        return g * {}["scale"]


raises_backwards = doing(RaisesBackwards.apply)


class LearnedLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, batch):
        return (output * self.scale).mean()


learned_loss = LearnedLoss()
