"""Small modules with state of every kind, and how each is captured: equal to eager, or refused with these words.

Each stands between two linear layers: its step takes the first one's output. `start` gives the module its state.
"""

import collections
import itertools
import random
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 6


class Stateful(nn.Module):
    def __init__(self, start, step):
        super().__init__()
        self.step = step
        start(self)

    def forward(self, h):
        return self.step(self, h)


@dataclass
class Case:
    name: str
    step: object
    start: object
    words: tuple  # of the refusal; none: equal
    left_out: tuple = ()  # attributes that no forward reads
    differs: str = ""  # the part of the self-check that differs
    alone: bool = False  # the module is the model, nothing around it
    prepare: object = None  # of the whole model
    layers: int = None  # how many; None: any number

    def build(self):
        torch.manual_seed(0)
        own = Stateful(self.start, self.step)
        model = own if self.alone else nn.Sequential(nn.Linear(8, WIDTH), own, nn.Linear(WIDTH, 4))
        if self.prepare:
            self.prepare(model)
        return model


CASES = []


def zeros(self):
    self.register_buffer("m", torch.zeros(WIDTH))


def case(name, *words, start=zeros, **how):
    return lambda step: CASES.append(Case(name, step, start, words, **how))


def starting(**buffers):
    """A start with these buffers, or attributes where they are no tensors."""

    def start(self):
        for name, value in buffers.items():
            self.register_buffer(name, value.clone()) if isinstance(value, torch.Tensor) else setattr(self, name, value)

    return start


def mean(h):
    return h.detach().mean(0)


# Buffers that are followed.


@case("assigned")
def _(self, h):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return h - self.m


@case("assigned, in the model itself", alone=True, start=starting(m=torch.zeros(8), f=nn.Linear(8, 4)))
def _(self, h):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return self.f(h - self.m)


@case("assigned, and the old one is read in the backward", start=starting(m=torch.ones(WIDTH)))
def _(self, h):
    y = h * self.m
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return y


@case("assigned twice")
def _(self, h):
    if self.training:
        self.m = self.m + mean(h)
        h = h * self.m
        self.m = self.m * 0.5
    return h


@case("the old one is read behind the assignment")
def _(self, h):
    old = self.m
    if self.training:
        self.m = old + mean(h)
    return h - old * 2


@case("read by a view of the old one", start=starting(m=torch.zeros(2, WIDTH)))
def _(self, h):
    row = self.m[0]
    if self.training:
        self.m = self.m + mean(h)
    return h - row


@case("setattr, and by the parent")
def _(self, h):
    if self.training:
        setattr(self, "m", torch.maximum(self.m, h.detach().amax(0)))
    return h + self.m


@case("registered again")
def _(self, h):
    if self.training:
        self.register_buffer("m", self.m + mean(h))
    return h + self.m


@case("put into _buffers")
def _(self, h):
    if self.training:
        self._buffers["m"] = self.m + mean(h)
    return h + self.m


@case("mul_ and add_ in a chain, no_grad")
def _(self, h):
    if self.training:
        with torch.no_grad():
            self.m.mul_(0.9).add_(h.mean(0), alpha=0.1)
    return h - self.m


@case("mul_ and add_ as two statements")
def _(self, h):
    if self.training:
        self.m.mul_(0.9)
        self.m.add_(mean(h), alpha=0.1)
    return h - self.m


@case("three writes, with reads between")
def _(self, h):
    if self.training:
        with torch.no_grad():
            self.m.mul_(0.9)
            y = h - self.m
            self.m.add_(y.mean(0))
            self.m.clamp_(-0.1, 0.1)
    return h + self.m


@case("copy_ under no_grad")
def _(self, h):
    if self.training:
        with torch.no_grad():
            self.m.copy_(0.9 * self.m + 0.1 * h.mean(0))
    return h


@case("lerp_")
def _(self, h):
    if self.training:
        self.m.lerp_(mean(h), 0.1)
    return h - self.m


@case("+= and *=")
def _(self, h):
    if self.training:
        self.m += mean(h)
        self.m *= 0.5
    return h - self.m


