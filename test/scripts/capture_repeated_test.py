"""Modules that a forward calls several times: calls that do not read each other's results go side by side, so
that towers are cut into layers; what each layer computes and draws is eager's, to the bit."""

import pytest

torch = pytest.importorskip("torch")

from capture_cases import equal, equal_model, nn
from stagecraft_capture.batch import Batch, Field

F = nn.functional


def batch(*others, shape=(3, 16, 16)):
    return Batch([Field(name, list(shape), torch.float32) for name in ("x", *others)])


class Tower(nn.Module):
    def __init__(self, norm=nn.Identity, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            norm(8),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(8, 16, 3, 2, 1),
            norm(16),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Flatten(),
            nn.Linear(256, 16),
        )

    def forward(self, x):
        return self.layers(x)


class Siamese(nn.Module):
    """With the contrastive loss of its halves."""

    def __init__(self, **how):
        super().__init__()
        self.tower, self.last = Tower(**how), nn.Linear(16, 8)

    def forward(self, x, other):
        both = torch.cat([self.last(self.tower(image)) for image in (x, other)], 1)
        return both, F.relu(1 - F.pairwise_distance(*both.split(8, 1))).square().mean()


@pytest.mark.parametrize(
    ("layers", "how"),
    [
        (4, {}),
        (6, {"norm": nn.BatchNorm2d}),  # whose statistics each call writes, in order
        (6, {"norm": nn.BatchNorm2d, "dropout": 0.1}),  # whose draws come in another order than eager's
    ],
)
def test_towers(layers, how):
    torch.manual_seed(0)
    found = equal("Siamese", Siamese(**how), batch("other"), layers, has_loss=True)
    holders = [name for layer in found for name in layer.tensors.names["p"]]
    assert len(holders) == len(set(holders)), "a weight in two layers"


class Triplet(nn.Module):
    """Three calls of an encoder, whose attention draws, too."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, near, far):
        made = torch.cat([self.encoder(one).mean(1) for one in (x, near, far)], 1)
        return made, F.triplet_margin_loss(*made.split(16, 1))


def test_three_calls():
    torch.manual_seed(0)
    equal("Triplet", Triplet(), batch("near", "far", shape=(6, 16)), 4, has_loss=True)


class TwoStems(nn.Module):
    """What is called once, in front of the second call, is put before both."""

    def __init__(self):
        super().__init__()
        self.stems = nn.ModuleList(nn.Conv2d(3, 8, size, 2, size // 2) for size in (3, 5))
        self.trunk = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.last = nn.Linear(8, 4)

    def of(self, x):
        for layer in self.trunk:
            x = x + layer(x).relu()
        return self.last(x.mean((2, 3)))

    def forward(self, x, other):
        return torch.cat([self.of(stem(image)) for stem, image in zip(self.stems, (x, other))], 1)


class Adversarial(nn.Module):
    """The second call reads what another module makes."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 768))
        self.judge = Tower(norm=nn.BatchNorm2d)

    def forward(self, x, noise):
        made = self.generator(noise).view(-1, 3, 16, 16)
        return torch.cat([self.judge(x), self.judge(made)], 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x, time):
        return x + self.mix(x * self.embed(time)).tanh()


class Conditioned(nn.Module):
    """As DiT: the first block's embedding is called again behind the last block."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(16, 4)

    def forward(self, x, time):
        for block in self.blocks:
            x = block(x, time)
        return self.last(x + self.blocks[0].embed(time))


@pytest.mark.parametrize(
    ("kind", "fields", "layers"),
    [
        (TwoStems, batch("other"), 6),
        (Adversarial, Batch([Field("x", [3, 16, 16], torch.float32), Field("noise", [8], torch.float32)]), 7),
        (Conditioned, Batch([Field("x", [16], torch.float32), Field("time", [8], torch.float32)]), 5),
    ],
)
def test_other_calls(kind, fields, layers):
    torch.manual_seed(0)
    assert equal_model(kind.__name__, kind(), fields, layers).moved


class InTurn(nn.Module):
    """Each call reads the one before: as ALBERT's block, they stay in one layer."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        for _ in range(4):
            x = self.block(x).tanh()
        return self.last(x)


def test_calls_in_turn():
    torch.manual_seed(0)
    model = equal_model("in turn", InTurn(), batch(shape=(16,)), 3)
    assert len(model.layers) == 3 and not model.moved


def test_calls_left_where_they_are():
    torch.manual_seed(0)
    assert len(equal("Siamese", Siamese(), batch("other"), 1, has_loss=True, together=False)) == 1


class DoubleQ(nn.Module):
    """The next actions are chosen by the layers that train, without a gradient, and judged by others."""

    def __init__(self, choose):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.target = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)
        self.choose = choose

    def forward(self, x, following):
        judged = self.target(following).gather(1, self.choose(self.q, following).argmax(1, keepdim=True))
        return torch.cat([self.q(x), judged], 1)


@pytest.mark.parametrize("choose", [torch.no_grad()(lambda q, x: q(x)), lambda q, x: q(x).detach()])
def test_what_goes_on_without_a_gradient(choose):
    """The layer that makes it, and trains by its other call, waits for none."""
    torch.manual_seed(0)
    equal("double Q", DoubleQ(choose), batch("following", shape=(8,)), 2)
