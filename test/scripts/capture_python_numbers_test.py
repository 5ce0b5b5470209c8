"""Numbers that Python reads of tensors which it made itself: known to a capture, and equal. Of tensors that
the batch or a write decides they are none."""

import pytest

torch = pytest.importorskip("torch")

from capture_cases import equal, equal_model, nn, numbers, refused
from places import FULL


def write(flags, value=1):
    flags[0] = value
    return flags


def off_diagonal(x):
    mask = torch.ones(3, 3).bool()
    mask.fill_diagonal_(False)
    mask[2:, 0] = False
    return x + (x[:, :3, None] * x[:, None, 3:])[:, mask].sum(1, keepdim=True)


ASKED = {
    "a write": lambda x: x * 2 if write(torch.zeros(3))[0] > 0 else x,
    "two writes": lambda x: x * 2 if write(torch.zeros(3)).add_(torch.ones(3)).mul_(2)[0] > 3 else x,
    "a mask that is written": off_diagonal,
    "axes of a mean": lambda x: x.mean(torch.arange(1, x.dim()).tolist(), keepdim=True) + x,
    "a product of sizes": lambda x: x.view(-1, int(torch.tensor(x.shape[1:]).prod())),
    "windows by tensors of sizes": lambda x: torch.cat(
        [part * 2 for part in x.split([h * w for h, w in torch.as_tensor([[1, 2], [2, 2]])], 1)], 1
    ),
    "starts of levels": lambda x: x.roll(
        torch.cat((torch.zeros(1, dtype=torch.long), torch.tensor([2, 4]).cumsum(0)))[1].item(), 1
    ),
    "a rate among many": lambda x: x * float(torch.linspace(0.1, 0.5, 5)[3]),
    "a branch": lambda x: x * 2 if torch.arange(3).sum() > 2 else x,
    "an index": lambda x: x * [1.0, 2.0, 3.0][torch.tensor(2)],
    "a loop": lambda x: sum(x * int(i) for i in torch.arange(1, 3)),
    "a range": lambda x: sum(x * i for i in range(torch.tensor(3))),
    "all but a diagonal": lambda x: x[:, [*range(6), 1, 2, 3]].view(-1, 3, 3)[:, ~torch.eye(3).bool()],
    "a mask first": lambda x: x.repeat(1, 2).T[torch.arange(12) % 2 > 0].T.contiguous(),
    "a layer that is never dropped": lambda x: x * 2 if torch.rand(1) > 0.0 else x,
    "one that always is": lambda x: x if torch.rand([]) < 1 else x * 2,
    "a size of a new tensor": lambda x: x + torch.ones(torch.tensor([2, 3]).prod()),
}


def doubled_or_refused(x):
    if x.max() > 0:
        x = x * 2
        if x.dim() > 2:
            raise ValueError
    return x


def set_data(flags, other=None):
    if other is None:
        flags.data[0] = 1
    else:
        flags.data = other.detach()
    return flags


NOT_KNOWN = {
    "a write of a sample's": lambda x: x * 2 if write(torch.zeros(3), x[0, 0].detach())[0] > 0 else x,
    "a write behind it": lambda x: x * 2 if write(torch.zeros(3), x[0, 0].detach()).add_(1)[1] > 0 else x,
    "a draw into it": lambda x: x * 2 if torch.zeros(3).normal_()[0] > 0 else x,
    "a write to a view": lambda x: x * 2 if (write((a := torch.zeros(3)).view(3)), a)[1].sum() > 0 else x,
    "a mask by samples": lambda x: x + x[:, x[0] > 0].sum(1, keepdim=True),
    "a line that refuses and does more": doubled_or_refused,
    "a sample's number": lambda x: x * 2 if torch.arange(6).mul(x[0]).sum() > 0 else x,
    "drawn numbers": lambda x: x * 2 if torch.poisson(torch.ones(3)).sum() > 1 else x,
    "a layer that may be dropped": lambda x: x * 2 if torch.rand(1) > 0.5 else x,
    "what a draw became": lambda x: x * 2 if torch.rand(1).mul_(-1) > 0.0 else x,
    "drawn in Python": lambda x: x * 2 if nn.functional.gumbel_softmax(torch.ones(3))[0] > 0.5 else x,
    "other memory": lambda x: x * 2 if set_data(torch.zeros(3), x[0, :3]).sum() > 0 else x,
    "a write to its data": lambda x: x * 2 if set_data(torch.zeros(3)).sum() > 0 else x,
    "samples written to it": lambda x: x * 2 if torch.zeros(6).copy_(x[0].detach()).sum() > 0 else x,
}