@case("the whole slice")
def _(self, h):
    if self.training:
        self.m[:] = mean(h)
    return h - self.m


@case("one element, which nothing reads")
def _(self, h):
    if self.training:
        self.m[0] = mean(h)[1]
    return h


@case("a slice of a slice", start=starting(m=torch.zeros(3, WIDTH)))
def _(self, h):
    if self.training:
        self.m[1][2:] = mean(h)[2:]
    return h + self.m.sum(0)


@case("detach().mul_(), which nothing reads", start=starting(m=torch.ones(WIDTH)))
def _(self, h):
    if self.training:
        self.m.detach().mul_(0.5)
    return h


@case("data.mul_()", start=starting(m=torch.ones(WIDTH)))
def _(self, h):
    if self.training:
        self.m.data.mul_(0.5).add_(mean(h))
    return h + self.m


@case(".data assigned", "module '1'", "'1.m'", "in a way that no graph has", "copy_()")
def _(self, h):
    if self.training:
        self.m.data = self.m + mean(h)
    return h + self.m


@case("out=")
def _(self, h):
    if self.training:
        torch.maximum(self.m, h.detach().amax(0), out=self.m)
    return h + self.m


@case("masked_fill_, index_add_ and scatter_add_", start=starting(m=torch.zeros(WIDTH), n=torch.zeros(WIDTH)))
def _(self, h):
    if self.training:
        first = h.detach().argmax(1)
        self.n.scatter_add_(0, first, torch.ones(h.shape[0]))
        self.m.index_add_(0, first, h.detach()[:, 0])
        self.m.masked_fill_(self.m > 0.5, 0.5)
    return h + self.m / (1 + self.n)


@case("torch.where, with a flag that is a buffer", start=starting(m=torch.zeros(WIDTH), ready=torch.zeros((), dtype=torch.bool)))
def _(self, h):
    if self.training:
        self.m = torch.where(self.ready, self.m, mean(h))
        self.ready = torch.ones_like(self.ready)
    return h - self.m


@case("a counter, and a mean without bias", start=starting(m=torch.zeros(WIDTH), n=torch.zeros((), dtype=torch.int64)))
def _(self, h):
    if self.training:
        self.n += 1
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return h - self.m / (1 - 0.9**self.n + 1e-3)


@case("a counter that is 0-dimensional and assigned", start=starting(n=torch.zeros(())))
def _(self, h):
    if self.training:
        self.n = self.n + 1
    return h / (1 + self.n)


@case("two that are swapped", start=starting(a=torch.zeros(WIDTH), b=torch.ones(WIDTH)))
def _(self, h):
    y = h * self.a
    if self.training:
        self.a, self.b = self.b, self.a
    return y


@case("one follows another", start=starting(now=torch.zeros(WIDTH), before=torch.ones(WIDTH)))
def _(self, h):
    if self.training:
        self.before = self.now
        self.now = mean(h)
    return h + self.before


@case("one is copied from another", start=starting(now=torch.zeros(WIDTH), before=torch.ones(WIDTH)))
def _(self, h):
    if self.training:
        self.before.copy_(self.now)
        self.now.copy_(mean(h))
    return h + self.before


@case("one that is not persistent", start=lambda self: self.register_buffer("m", torch.zeros(WIDTH), persistent=False))
def _(self, h):
    if self.training:
        self.m = self.m + mean(h)
    return h - self.m


@case("a queue, by cat", start=starting(q=torch.arange(12.0).view(2, WIDTH) / 12))
def _(self, h):
    y = h @ self.q.T @ self.q
    if self.training:
        with torch.no_grad():
            self.q = torch.cat([h[:1], self.q[:-1]])
    return y


@case("a queue, by roll", start=starting(q=torch.zeros(4, WIDTH)))
def _(self, h):
    if self.training:
        self.q.copy_(self.q.roll(1, 0))
        self.q[0] = mean(h)
    return h + self.q.mean(0)


