"""What rounds otherwise in a trace than in eager mode, or seems to: captured layers equal eager to the
bit."""

import pytest

torch = pytest.importorskip("torch")

from capture_cases import equal, equal_model, nn, numbers, refused
from places import FULL, covering
from stagecraft_capture.batch import Field
from stagecraft_capture.capture import capture
from stagecraft_capture.gaps import laid, with_gaps
from stagecraft_capture.losses import WithLoss
from stagecraft_capture.results import results_of

F = torch.nn.functional
LAST = torch.channels_last


class Between(nn.Module):
    """Two layers around what a function, or a module, does."""

    def __init__(self, between, first, last):
        super().__init__()
        self.first, self.between, self.last = first, between, last

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def rows(between):
    return Between(between, nn.Linear(8, 16), nn.Linear(16, 4))


def images(between, channels=8):
    return Between(between, nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(channels, 4, 1))


# For which autograd uses the result where they write in place, and others that may come to do so.
IN_PLACE = {
    "ELU": nn.ELU(0.7, inplace=True),
    "CELU": nn.CELU(0.7, inplace=True),
    "SELU": nn.SELU(inplace=True),
    "leaky ReLU": nn.LeakyReLU(0.1, inplace=True),
    "hardtanh": nn.Hardtanh(inplace=True),
    "SiLU": nn.SiLU(inplace=True),
    "mish": nn.Mish(inplace=True),
    "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(inplace=True),
    "threshold": nn.Threshold(0.1, 0.2, inplace=True),
    "sigmoid": lambda x: (x * 2).sigmoid_(),
    "tanh": lambda x: (x * 2).tanh_(),
    "exp": lambda x: (x * 2).exp_(),
    "sqrt": lambda x: (x * x + 1).sqrt_(),
}


def setting(index, value):
    def whole(x):
        a = x * 1.5
        a[index] = value(a)
        return a + x

    return whole


def zeros_at(where):
    """Zeros whose own gradient counts, in the place of what `where` says of x."""
    return lambda x: x - x.detach() * where(x)


one_zero, some_zeros = zeros_at(lambda x: torch.arange(16) == 5), zeros_at(lambda x: x < 0)
PRODUCTS = {
    "prod": lambda x: x * x.tanh().prod(),
    "prod over a dimension": lambda x: x * x.view(-1, 4, 4).prod(1).repeat(1, 4),
    "prod with one zero each": lambda x: one_zero(x).prod(-1, keepdim=True) + x,
    "prod with zeros": lambda x: (
        some_zeros(x).view(-1, 4, 4).prod(-2, keepdim=True).flatten(1).repeat(1, 4) + x
    ),
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod with one zero each": lambda x: one_zero(x).cumprod(1) + x,
    "cumprod with zeros": lambda x: some_zeros(x).cumprod(-1) + x,
    "cumprod, in place": lambda x: (x + 0).cumprod_(1),
}
WRITES = {
    "a[:] =": setting(slice(None), lambda a: a * 2 + 1),
    "a[:, 0:] =": setting((slice(None), slice(0, None)), lambda a: a * 2 + 1),
    "a[...] =": setting(..., lambda a: a.tanh()),
    "a[:] = a number": setting(slice(None), lambda a: 0.5),
    "a[:] = a column": setting(slice(None), lambda a: a[:, :1]),
    "a[:, 1:9] =": setting((slice(None), slice(1, 9)), lambda a: a[:, 2:10] * 2),
    "a[:, 3] =": setting((slice(None), 3), lambda a: a[:, 0]),
    "copy_": lambda x: (x * 2).copy_(x.tanh()),
}


def nhwc(x):
    return F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2)


def after_attention(x):
    return x.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).reshape(x.shape) + x


def half_of_channels(x):
    return torch.cat([x, x * 2], 1).to(memory_format=LAST).chunk(2, 1)[1]


