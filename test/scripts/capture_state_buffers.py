"""State in buffers: what a capture follows, and what it refuses (capture_state_case.py)."""

import torch
from torch import nn
from torch.nn import functional as F

from capture_state_case import WIDTH, case, mean, starting, zeros

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
        setattr(self, "m", torch.maximum(self.m, h.detach().amax(0)))  # noqa: B010  # the case is this
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


@case(
    "torch.where, with a flag that is a buffer",
    start=starting(m=torch.zeros(WIDTH), ready=torch.zeros((), dtype=torch.bool)),
)
def _(self, h):
    if self.training:
        self.m = torch.where(self.ready, self.m, mean(h))
        self.ready = torch.ones_like(self.ready)
    return h - self.m


@case(
    "a counter, and a mean without bias",
    start=starting(m=torch.zeros(WIDTH), n=torch.zeros((), dtype=torch.int64)),
)
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


@case(
    "one that is not persistent",
    start=lambda self: self.register_buffer("m", torch.zeros(WIDTH), persistent=False),
)
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


@case(
    "a queue with a pointer that is a buffer",
    start=starting(q=torch.zeros(7, WIDTH), at=torch.zeros(1, dtype=torch.int64)),
)
def _(self, h):
    y = h + self.q.clone().mean(0)
    if self.training:
        places = (self.at + torch.arange(h.shape[0])) % 7
        self.q[places] = h.detach()
        self.at[0] = (self.at[0] + h.shape[0]) % 7
    return y


@case(
    "a queue whose pointer is read as a number",
    "depends on the batch's numbers",
    start=starting(q=torch.zeros(16, WIDTH), at=torch.zeros(1, dtype=torch.int64)),
)
def _(self, h):
    if self.training:
        at = int(self.at)
        self.q[at : at + h.shape[0]] = h.detach()
        self.at[0] = (at + h.shape[0]) % 16
    return h + self.q.mean(0)


@case(
    "a queue whose pointer is a number of Python",
    "module '1'",
    "capture_state_buffers.py",
    "'1.at' from 0 to 2",
    "register_buffer",
    start=starting(q=torch.zeros(64, WIDTH), at=0),
)
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


@case(
    "a codebook of VQ-VAE",
    start=starting(
        book=torch.arange(24.0).view(4, WIDTH).sin(),
        size=torch.ones(4),
        total=torch.arange(24.0).view(4, WIDTH).sin(),
    ),
)
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


@case(
    "batch norm, twice", start=starting(norm=nn.BatchNorm1d(WIDTH, affine=False), f=nn.Linear(WIDTH, WIDTH))
)
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


@case(
    "spectral norm of old",
    start=starting(f=nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))),
    left_out=("f.weight",),
)
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


@case(
    "a buffer that is a view of another",
    "in a way that no graph has",
    start=lambda self: [
        self.register_buffer("a", torch.zeros(2, WIDTH)),
        self.register_buffer("b", self.a[0]),
    ],
)
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


@over_layers("a frozen first layer", 3, start=lambda self: [linears(self), self.a.requires_grad_(False)])
def _(self, h):
    return self.c(torch.tanh(self.b(torch.relu(self.a(h)))))


@over_layers(
    "a frozen backbone",
    3,
    start=lambda self: [linears(self), self.a.requires_grad_(False), self.b.requires_grad_(False)],
)
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


@case(
    "a buffer that grows",
    "module '1'",
    "capture_state_buffers.py",
    "[2, 6] of buffer",
    "keeps its shape",
    start=starting(q=torch.zeros(0, WIDTH)),
)
def _(self, h):
    if self.training:
        self.q = torch.cat([self.q, h.detach()])
    return h


@case(
    "a buffer that becomes another type",
    "module '1'",
    "of buffer '1.n'",
    "shape and type",
    start=starting(n=torch.zeros((), dtype=torch.int64)),
)
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
