"""Operators that few models have, in small modules: captured, and held against eager to the bit, forward and
backward."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from capture_cases import equal, nn, numbers

SPECIAL = torch.special


class Of(nn.Module):
    """What functions make of a layer's output, side by side."""

    def __init__(self, width, functions):
        super().__init__()
        self.first, self.functions = nn.Linear(width, width), functions

    def forward(self, x):
        y = self.first(x)
        return torch.cat([f(y).flatten(1) for f in self.functions], 1)


def parts(x):
    """Numbers between 0.1 and 0.9."""
    return x.sigmoid() * 0.8 + 0.1


def on(made_of, *names, space=torch):
    def of(function):
        return lambda x: function(made_of(x))

    return [of(getattr(space, name)) for name in names]


def known(made_of, *names, space=torch):
    """Without a derivative."""

    def of(function):
        return lambda x: x * function(made_of(x).detach())

    return [of(getattr(space, name)) for name in names]


def places(below, *shape):
    return torch.arange(torch.Size(shape).numel()).mul(7).remainder(below).view(shape)


GROUPS = {
    "elements": (
        6,
        [
            *on(
                parts,
                *"acos asin atan asinh atanh erfc erfinv log10 frac deg2rad rad2deg lgamma digamma".split(),
                *"logit i0".split(),
            ),
            *known(lambda x: x, "signbit", "isposinf", "isneginf", "angle"),
            lambda x: torch.acosh(parts(x) + 1.5),
            lambda x: torch.logit(parts(x), eps=0.3),
            lambda x: torch.polygamma(2, parts(x) + 0.5) + torch.polygamma(1, parts(x)),
            lambda x: torch.mvlgamma(parts(x) + 2, 3),
            lambda x: SPECIAL.gammainc(torch.tensor(2.0), parts(x)),
            lambda x: SPECIAL.gammaincc(torch.tensor(2.0), parts(x)),
            lambda x: torch.xlogy(parts(x), parts(x)) + torch.xlogy(x, 2.0) + torch.xlogy(2.0, parts(x)),
            lambda x: torch.logaddexp(x, 2 * x) + torch.logaddexp2(x, 2 * x),
            lambda x: torch.fmod(x, 0.3) + torch.fmod(x, parts(x)) + torch.remainder(x, parts(x)),
            lambda x: x * torch.remainder(2.0, parts(x).detach()),
            lambda x: torch.fmax(x, -x) + torch.fmin(x, x * 2),
            lambda x: torch.copysign(x, -x) + torch.copysign(x, 1.0),
            lambda x: x * torch.heaviside(x.detach(), torch.ones(6)),
            lambda x: x * torch.nextafter(x.detach(), torch.ones(6)),
            lambda x: torch.ldexp(x, torch.arange(6)),
            lambda x: torch.frexp(x)[0],
            lambda x: torch.round(x.detach(), decimals=2) * x,
            lambda x: x * torch.isin(torch.arange(6), torch.tensor([1, 3])),
            lambda x: x * torch.gcd(torch.arange(6), torch.tensor(4)) * torch.lcm(places(6, 6), places(4, 6)),
            lambda x: x * (torch.arange(6) << 1) + x * (torch.arange(6) >> 1) + x * (torch.arange(6) ^ 3),
            lambda x: x * torch.bitwise_left_shift(places(6, 6), places(4, 6)),
        ],
    ),
    "special functions": (
        6,
        [
            *on(
                parts,
                *"entr erfcx i0e i1 i1e log_ndtr ndtri ndtr".split(),
                space=SPECIAL,
            ),
            *known(
                parts,
                *"bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1".split(),
                *"modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0".split(),
                *"scaled_modified_bessel_k1 spherical_bessel_j0 airy_ai".split(),
                space=SPECIAL,
            ),
            lambda x: SPECIAL.xlog1py(parts(x), parts(x)) + SPECIAL.xlog1py(x, 2.0),
            lambda x: SPECIAL.xlog1py(2.0, parts(x)),
            lambda x: SPECIAL.zeta(2.5, parts(x) + 1) + x * SPECIAL.zeta(parts(x).detach() + 2, 2.0),
        ],
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_operators(group):
    torch.manual_seed(0)
    width, functions = GROUPS[group]
    equal(group, Of(width, functions), numbers(width), 1)


class Cells(nn.Module):
    """Three steps of a cell."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell(4, 4)

    def forward(self, x):
        state = None
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state


def test_cells():
    torch.manual_seed(0)
    for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        equal(cell.__name__, Cells(cell), numbers(3, 4), 1)