class Pyramid(nn.Module):
    """Pooling to one pixel and to four, resized and put together."""

    def __init__(self):
        super().__init__()
        self.pools = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(s), nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
            )
            for s in (1, 2)
        )

    def forward(self, x):
        x = nhwc(x)
        return torch.cat(
            [x] + [F.interpolate(pool(x), size=x.shape[2:], mode="bilinear") for pool in self.pools], 1
        )


class Do(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.work = work

    def forward(self, x):
        return self.work(x)


def chain(*steps):
    return nn.Sequential(*(step if isinstance(step, nn.Module) else Do(step) for step in steps))


def resized(x):
    return F.interpolate(x, size=(6, 6), mode="bilinear")


LAYOUTS = {
    "GroupNorm on channels last": chain(nhwc, nn.GroupNorm(4, 8)),
    "GroupNorm behind attention": chain(after_attention, nn.GroupNorm(4, 8), nn.SiLU()),
    "GroupNorm on half of the channels": chain(half_of_channels, nn.GroupNorm(4, 8)),
    "GroupNorm on every other pixel": chain(lambda x: nhwc(x)[:, :, ::2, ::2], nn.GroupNorm(4, 8)),
    "convolution of half of the channels": chain(half_of_channels, nn.Conv2d(8, 8, 3, padding=1, groups=8)),
    "pooling to 1 x 1, batch norm, resized": chain(
        nhwc, nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), resized, nn.Conv2d(8, 8, 3, padding=1)
    ),
    "pooling to 1 x 1 without channels last": chain(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), resized),
    "pooling of rows to 1": lambda x: (
        F.adaptive_avg_pool1d(nhwc(x).flatten(2), 1).unsqueeze(-1).expand(x.shape) * x
    ),
    "pooling of volumes to 1": lambda x: (
        x
        * F.adaptive_avg_pool3d(
            nhwc(x).unsqueeze(2).contiguous(memory_format=torch.channels_last_3d), 1
        ).squeeze(2)
    ),
}


# Kernels of products are chosen by strides, those of sizes of 1 among them, which a view makes anew.
SINGLES = {
    "weighted rows by einsum": lambda x, w: torch.einsum("bn,bnd->bd", w.softmax(1).squeeze(-1), x),
    "weighted rows by bmm": lambda x, w: (w.softmax(1).mT @ x).squeeze(1),
    "weighted rows by columns": lambda x, w: (x.mT @ w.softmax(1)).squeeze(-1),
    "rows viewed behind a turn": lambda x, w: (
        torch.bmm(w.softmax(1).mT.view(-1, 1, x.shape[1]), x).mT.reshape(len(x), 1, -1).squeeze(1)
    ),
    "outer products": lambda x, w: torch.einsum("bd,bn->bnd", x.mean(1), w.squeeze(-1)).mean(1),
    "one head of attention": lambda x, w: F.scaled_dot_product_attention(
        w.mT.expand(-1, 1, -1) @ x, x, x
    ).view(len(x), -1),
    "the logarithm of a sigmoid": lambda x, w: (F.logsigmoid(x.mT).mT * w).sum(1),
}


class Weighted(nn.Module):
    """A sum of rows with weights, between layers."""

    def __init__(self, work):
        super().__init__()
        self.first, self.weigh, self.last, self.work = (
            nn.Linear(8, 64),
            nn.Linear(64, 1),
            nn.Linear(64, 4),
            work,
        )

    def forward(self, x):
        x = self.first(x)
        return self.last(self.work(x, self.weigh(x)))


CHOSEN = ["weighted rows by einsum", "weighted rows by columns", "one head of attention"]


@pytest.mark.parametrize("name", covering(SINGLES, [*CHOSEN, "the logarithm of a sigmoid"]))
def test_sizes_of_one(name):
    equal(name, Weighted(SINGLES[name]), numbers(16, 8), 2)


