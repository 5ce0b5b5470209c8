"""Modules whose Python depends on the number of samples, or on what outlasts a forward: captured where one
graph does for all sizes, else refused with the line of theirs that is marked, below, as the one that
differs."""

import gc
import inspect
import itertools
import os
import resource
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from places import FULL, covering
from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.capture import capture
from stagecraft_capture.check import check
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.losses import WithLoss, mse

torch.set_num_threads(1)
# What others show that Python decides by, or that one graph does for.
FULL_ALONE = (
    *("at least 16", "a cube", "another table", "in evaluation, otherwise than in training", "a generator"),
    *("a copy that many samples have no need of", "a constant of another number of samples"),
)
BY_SIZE = "a run has one graph for micro-batches of all sizes: let Python decide by settings"
BY_FORWARD = "in one forward and the next, with as many samples"
CASES = []


class Net(nn.Module):
    """Between two linear layers what `between` does."""

    def __init__(self, between, start=lambda self: None):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.between = between
        start(self)

    def forward(self, x):
        return self.d(self.between(self, self.a(x)))


def case(name, *words, start=lambda self: None, captured=False):
    """With no `captured` it is refused, with these words besides the place."""
    if name in FULL_ALONE and not FULL:
        return lambda between: None
    return lambda between: CASES.append((name, between, start, words, captured))


def threshold(above):
    @case(f"a branch above {above}", "module 'b'", "linear reads c.weight, c.weight, b.weight", BY_SIZE)
    def _(self, h):
        return self.b(h) if h.shape[0] > above else self.c(h)  # differs


for _above in covering((3, 16, 64), (16,)):
    threshold(_above)


def divisor(by):
    @case(f"a branch on multiples of {by}", "the operator is", BY_SIZE)
    def _(self, h):
        if len(h) % by == 0:
            h = h.relu()  # differs
        return h


for _by in covering((2, 8, 32), (8,)):
    divisor(_by)


@case("in training alone", BY_SIZE)
def _(self, h):
    return h.relu() if self.training and len(h) > 8 else h.tanh()  # differs


@case("in evaluation alone", "in evaluation with micro-batches of 2, 3 and 96", BY_SIZE)
def _(self, h):
    return h.relu() if not self.training and len(h) > 8 else h.tanh()  # differs


@case("in evaluation, otherwise than in training", "in evaluation", BY_SIZE)
def _(self, h):
    return h.relu() if self.training or len(h) > 8 else h.tanh()  # differs


@case("at most 8", "slice.Tensor reads 2, 3, 8", BY_SIZE)
def _(self, h):
    return h - h[: min(len(h), 8)].mean(0)  # differs


@case("at least 16", "reads 16, 16, 96", BY_SIZE)
def _(self, h):
    return h * max(len(h), 16)  # differs


