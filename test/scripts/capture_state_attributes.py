"""State in parameters, other attributes, closures and hooks (capture_state_case.py)."""

import collections
import itertools
import random
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from capture_state_case import WIDTH, case, mean, starting

# Parameters.


@case(
    "an embedding with max_norm",
    "module '1.e'",
    "parameter '1.e.weight'",
    "max_norm",
    start=starting(e=nn.Embedding(4, WIDTH, max_norm=0.5)),
)
def _(self, h):
    return h + self.e(h.argmax(1) % 4)


@case(
    "weights that are clamped",
    "module '1.f'",
    "capture_state_attributes.py",
    "parameter '1.f.weight'",
    start=starting(f=nn.Linear(WIDTH, WIDTH)),
)
def _(self, h):
    with torch.no_grad():
        self.f.weight.clamp_(-0.1, 0.1)
    return self.f(h)


@case(
    "weights that are new",
    "parameter '1.w'",
    start=lambda self: setattr(self, "w", nn.Parameter(torch.ones(WIDTH))),
)
def _(self, h):
    self.w = nn.Parameter(self.w.detach() * 0.5)
    return h * self.w


@case(
    "an attribute that is a weight's memory",
    "'1.w'",
    "memory",
    "1.f.weight",
    start=lambda self: [
        setattr(self, "f", nn.Linear(WIDTH, WIDTH)),
        setattr(self, "w", self.f.weight.data.t()),
    ],
)
def _(self, h):
    return self.f(h) @ self.w


@case(
    "two weights with one memory",
    "memory",
    "1.f.weight",
    "1.g.weight",
    start=lambda self: [
        setattr(self, "f", nn.Linear(WIDTH, WIDTH)),
        setattr(self, "g", nn.Linear(WIDTH, WIDTH)),
        setattr(self.g, "weight", nn.Parameter(self.f.weight.data.t())),
    ],
)
def _(self, h):
    return self.g(self.f(h))


@case(
    "one weight under two names",
    start=lambda self: [
        setattr(self, "f", nn.Linear(WIDTH, WIDTH)),
        setattr(self, "g", nn.Linear(WIDTH, WIDTH)),
        setattr(self.g, "weight", self.f.weight),
    ],
)
def _(self, h):
    return self.g(torch.relu(self.f(h)))


@case(
    "weights that lie otherwise",
    # Many: PyTorch's optimizers treat the last elements in memory otherwise, of which few differ for it.
    start=lambda self: setattr(
        self, "w", nn.ParameterList(torch.eye(WIDTH).mul(0.5).add(0.1).t() for _ in range(32))
    ),
)
def _(self, h):
    return h + sum(F.linear(h, w) for w in self.w) / 32


@case(
    "convolutions with channels last",
    start=lambda self: setattr(
        self,
        "f",
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1)
        ).to(memory_format=torch.channels_last),
    ),
)
def _(self, h):
    return h + self.f(h.view(-1, 1, 1, WIDTH).expand(-1, 3, 4, -1)).mean((1, 2))


# Other attributes.


def attribute(name, value):
    return lambda self: setattr(self, name, value())


def tensor():
    return torch.zeros(WIDTH)


@case(
    "a tensor that is no buffer, assigned",
    "module '1'",
    "capture_state_attributes.py",
    "tensor '1.m'",
    "register_buffer",
    start=attribute("m", tensor),
)
def _(self, h):
    if self.training:
        self.m = 0.9 * self.m + 0.1 * mean(h)
    return h - self.m


@case(
    "a tensor that is no buffer, in place",
    "module '1'",
    "capture_state_attributes.py",
    "tensor '1.m'",
    start=attribute("m", tensor),
)
def _(self, h):
    if self.training:
        self.m.mul_(0.9).add_(mean(h), alpha=0.1)
    return h - self.m


@case(
    "a tensor in a dict, assigned",
    "module '1'",
    "tensor \"1.state['m']\"",
    start=lambda self: setattr(self, "state", {"m": tensor()}),
)
def _(self, h):
    self.state["m"] = self.state["m"] + mean(h)
    return h - self.state["m"]


@case(
    "a tensor in a list, in place",
    "module '1'",
    "capture_state_attributes.py",
    "tensor '1.state[0]'",
    start=lambda self: setattr(self, "state", [tensor()]),
)
def _(self, h):
    self.state[0].add_(mean(h))
    return h - self.state[0]


@case("a list that grows", "module '1'", "'1.seen[0]'", start=lambda self: setattr(self, "seen", []))
def _(self, h):
    self.seen.append(mean(h))
    return h + self.seen[0]