class ByMode(nn.Module):
    """What goes on lies otherwise in training than in evaluation."""

    def __init__(self, turned_in_training):
        super().__init__()
        self.first, self.middle, self.last = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
            nn.Conv2d(8, 4, 3, padding=1),
        )
        self.turned = turned_in_training

    def turn(self, x):
        turned = x.to(memory_format=LAST)
        return turned if self.training == self.turned else x.contiguous()

    def forward(self, x):
        return self.turn(self.last(self.turn(self.middle(self.turn(self.first(x))))))


BY_MODE = {
    "in training": (True, False),
    "in training, with a loss": (True, True),
    "in evaluation": (False, False),
    "in evaluation, with a loss": (False, True),
}


@pytest.mark.parametrize("name", covering(BY_MODE, ["in training", "in evaluation, with a loss"]))
def test_layouts_by_mode(name):
    turned, with_loss = BY_MODE[name]

    def loss(output, batch):
        return F.mse_loss(output, batch["target"])

    module, more = ByMode(turned), [Field("target", [4, 6, 6], torch.float32)] if with_loss else []
    model = equal_model(
        "layouts by mode",
        WithLoss(module, loss) if with_loss else module,
        numbers(3, 6, 6, more=more),
        3,
        has_loss=with_loss,
    )
    for layer in model.layers:
        for part in ("forward", "evaluate"):
            graph = layer.graph
            types = dict(
                result.rsplit(" ", 1)
                for _, results, _ in graph[part]["steps"]
                for result in results
                if result
            )
            assert [types.get(n, graph["outputs"][k]) for k, n in enumerate(graph[part]["outputs"])] == graph[
                "outputs"
            ], (layer.name, part)


class Drops(nn.Module):
    """Training reads half of the tokens, evaluation all of them."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.last = nn.Linear(16, 16)

    def forward(self, x):
        x = self.embed(x)
        x = x[:, ::2] if self.training else x
        for block in self.blocks:
            x = x + block(x).relu()
        return self.head(self.last(x.mean(1)))


def test_sizes_by_mode():
    layers = equal("tokens that training drops", Drops(), numbers(6, 8), 3)
    assert [layer.name for layer in layers] == ["blocks.0", "last", "head"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


NORMED = ["GroupNorm on channels last", "GroupNorm on half of the channels"]
POOLED = ["pooling to 1 x 1, batch norm, resized", "pooling of volumes to 1"]


@pytest.mark.parametrize("name", covering(LAYOUTS, [*NORMED, "convolution of half of the channels", *POOLED]))
def test_layouts(name):
    equal(name, images(LAYOUTS[name]), numbers(3, 6, 6), 1)


def one_behind_the_other(works):
    """Each behind a norm, which gives it ordinary numbers. What a wrong bit goes through differs, too."""
    middle = [part for work in works for part in (nn.LayerNorm(16), Do(work))]
    return nn.Sequential(nn.Linear(8, 16), *middle, nn.Linear(16, 4))


@pytest.mark.parametrize("works", [IN_PLACE, WRITES], ids=["in place", "writes"])
def test_operators(works):
    equal(", ".join(works), one_behind_the_other(works.values()), numbers(8, name="input"), len(works))


if FULL:  # test_operators has them in two models

    @pytest.mark.parametrize("name", [*IN_PLACE, *WRITES])
    def test_operator(name):
        equal(name, rows({**IN_PLACE, **WRITES}[name]), numbers(8), 1)


OF_DIMENSIONS = ["prod over a dimension", "prod with zeros", "cumprod with one zero each"]


@pytest.mark.parametrize("name", covering(PRODUCTS, [*OF_DIMENSIONS, "cumprod, in place"]))
def test_products(name):
    """Each alone: their numbers are so small that a norm behind them would hide wrong bits."""
    equal(name, rows(PRODUCTS[name]), numbers(8), 1)


def test_pyramid():
    equal("a pyramid of pools", images(Pyramid(), 16), numbers(3, 6, 6), 1)


def test_no_number():
    equal("what is no number in eager mode either", rows(lambda x: x.log()), numbers(8), 1)


def test_random_slopes():
    refused("random slopes", rows(nn.RReLU(inplace=True)), numbers(8), "draws random numbers of a kind")


def test_dropped_input():
    """Nothing reads the mask of an input that is dropped: it has no gradient."""
    torch.manual_seed(0)
    equal("an input", nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.Tanh()), numbers(8, name="input"), 1)


def test_last_in_another_order():
    """A gradient comes in the order of the output's dimensions, where no loss was captured."""
    torch.manual_seed(0)
    turned = Between(lambda x: x.sigmoid().transpose(1, 2), nn.Linear(8, 6), nn.Identity())
    equal("a transposed output", turned, numbers(5, 8), 1)