@case("a queue with a pointer that is a buffer", start=starting(q=torch.zeros(7, WIDTH), at=torch.zeros(1, dtype=torch.int64)))
def _(self, h):
    y = h + self.q.clone().mean(0)
    if self.training:
        places = (self.at + torch.arange(h.shape[0])) % 7
        self.q[places] = h.detach()
        self.at[0] = (self.at[0] + h.shape[0]) % 7
    return y


@case("a queue whose pointer is read as a number", "depends on the batch's numbers", start=starting(q=torch.zeros(16, WIDTH), at=torch.zeros(1, dtype=torch.int64)))
def _(self, h):
    if self.training:
        at = int(self.at)
        self.q[at : at + h.shape[0]] = h.detach()
        self.at[0] = (at + h.shape[0]) % 16
    return h + self.q.mean(0)


@case("a queue whose pointer is a number of Python", "module '1'", "capture_state_cases.py", "'1.at' from 0 to 2", "register_buffer", start=starting(q=torch.zeros(64, WIDTH), at=0))
def _(self, h):
    if self.training:
        self.q[self.at : self.at + h.shape[0]] = h.detach()
        self.at = (self.at + h.shape[0]) % 64
    return h + self.q.mean(0)


@case("the centre of DINO", start=starting(center=torch.zeros(1, WIDTH)))
def _(self, h):
    out = h - self.center
    if self.training:
        with torch.no_grad():
            self.center = self.center * 0.9 + h.mean(0, keepdim=True) * 0.1
    return out


@case("a codebook of VQ-VAE", start=starting(book=torch.arange(24.0).view(4, WIDTH).sin(), size=torch.ones(4), total=torch.arange(24.0).view(4, WIDTH).sin()))
def _(self, h):
    distance = h.pow(2).sum(1, keepdim=True) - 2 * h @ self.book.T + self.book.pow(2).sum(1)
    chosen = F.one_hot(distance.argmin(1), 4).to(h.dtype)
    nearest = chosen @ self.book
    if self.training:
        self.size.data.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        self.total.data.mul_(0.9).add_(chosen.T @ h.detach(), alpha=0.1)
        self.book.data.copy_(self.total / self.size.unsqueeze(1))
    return h + (nearest - h).detach()


def teacher(self):
    self.student, self.teacher = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    self.teacher.requires_grad_(False)


@case("a teacher that follows its student", start=teacher)
def _(self, h):
    if self.training:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.student.parameters()):
                own.data.mul_(0.9).add_(other.data, alpha=0.1)
    return self.student(h) - self.teacher(h).detach()


@case("a buffer of a child", start=starting(child=nn.BatchNorm1d(WIDTH)))
def _(self, h):
    if self.training:
        self.child.running_mean = self.child.running_mean * 0.5
    return self.child(h)


@case("batch norm, twice", start=starting(norm=nn.BatchNorm1d(WIDTH, affine=False), f=nn.Linear(WIDTH, WIDTH)))
def _(self, h):
    return self.norm(self.f(self.norm(h)))


@case("instance norm with statistics", start=starting(norm=nn.InstanceNorm1d(1, track_running_stats=True)))
def _(self, h):
    return self.norm(h.unsqueeze(1)).squeeze(1)


@case("batch norm by hand", start=starting(m=torch.zeros(WIDTH), v=torch.ones(WIDTH)))
def _(self, h):
    return F.batch_norm(h, self.m, self.v, training=self.training, momentum=0.2)


@case("batch renorm", start=starting(m=torch.zeros(WIDTH), v=torch.ones(WIDTH)))
def _(self, h):
    if not self.training:
        return (h - self.m) / (self.v + 1e-3)
    deviation = ((h - h.mean(0)).square().mean(0) + 1e-3).sqrt()
    r, d = (deviation / self.v).detach(), ((h.mean(0) - self.m) / self.v).detach()
    self.m += 0.1 * (mean(h) - self.m)
    self.v += 0.1 * (deviation.detach() - self.v)
    return (h - h.mean(0)) / deviation * r + d