@case(
    "a deque of tensors",
    "module '1'",
    "'1.seen[0]'",
    start=lambda self: setattr(self, "seen", collections.deque([tensor()], maxlen=1)),
)
def _(self, h):
    y = h + self.seen[-1]
    self.seen.append(mean(h))
    return y


@dataclass
class Held:
    m: torch.Tensor = field(default_factory=tensor)
    n: int = 0


@case(
    "a tensor in an object",
    "module '1'",
    "tensor '1.held.m'",
    start=lambda self: setattr(self, "held", Held()),
)
def _(self, h):
    self.held.m = self.held.m + mean(h)
    return h - self.held.m


@case(
    "a number in an object",
    "module '1'",
    "'1.held.n' from 0 to 1",
    start=lambda self: setattr(self, "held", Held()),
)
def _(self, h):
    self.held.n += 1
    return h * (1 + self.held.n)


@case(
    "a number",
    "module '1'",
    "capture_state_attributes.py",
    "'1.calls' from 0 to 1",
    start=attribute("calls", int),
)
def _(self, h):
    self.calls += 1
    return h / self.calls


@case(
    "a number in a dict",
    "\"1.log['calls']\" from 0 to 1",
    start=lambda self: setattr(self, "log", collections.Counter(calls=0)),
)
def _(self, h):
    self.log["calls"] += 1
    return h * self.log["calls"]


@case("a flag", "'1.first' from True to False", start=attribute("first", lambda: True))
def _(self, h):
    if self.first:
        self.first = False
        return h * 2
    return h


@case(
    "scales that the first batch gives",
    "module '1'",
    "capture_state_attributes.py",
    "'1.scale'",
    start=attribute("scale", lambda: None),
)
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


@case("a global tensor", "module '1'", "capture_state_attributes.py", "TOTAL")
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


@case(
    "a norm that the forward puts into evaluation",
    start=starting(norm=nn.BatchNorm1d(WIDTH)),
    left_out=("norm.training",),
)
def _(self, h):
    self.norm.eval()
    return torch.sigmoid(h)


# Hooks.


def halved(gradient):
    return gradient * 0.5


def plain(self, h):
    return torch.tanh(h)


def keep_what_is_seen(module):
    module.seen = seen = {}
    module[0].register_forward_hook(lambda part, given, made: seen.update(made=made.detach()))


for name, words, prepare in (
    (
        "a hook of a weight's gradient",
        ("parameter '0.weight'", "register_hook", "halved", "capture_state_attributes.py"),
        lambda m: m[0].weight.register_hook(halved),
    ),
    (
        "a hook of a summed gradient",
        ("parameter '2.bias'", "register_post_accumulate_grad_hook"),
        lambda m: m[2].bias.register_post_accumulate_grad_hook(lambda p: None),
    ),
    (
        "a hook of a module's backward",
        ("module '0'", "hook of its backward", "torch.autograd.Function"),
        lambda m: m[0].register_full_backward_hook(lambda part, own, out: (own[0],)),
    ),
    (
        "a hook before a module's backward",
        ("module '2'", "hook of its backward"),
        lambda m: m[2].register_full_backward_pre_hook(lambda part, out: (out[0] * 2,)),
    ),
    (
        "a hook of the backward, of old",
        ("module '1'", "hook of its backward"),
        lambda m: m[1].register_backward_hook(lambda part, own, out: None),
    ),
    ("a hook of the forward", (), lambda m: m[0].register_forward_hook(lambda part, given, made: made * 2)),
    (
        "a hook before the forward",
        (),
        lambda m: m[2].register_forward_pre_hook(lambda part, given: (given[0] + 1,)),
    ),
    ("weight norm of old", (), lambda m: nn.utils.weight_norm(m[2])),
):
    case(name, *words, start=starting(), prepare=prepare)(plain)

case(
    "a hook of the forward that keeps what it sees",
    start=starting(),
    prepare=keep_what_is_seen,
    left_out=("seen['made']",),
)(plain)


@case(
    "features that a forward keeps and reads",
    start=attribute("features", dict),
    left_out=("features['h']",),
)
def _(self, h):
    self.features["h"] = torch.tanh(h)
    return h + self.features["h"]


@case("features of the forward before", "features['h']", start=attribute("features", dict))
def _(self, h):
    before = self.features.get("h", h)
    self.features["h"] = h.detach()
    return h + before


@case(
    "a hook of a gradient in the forward",
    "capture_state_attributes.py",
    "hook of a gradient",
    "autograd.Function",
    start=starting(),
)
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