class Normal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(4, 4)

    def forward(self, x):
        mean, width = self.layer(x).chunk(2, 1)
        known = torch.distributions.Normal(mean, nn.functional.softplus(width) + 0.1)
        return self.last(known.rsample() if self.training else known.mean), known.scale


def test_distributions():
    """torch.distributions and F.gaussian_nll_loss look at numbers, which no graph can."""

    def loss(output, batch):
        return nn.functional.gaussian_nll_loss(output[0], batch["y"], output[1])

    torch.manual_seed(0)
    batch = numbers(8, more=[Field("y", [4], torch.float32)])
    module = Normal()
    results = results_of(module.eval()(batch.at(2)["x"]), module, lambda made: loss(made, batch.at(2)), 2)
    equal("a normal distribution", WithLoss(module, loss, results), batch, 1, has_loss=True)


class Stacked(nn.Module):
    """Layers that each read one of the interleaved parts of a row, and are stacked: gradients with gaps."""

    def __init__(self):
        super().__init__()
        self.first, self.weigh = nn.Linear(6, 48), nn.Linear(48, 6)
        self.each, self.last = nn.ModuleList(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 3)

    def forward(self, x):
        parts = self.first(x).unflatten(-1, (8, 6))
        made = torch.stack([layer(parts[..., i]) for i, layer in enumerate(self.each)], -1)
        return self.last((made * self.weigh(parts.flatten(-2)).softmax(-1)[..., None, :]).sum(-1))


class HalfNormed(nn.Module):
    """Batch norm of one half of the channels that another layer made."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x):
        return self.last(self.norm(self.first(x).chunk(2, 1)[1]))


GAPS = {"stack": (Stacked, (12, 6)), "batch norm of a half": (HalfNormed, (3, 9, 7))}


@pytest.mark.parametrize("kind", GAPS)
def test_gaps(kind):
    module, shape = GAPS[kind]
    torch.manual_seed(0)
    batch = numbers(*shape)
    dense = capture(module(), batch)
    assert dense.gaps
    torch.manual_seed(0)
    layers = equal(kind, module(), batch, len(dense.layers), gaps=True)
    assert [layer.name for layer in layers] == [layer.name for layer in dense.layers]


def lies(tensor):
    """Strides, but for sizes of one."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def test_lying():
    """A copy lies as what it is a copy of."""
    views = {
        "one of a stack": torch.randn(4, 12, 8, 6)[..., 2],
        "half a row": torch.randn(4, 12, 16)[..., :8],
        "some channels": torch.randn(4, 6, 8, 8)[:, :3],
        "some channels last": torch.randn(4, 8, 8, 6).permute(0, 3, 1, 2)[:, 1:4],
        "an inner square": torch.randn(4, 9, 7)[:, 1:5, 2:6],
        "a size of one": torch.randn(5, 3, 1, 7)[..., :1],
        "one column": torch.randn(4, 10)[:, 3],
    }
    for name, view in views.items():
        copy = laid(view, with_gaps(view))
        assert torch.equal(copy, view) and lies(copy) == lies(view), name
    for dense in (torch.randn(4, 3), torch.randn(4, 3, 5).mT, torch.randn(3).expand(4, 3), torch.tensor(1.0)):
        assert with_gaps(dense) is None
    assert with_gaps(torch.randn(4, 3, 9)[:, :, ::2]) is None  # a row is no whole number of steps