@case("spectral norm of old", start=starting(f=nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))), left_out=("f.weight",))
def _(self, h):
    return self.f(h)


@case("spectral norm", start=starting(f=nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))))
def _(self, h):
    return self.f(h)


@case("dropout and a mean of what it leaves")
def _(self, h):
    h = F.dropout(h, 0.5, self.training)
    if self.training:
        self.m = 0.5 * self.m + 0.5 * mean(h)
    return h - self.m


def two_names(self):
    self.register_buffer("a", torch.zeros(WIDTH))
    self.child = nn.Module()
    self.child.register_buffer("b", self.a)


@case("one buffer under two names", start=two_names)
def _(self, h):
    if self.training:
        self.a.add_(mean(h))
    return h + self.child.b


@case("a buffer that is a view of another", "in a way that no graph has", start=lambda self: [self.register_buffer("a", torch.zeros(2, WIDTH)), self.register_buffer("b", self.a[0])])
def _(self, h):
    if self.training:
        self.a.add_(mean(h))
    return h + self.b


# State and gradients over several layers: what a layer holds, no other holds a copy of.


def linears(self):
    self.a, self.b, self.c = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    zeros(self)
    self.register_buffer("n", torch.zeros(()))


def over_layers(name, layers, start=linears):
    return case(name, start=start, alone=True, layers=layers)


def follow(self, k):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(k)


@over_layers("written in one layer, read in evaluation in another", 2)
def _(self, h):
    h = torch.relu(self.a(h))
    h = h if self.training else h - self.m
    k = torch.tanh(self.b(h))
    follow(self, k)
    return self.c(k)


@over_layers("written in one layer, read in evaluation behind it", 2)
def _(self, h):
    h = torch.relu(self.a(h))
    follow(self, h)
    k = torch.tanh(self.b(h))
    return self.c(k if self.training else k - self.m)


@over_layers("written and read across layers", 2)
def _(self, h):
    k = torch.tanh(self.b(torch.relu(self.a(h)) - self.m))
    follow(self, k)
    return self.c(k)


@over_layers("a counter at the begin, read at the end", 1)
def _(self, h):
    if self.training:
        self.n.add_(1)
    return self.c(torch.tanh(self.b(torch.relu(self.a(h))))) / (1 + self.n)


@over_layers("a counter that evaluation alone reads", 1)
def _(self, h):
    h = torch.relu(self.a(h))
    h = h if self.training else h / (1 + self.n)
    y = self.c(torch.tanh(self.b(h)))
    if self.training:
        self.n.add_(1)
    return y


def with_teacher(self):
    linears(self)
    self.t = nn.Linear(8, WIDTH).requires_grad_(False)


@over_layers("a teacher of the first layer, updated in training", 3, start=with_teacher)
def _(self, h):
    if self.training:
        with torch.no_grad():
            self.t.weight.data.mul_(0.99).add_(self.a.weight.data, alpha=0.01)
    return self.c(torch.tanh(self.b(torch.relu(self.a(h)) + self.t(h))))


@over_layers("a frozen first layer", 2, start=lambda self: [linears(self), self.a.requires_grad_(False)])
def _(self, h):
    return self.c(torch.tanh(self.b(torch.relu(self.a(h)))))


@over_layers("a frozen backbone", 1, start=lambda self: [linears(self), self.a.requires_grad_(False), self.b.requires_grad_(False)])
def _(self, h):
    return self.c(torch.tanh(self.b(torch.relu(self.a(h)))))


@over_layers("a backbone under no_grad", 1)
def _(self, h):
    with torch.no_grad():
        h = torch.tanh(self.b(torch.relu(self.a(h))))
    return self.c(h)


@over_layers("a gradient that stops", 2)
def _(self, h):
    return self.c(torch.tanh(self.b(torch.relu(self.a(h)).detach())))


# Buffers that are refused.


@case("a buffer that keeps its graph", "second forward", "detach()")
def _(self, h):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * h.mean(0)
    return h - self.m