@case("a quarter", "mul.Tensor reads 0, 0, 24", BY_SIZE)
def _(self, h):
    return h * (len(h) // 4)  # differs


@case("a square", captured=True)
def _(self, h):
    return h * len(h) ** 2 / (3 * len(h) * (len(h) - 1))


@case("a cube", "reads 8, 27, 884736", BY_SIZE)
def _(self, h):
    return h * len(h) ** 3  # differs


@case("a number of Python", "mul.Tensor reads 1.0, 1.0, 2.0", BY_SIZE)
def _(self, h):
    return h * (2.0 if len(h) > 8 else 1.0)  # differs


@case("a loop for every tenth sample", "the operator is", BY_SIZE)
def _(self, h):
    for _ in range(len(h) // 10):
        h = h + 1  # differs
    return h


@case("a loop over the samples", BY_SIZE)
def _(self, h):
    return torch.stack([h[i] * 2 for i in range(len(h))])  # differs


@case(
    "pieces of 32",
    "split.Tensor makes [float32[2,6]], [float32[3,6]], [float32[32,6], float32[32,6], float32[32,6]]",
    BY_SIZE,
)
def _(self, h):
    return torch.cat([self.b(piece) for piece in h.split(32)])  # differs


@case("groups of 4", "reshape reads 2, 3, 4", BY_SIZE)
def _(self, h):
    return h + h.reshape(min(4, len(h)), -1, 6).mean(0).mean()  # differs


@case("no gradient of many", "the operator is", BY_SIZE)
def _(self, h):
    return self.b(h.detach() if len(h) > 30 else h)  # differs


@case("another constant", "reads 1.0, 1.0, 2.0", BY_SIZE)
def _(self, h):
    return h * torch.full((6,), 1.0 if len(h) < 16 else 2.0)  # differs


@case("another table", BY_SIZE)
def _(self, h):
    return h * torch.tensor([1.0, 2.0] * 3 if len(h) < 16 else [2.0, 1.0] * 3)  # differs


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, g):
        return g * (3 if g.shape[0] > 16 else 2)


class Forward(Backward):
    @staticmethod
    def forward(context, x):
        return x.tanh() if x.shape[0] > 16 else x * 2

    @staticmethod
    def backward(context, g):
        return g * 2


@case(
    "in a backward of its own",
    "in the backward of this, with micro-batches of",
    "mul.Tensor reads 2, 2, 3",
    BY_SIZE,
)
def _(self, h):
    return Backward.apply(h)  # differs


@case("in a function of its own", BY_SIZE)
def _(self, h):
    return Forward.apply(h)  # differs


@case("a root of the number of samples", "mul.Tensor reads 1.4142", BY_SIZE)
def _(self, h):
    return h * len(h) ** 0.5  # differs


def iterator(self):
    self.numbers = iter([1.0, 2.0, 3.0, 4.0] * 50)


@case("an iterator", BY_FORWARD, "register_buffer", start=iterator)
def _(self, h):
    return h * next(self.numbers)  # differs


def generator(self):
    self.numbers = (float(k) for k in itertools.count(1))


@case("a generator", BY_FORWARD, "register_buffer", start=generator)
def _(self, h):
    return h * next(self.numbers)  # differs


@case("the time", BY_FORWARD)
def _(self, h):
    return h * time.perf_counter()  # differs


@case("a file", BY_FORWARD)
def _(self, h):
    with open("count", "a+") as file:
        file.write("1")
        file.seek(0)
        return h * len(file.read())  # differs


# One graph does.
@case("sums and multiples", captured=True)
def _(self, h):
    return h / len(h) + (2 * len(h) + 1) * h.mean(0)


@case("a variance of the batch, in other operators", captured=True)
def _(self, h):
    difference = h - h.mean(0)
    return difference / (difference.square().mean(0) + 1e-5).sqrt()


@case("a variance of the batch", captured=True)
def _(self, h):
    return (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()


@case("deviations of the batch", captured=True)
def _(self, h):
    return h / (h.std(0) + h.view(-1, 2).std(0).mean() + torch.var_mean(h.view(-1, 3))[0] + h.var() + 1e-5)


@case("the same in both branches", captured=True)
def _(self, h):
    return h.relu() if len(h) > 16 else h.relu()  # noqa: RUF034


@case("a branch on one sample", captured=True)
def _(self, h):
    return h if len(h) == 1 else h.relu()


@case("a mask of all pairs of samples", captured=True)
def _(self, h):
    return h + (h @ h.T).masked_fill(torch.eye(len(h), dtype=torch.bool), 0.0).mean(-1, keepdim=True)


@case("a constant of another number of samples", captured=True)
def _(self, h):
    return h * torch.arange(6 * len(h))[:6]


@case("a copy from 64 samples on", captured=True)
def _(self, h):
    h = h.mT.contiguous().mT
    return h.contiguous() if len(h) >= 64 else h


@case("a copy that many samples have no need of", captured=True)
def _(self, h):
    h = h.mT.contiguous().mT
    if len(h) >= 64:
        h = h.contiguous()
    return h.relu().contiguous() + h.tanh()


@case("copies of many and of few", captured=True)
def _(self, h):
    first = h.mT.contiguous().mT
    second = (first.contiguous() if len(h) >= 64 else first).sin()
    third = second.contiguous() * 2
    return third.contiguous() if len(h) >= 64 else third


@case("a list with a number of each sample", captured=True)
def _(self, h):
    return h * torch.tensor([3.0] * len(h))[:, None] + torch.tensor([[0.5, 1, 2, 3, 4, 5]] * len(h))


@case("a list with another number of each sample", "reads constant/", BY_SIZE)
def _(self, h):
    return h * torch.tensor([1.0 + i for i in range(len(h))])[:, None]  # differs


@case("as many columns as samples", captured=True)
def _(self, h):
    return h + F.linear(h, torch.ones(96, 6)).mean(-1, keepdim=True)


def queue(self):
    self.register_buffer("queue", torch.zeros(16, 6))


@case("no more than 16 samples", captured=True, start=queue)
def _(self, h):
    with torch.no_grad():
        if self.training:
            self.queue[: len(h)] = h  # differs
    return h + self.queue.mean(0)


def place_of(function):
    """The marked line."""
    lines, first = inspect.getsourcelines(function)
    at = next(i for i, line in enumerate(lines) if line.rstrip().endswith("# differs"))
    return f'File "{os.path.abspath(inspect.getsourcefile(function))}", line {first + at},'


def captured(module, fields=(), loss=None, dtype=torch.float32):
    torch.manual_seed(0)
    batch = Batch([Field("x", [8], dtype), *fields])
    wrapped = WithLoss(module, loss)
    return wrapped, batch, capture(wrapped, batch, loss is not None)


def refused(words, *given):
    with pytest.raises(CaptureError) as error:
        captured(*given)
    said = str(error.value)
    for word in words:
        assert word in said
    assert "\n" not in said
    assert "wrapped" not in said


@pytest.mark.parametrize(
    ("between", "start", "words"),
    [pytest.param(*how, id=name) for name, *how, one_graph in CASES if not one_graph],
)
def test_refused(scratch, between, start, words):
    refused((place_of(between), *words), Net(between, start))


@pytest.mark.parametrize(
    ("between", "start"), [pytest.param(*how, id=name) for name, *how, _, one_graph in CASES if one_graph]
)
def test_captured(scratch, request, between, start):
    name = request.node.callspec.id
    module, batch, model = captured(Net(between, start))
    checked = check(module, model, batch.at(8))
    assert checked["output"] == checked["evaluation"] == "equal", checked
    assert checked["gradients"] == checked["equal"] > 0, checked
    fewer = "16 samples" in name
    assert model.sizes[-1] == (12 if fewer else 128 if "columns" in name else 96), model.sizes
    assert (place_of(between) in model.fails) if fewer else not model.fails, model.fails


def of_many(output, batch):
    return mse(output, batch) * (2 if len(output) > 5 else 1)  # differs


def test_losses():
    targets = [Field("targets", [4], torch.float32)]
    refused(
        (place_of(of_many), "mul.Tensor reads 1, 1, 2", BY_SIZE),
        Net(lambda self, h: h),
        targets,
        of_many,
    )


def of_pairs(output, batch):
    return (output @ output.T).square().mean() + (output @ output.T).sum() / (2 * len(output) ** 2)


def of_other_pairs(output, batch):
    alike = (output @ output.T).masked_fill(torch.eye(len(output)).bool(), 0)
    return alike.exp().sum() / (len(output) * (len(output) - 1))


def of_neighbours(output, batch):
    places = torch.arange(len(output))
    return F.cross_entropy(output @ output.T, places + 1 - places % 2 * 2)  # differs


def test_samples_in_pairs():
    """Of three samples one has no neighbour."""
    words = "with 3 samples", "Target 3 is out of bounds", "what goes in pairs is one sample"
    refused((place_of(of_neighbours), *words), Net(lambda self, h: h), (), of_neighbours)


@pytest.mark.parametrize("loss", [of_pairs, of_other_pairs])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_over_all_pairs_of_samples(loss, dtype):
    """They divide by a square of the number of samples."""
    module, batch, model = captured(Net(lambda self, h: h).to(dtype), (), loss, dtype)
    for b in (2, 5, 7):
        checked = check(module, model, batch.at(b))
        assert checked["output"] == checked["evaluation"] == checked["loss"] == "equal", checked
        assert checked["gradients"] == checked["equal"] > 0, checked


NUMBERS = 16384


class Wide(nn.Module):
    """Of few parameters and large values: for each sample 4 MiB behind the first layer, and as much in its
    mask."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 64), nn.Linear(64, 1)

    def forward(self, x):
        h = self.a(x[..., None]).relu()
        mask = torch.ones(len(x), x.shape[1], 64).tril()
        return self.b(h * mask[0]).mean(-1)


def test_memory():
    """Many samples need no memory."""
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.manual_seed(0)
    model = capture(WithLoss(Wide(), None), Batch([Field("x", [NUMBERS], torch.float32)]))
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    of_many = 96 * NUMBERS * 64 * 4 / 2**20
    print(f"a model with values of {of_many:.0f} MiB for 96 samples: {more:.0f} MiB more")
    assert model.sizes[-1] == 96 and more < of_many / 2, more
