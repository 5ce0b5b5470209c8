"""Tensors that a forward fills part by part: captured layers equal eager to the bit, and hand on what was
filled."""

import pytest

torch = pytest.importorskip("torch")

from capture_cases import equal, nn, numbers
from places import covering
from stagecraft_capture.batch import Field
from stagecraft_capture.losses import WithLoss

F = torch.nn.functional


class Filled(nn.Module):
    """`fill(self, x)` between two layers."""

    def __init__(self, fill, behind=True):
        super().__init__()
        self.fill = fill
        self.first, self.step = nn.Linear(16, 16), nn.GRUCell(16, 16)
        self.left, self.right = nn.Linear(16, 2), nn.Linear(16, 3)
        self.last = nn.Linear(16, 4) if behind else nn.Identity()

    def forward(self, x):
        return self.last(self.fill(self, self.first(x)))


def steps(self, x):
    made, state = torch.zeros(x.shape[0], 3, 16), x.new_zeros(x.shape[0], 16)
    for t in range(3):
        state = self.step(x[:, t], state)
        made[:, t] = state
    return made


def even_and_odd(_, x):
    made = torch.zeros_like(x)
    made[..., 0::2] = x[..., 1::2] * 2
    made[..., 1::2] = -x[..., 0::2]
    return made


def shifted(_, x):
    made = torch.zeros_like(x)
    made[:, :-1, :4] = x[:, 1:, :4]
    made[:, 1:, 4:8] = x[:, :-1, 4:8]
    made[:, :, 8:] = x[:, :, 8:].sin()
    return made


def heads(self, x):
    x = x.mean(1)
    made = x.new_empty(x.shape[0], 5)
    made[:, :2] = self.left(x)
    made[:, 2:] = self.right(x)
    return made


FILLED = {"steps": steps, "even and odd": even_and_odd, "shifted": shifted}


@pytest.mark.parametrize("kind", FILLED)
def test_between_layers(kind):
    torch.manual_seed(0)
    layers = equal(kind, Filled(FILLED[kind]), numbers(6, 16), 2)
    assert layers[-1].name == "last"  # what was filled goes on


def loss_of(output, batch):
    return F.cross_entropy(output, batch["y"])


def test_output():
    """The loss reads what the model has filled, not what it began with."""
    torch.manual_seed(0)
    module = WithLoss(Filled(heads, behind=False), loss_of)
    equal("heads", module, numbers(6, 16, more=[Field("y", [], below=5)]), 2, has_loss=True)


class Written(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.a, self.b, self.what = nn.Linear(6, 6), nn.Linear(6, 6), what

    def forward(self, x):
        return self.b(self.what(self.a(x) + 1))


def diagonal_of(fill):
    """Of a matrix of all samples."""

    def made(h):
        square = (h.t() @ h) * 0.5
        fill(square)
        return h + square.exp().sum()

    return made


def wrapped(h):
    tall = h[0].view(6, 1) * torch.ones(2)
    return h + tall.fill_diagonal_(0.5, wrap=True).sin().sum()


def of_a_cube(h):
    return h + (h[0, :3].expand(3, 3, 3) * 2).fill_diagonal_(0.5).sin().sum()


WRITTEN = {
    "diagonal, filled": diagonal_of(lambda m: m.fill_diagonal_(-9.0)),
    "diagonal, by a view": diagonal_of(lambda m: torch.diagonal(m).fill_(0.25)),
    "diagonal, by an index": diagonal_of(lambda m: m.index_put_([torch.arange(6)] * 2, torch.tensor(2.0))),
    "diagonal, by a mask": diagonal_of(lambda m: m.masked_fill_(torch.eye(6).bool(), -9.0)),
    "diagonal, scattered": lambda h: (h.t() @ h).diagonal_scatter(h[0].sin()).exp().sum() + h,
    "diagonal, around": wrapped,
    "diagonal of a cube": of_a_cube,
    # overloads in place have other names than those that return a new tensor
    "a power": lambda h: h.pow_(2),
    "powers": lambda h: h.pow_(torch.arange(6.0)),
    "turned": lambda h: h.unflatten(1, (2, 3)).transpose_(1, 2).flatten(1),
}


def test_written_in_place():
    """In one model. The norms give each ordinary numbers."""
    torch.manual_seed(0)
    parts = [part for what in WRITTEN.values() for part in (nn.LayerNorm(6), Written(what))]
    equal(", ".join(WRITTEN), nn.Sequential(*parts), numbers(6, name="input"), len(WRITTEN))


# In one model another sum hides the last bit of this one.
@pytest.mark.parametrize("what", covering(WRITTEN, ["diagonal of a cube"]))
def test_each_is_written_in_place(what):
    torch.manual_seed(0)
    equal(what, Written(WRITTEN[what]), numbers(6), 2)


def contrasted(output, batch):
    """SimCLR's, of samples that follow each other."""
    z = F.normalize(output, dim=1)
    alike = (z @ z.t()).fill_diagonal_(float("-inf"))
    others = torch.ones_like(alike).fill_diagonal_(0)
    return alike.logsumexp(1).mean() + (alike.detach().exp() * others).mean()


def test_a_loss_that_compares_no_sample_with_itself():
    torch.manual_seed(0)
    module = WithLoss(Written(torch.tanh), contrasted)
    equal("contrasted", module, numbers(6), 2, has_loss=True)