@case("a buffer that grows", "module '1'", "capture_state_cases.py", "[2, 6] of buffer", "keeps its shape", start=starting(q=torch.zeros(0, WIDTH)))
def _(self, h):
    if self.training:
        self.q = torch.cat([self.q, h.detach()])
    return h


@case("a buffer that becomes another type", "module '1'", "of buffer '1.n'", "shape and type", start=starting(n=torch.zeros((), dtype=torch.int64)))
def _(self, h):
    if self.training:
        self.n = self.n + 0.5
    return h * self.n


@case("a buffer that becomes None", "module '1'", "'1.m'", "buffer")
def _(self, h):
    y = h if self.m is None else h + self.m
    if self.training:
        self.m = None
    return y


@case("changed in evaluation too", differs="evaluation")
def _(self, h):
    self.m = 0.9 * self.m + 0.1 * mean(h)
    return h - self.m


# Parameters.


@case("an embedding with max_norm", "module '1.e'", "parameter '1.e.weight'", "max_norm", start=starting(e=nn.Embedding(4, WIDTH, max_norm=0.5)))
def _(self, h):
    return h + self.e(h.argmax(1) % 4)


@case("weights that are clamped", "module '1.f'", "capture_state_cases.py", "parameter '1.f.weight'", start=starting(f=nn.Linear(WIDTH, WIDTH)))
def _(self, h):
    with torch.no_grad():
        self.f.weight.clamp_(-0.1, 0.1)
    return self.f(h)


@case("weights that are new", "parameter '1.w'", start=lambda self: setattr(self, "w", nn.Parameter(torch.ones(WIDTH))))
def _(self, h):
    self.w = nn.Parameter(self.w.detach() * 0.5)
    return h * self.w


@case("an attribute that is a weight's memory", "'1.w'", "memory", "1.f.weight", start=lambda self: [setattr(self, "f", nn.Linear(WIDTH, WIDTH)), setattr(self, "w", self.f.weight.data.t())])
def _(self, h):
    return self.f(h) @ self.w


@case("two weights with one memory", "memory", "1.f.weight", "1.g.weight", start=lambda self: [setattr(self, "f", nn.Linear(WIDTH, WIDTH)), setattr(self, "g", nn.Linear(WIDTH, WIDTH)), setattr(self.g, "weight", nn.Parameter(self.f.weight.data.t()))])
def _(self, h):
    return self.g(self.f(h))


@case("one weight under two names", start=lambda self: [setattr(self, "f", nn.Linear(WIDTH, WIDTH)), setattr(self, "g", nn.Linear(WIDTH, WIDTH)), setattr(self.g, "weight", self.f.weight)])
def _(self, h):
    return self.g(torch.relu(self.f(h)))


@case("weights that lie otherwise", start=lambda self: setattr(self, "w", nn.Parameter(torch.eye(WIDTH).mul(0.5).add(0.1).t())))
def _(self, h):
    return F.linear(h, self.w)


@case("convolutions with channels last", start=lambda self: setattr(self, "f", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)).to(memory_format=torch.channels_last)))
def _(self, h):
    return h + self.f(h.view(-1, 1, 1, WIDTH).expand(-1, 3, 4, -1)).mean((1, 2))


# Other attributes.


def attribute(name, value):
    return lambda self: setattr(self, name, value())


def tensor():
    return torch.zeros(WIDTH)


@case("a tensor that is no buffer, assigned", "module '1'", "capture_state_cases.py", "tensor '1.m'", "register_buffer", start=attribute("m", tensor))
def _(self, h):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return h - self.m


@case("a tensor that is no buffer, in place", "module '1'", "capture_state_cases.py", "tensor '1.m'", start=attribute("m", tensor))
def _(self, h):
    if self.training:
        self.m.mul_(0.9).add_(mean(h), alpha=0.1)
    return h - self.m


@case("a tensor in a dict, assigned", "module '1'", "tensor \"1.state['m']\"", start=lambda self: setattr(self, "state", {"m": tensor()}))
def _(self, h):
    self.state["m"] = self.state["m"] + mean(h)
    return h - self.state["m"]