class Asks(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.a, self.b, self.what = nn.Linear(6, 6), nn.Linear(6, 6), what

    def forward(self, x):
        return self.b(self.what(self.a(x)))


def test_they_are_known():
    """In one model, layer behind layer: of each alone the export would be most of the work."""
    parts = [Asks(what) for what in ASKED.values()]
    equal(", ".join(ASKED), nn.Sequential(*parts), numbers(6, name="input"), len(parts))


if FULL:

    @pytest.mark.parametrize("what", ASKED)
    def test_each_is_known(what):
        equal(what, Asks(ASKED[what]), numbers(6), 1)


def test_a_list_that_changes_later():
    def shifted(x):
        sizes = [1, 5]
        made = torch.tensor(sizes)
        sizes[0] = 2
        return x.roll(made[0].item(), 1)

    equal("list", Asks(shifted), numbers(6), 1)


@pytest.mark.parametrize("what", NOT_KNOWN)
def test_others_are_refused(what):
    refused(what, Asks(NOT_KNOWN[what]), numbers(6), "_test.py", "depends on the batch's numbers")


def refuses(x):
    if x is not None and (x.isnan().any() or x.max() > 1e9):
        said = f"numbers up to {x.max()}"
        raise ValueError(said)
    return x


def asserts(x):
    assert x is not None and not x.isnan().any(), "no numbers"
    assert all((part < 1e9).all() for part in x.split(2, 1))
    assert torch.all(x < 1e9).item(), "large"
    return x


@pytest.mark.parametrize("what", [refuses, asserts])
def test_lines_that_refuse_numbers_do_not_look(what):
    model = equal_model(what.__name__, Asks(what), numbers(6), 1)
    assert "_test.py" in model.unchecked[0] and what.__name__ in model.unchecked[0], model.unchecked
    assert len(model.unchecked) == (1 if what is refuses else 3)
    assert not equal_model("nothing", Asks(torch.tanh), numbers(6), 1).unchecked


def clamps(x):
    x = x * x.detach().abs().exp().exp()
    if x.dim() == 2 and not torch.isfinite(x).all():
        most = torch.finfo(x.dtype).max / 1e30
        x = torch.clamp(x, min=-most, max=most)
    return x


def clamps_either(x):
    x = x * x.detach().abs().exp().exp()
    if x.dim() == 2 and (torch.isinf(x).any() or torch.isnan(x).any()):
        x = x.nan_to_num(0.5, 2.0, -2.0)
    return x


@pytest.mark.parametrize("what", [clamps, clamps_either])
def test_branches_that_mend_numbers_which_are_not_finite(what):
    """Of the samples some are: the exponential of an exponential. Half the micro-batches have none."""
    batch = numbers(6)
    batch.drawn["x"][2:] *= 1e3
    finite, _ = (torch.isfinite(Asks(what).eval()(batch.drawn["x"][i : i + 2])).all() for i in (0, 2))
    assert finite
    assert not equal_model(what.__name__, Asks(what), batch, 1).unchecked


def test_branches_that_do_something_else_with_them_are_refused():
    def doubles(x):
        if torch.isinf(x).any():
            x = x * 2
            x = x.exp()
        return x

    def both(x):
        if torch.isinf(x).any() and x.max() > 0:
            x = x.clamp(max=1.0)
        return x

    for what in (doubles, both):
        refused(what.__name__, Asks(what), numbers(6), "depends on the batch's numbers")