@case("a tensor in a list, in place", "module '1'", "capture_state_cases.py", "tensor '1.state[0]'", start=lambda self: setattr(self, "state", [tensor()]))
def _(self, h):
    self.state[0].add_(mean(h))
    return h - self.state[0]


@case("a list that grows", "module '1'", "'1.seen[0]'", start=lambda self: setattr(self, "seen", []))
def _(self, h):
    self.seen.append(mean(h))
    return h + self.seen[0]


@case("a deque of tensors", "module '1'", "'1.seen[0]'", start=lambda self: setattr(self, "seen", collections.deque([tensor()], maxlen=1)))
def _(self, h):
    y = h + self.seen[-1]
    self.seen.append(mean(h))
    return y


@dataclass
class Held:
    m: torch.Tensor = field(default_factory=tensor)
    n: int = 0


@case("a tensor in an object", "module '1'", "tensor '1.held.m'", start=lambda self: setattr(self, "held", Held()))
def _(self, h):
    self.held.m = self.held.m + mean(h)
    return h - self.held.m


@case("a number in an object", "module '1'", "'1.held.n' from 0 to 1", start=lambda self: setattr(self, "held", Held()))
def _(self, h):
    self.held.n += 1
    return h * (1 + self.held.n)


@case("a number", "module '1'", "capture_state_cases.py", "'1.calls' from 0 to 1", start=attribute("calls", int))
def _(self, h):
    self.calls += 1
    return h / self.calls


@case("a number in a dict", "\"1.log['calls']\" from 0 to 1", start=lambda self: setattr(self, "log", collections.Counter(calls=0)))
def _(self, h):
    self.log["calls"] += 1
    return h * self.log["calls"]


@case("a flag", "'1.first' from True to False", start=attribute("first", lambda: True))
def _(self, h):
    if self.first:
        self.first = False
        return h * 2
    return h


@case("scales that the first batch gives", "module '1'", "capture_state_cases.py", "'1.scale'", start=attribute("scale", lambda: None))
def _(self, h):
    if self.scale is None:
        self.scale = h.detach().std()
    return h / self.scale


@case("an iterator", "'1.numbers'", start=attribute("numbers", lambda: itertools.count(1)))
def _(self, h):
    return h * next(self.numbers)


@case("a generator of random numbers", "'1.dice'", start=attribute("dice", lambda: random.Random(1)))
def _(self, h):
    return h * (1 + self.dice.random())


@case("Python's random numbers", "draws from Python's random", "torch.rand")
def _(self, h):
    return h * (1 + random.random())


TOTAL, CALLS = torch.zeros(WIDTH), [0]


@case("a global tensor", "module '1'", "capture_state_cases.py", "TOTAL")
def _(self, h):
    TOTAL.add_(mean(h))
    return h - TOTAL


@case("a number in a global list", "module '1'", "CALLS[0]")
def _(self, h):
    CALLS[0] += 1
    return h * CALLS[0]


def closed_over():
    total = [tensor()]

    @case("a tensor in a closure", "module '1'", "total")
    def _(self, h):
        total[0] = total[0] + mean(h)
        return h - total[0]


closed_over()


class Counted(nn.Module):
    calls = 0

    def forward(self, h):
        type(self).calls += 1
        return h * type(self).calls


@case("a number of a class", "calls", "from 0 to 1", start=starting(counted=Counted()))
def _(self, h):
    return self.counted(h)


@case("what no forward reads", start=starting(), left_out=("map", "shape[0]", "shape[1]"))
def _(self, h):
    self.map, self.shape = h.softmax(1), tuple(h.shape)
    return h


@case("a list made anew in each forward", start=starting(), left_out=("maps[0]", "maps[1]"))
def _(self, h):
    self.maps = []
    for scale in (1, 2):
        self.maps.append(h * scale)
    return h + self.maps[1]


@case("a table made by the first forward", start=attribute("table", lambda: None), left_out=("table",))
def _(self, h):
    if self.table is None:
        self.table = torch.arange(float(WIDTH)).cos()
    return h * self.table


@case("tables by size", start=attribute("tables", dict), left_out=("tables[6]",))
def _(self, h):
    if h.shape[1] not in self.tables:
        self.tables[h.shape[1]] = torch.arange(float(h.shape[1])).cos()
    return h * self.tables[h.shape[1]]


@case("a norm that the forward puts into evaluation", start=starting(norm=nn.BatchNorm1d(WIDTH)), left_out=("norm.training",))
def _(self, h):
    self.norm.eval()
    return torch.sigmoid(h)


# Hooks.


def halved(gradient):
    return gradient * 0.5


def plain(self, h):
    return torch.tanh(h)


for name, words, prepare in (
    ("a hook of a weight's gradient", ("parameter '0.weight'", "register_hook", "halved", "capture_state_cases.py"), lambda m: m[0].weight.register_hook(halved)),
    ("a hook of a summed gradient", ("parameter '2.bias'", "register_post_accumulate_grad_hook"), lambda m: m[2].bias.register_post_accumulate_grad_hook(lambda p: None)),
    ("a hook of a module's backward", ("module '0'", "hook of its backward", "torch.autograd.Function"), lambda m: m[0].register_full_backward_hook(lambda part, own, out: (own[0],))),
    ("a hook before a module's backward", ("module '2'", "hook of its backward"), lambda m: m[2].register_full_backward_pre_hook(lambda part, out: (out[0] * 2,))),
    ("a hook of the backward, of old", ("module '1'", "hook of its backward"), lambda m: m[1].register_backward_hook(lambda part, own, out: None)),
    ("a hook of the forward", (), lambda m: m[0].register_forward_hook(lambda part, given, made: made * 2)),
    ("a hook before the forward", (), lambda m: m[2].register_forward_pre_hook(lambda part, given: (given[0] + 1,))),
    ("a hook of the forward that keeps what it sees", ("module '0'", "_forward_hooks", "seen"), lambda m: (lambda seen: m[0].register_forward_hook(lambda part, given, made: seen.update(made=made.detach())))({})),
    ("weight norm of old", (), lambda m: nn.utils.weight_norm(m[2])),
):
    case(name, *words, start=starting(), prepare=prepare)(plain)


@case("a hook of a gradient in the forward", "capture_state_cases.py", "hook of a gradient", "autograd.Function", start=starting())
def _(self, h):
    h = torch.tanh(h)
    if h.requires_grad:
        h.register_hook(halved)
    return h


@case("a hook of a node of autograd", differs="gradients", start=starting())
def _(self, h):
    h = torch.tanh(h)
    if h.grad_fn is not None and hasattr(h.grad_fn, "register_prehook"):
        h.grad_fn.register_prehook(lambda given: (given[0] * 0.5,))
    return h


@case("what autograd keeps is rounded", "saved_tensors_hooks", start=starting())
def _(self, h):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        return h * h


class Closure(nn.Module):
    """As minGPT's block."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(WIDTH, 8), "b": nn.Linear(8, WIDTH)})
        parts = self.parts
        self.both = lambda x: parts.b(torch.relu(parts.a(x)))

    def forward(self, x):
        return x + self.both(x)


@case("a closure over children", start=starting(block=Closure()))
def _(self, h):
    return self.block(h)


class Beside(Stateful):
    def forward(self, h):
        return h + super().forward(h)


class Rounds(nn.Sequential):
    """Every case that equals eager in a run too, one behind the other; random draws are a run's own."""

    def __init__(self):
        torch.manual_seed(0)
        chosen = [case for case in CASES if not (case.words or case.differs or case.alone or case.prepare or "dropout" in case.name)]
        middle = [part for case in chosen for part in (Beside(case.start, case.step), nn.LayerNorm(WIDTH))]
        super().__init__(nn.Linear(8, WIDTH), *middle, nn.Linear(WIDTH, 5))


class Always(nn.Module):
    """Changes a buffer in evaluation too."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 5)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        h = self.f(x)
        self.mean = 0.9 * self.mean + 0.1 * mean(h)
        return h - self.mean
