"""Operators that few models have, in small modules: captured, and held against eager to the bit, forward and
backward."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
torchvision = pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from capture_cases import equal, nn, numbers, refused, tokens
from places import covering
from stagecraft_capture.batch import Batch, Field

F, LINEAR, SPECIAL = torch.nn.functional, torch.linalg, torch.special
INFINITY = float("inf")


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


def square(x):
    """[..., 9] as invertible matrices."""
    return x.view(-1, 3, 3) + 2 * torch.eye(3)


def definite(x):
    a = x.view(-1, 3, 3)
    return a @ a.mT + 3 * torch.eye(3)


def places(below, *shape):
    return torch.arange(torch.Size(shape).numel()).mul(7).remainder(below).view(shape)


def rows(below, x):
    """The same places in each sample."""
    return places(below, 6).expand(x.shape[0], 6)


def per_sample(x):
    return x.unsqueeze(1)


def reduced(reduce):
    def scattered(x):
        made = torch.zeros_like(x).scatter_reduce(1, rows(3, x), x, reduce, include_self=False)
        return made + x.scatter_reduce(1, rows(3, x), x, reduce)

    def indexed(x):
        made = torch.ones_like(x).index_reduce(1, places(3, 6), x, reduce)
        return made + x.index_reduce(1, places(3, 6), 2 * x, reduce, include_self=False)

    return [scattered] if reduce == "sum" else [scattered, indexed]


def distances(*powers, width=5, **how):
    return [
        lambda x, p=p: torch.cdist(x.view(-1, width, 3), 2 * x.view(-1, width, 3) + 1, p=p, **how)
        for p in powers
    ]


SAMPLED = [
    (mode, padding, corners)
    for mode in ("bilinear", "nearest", "bicubic")
    for padding, corners in (("zeros", False), ("border", True), ("reflection", False))
]


def sampled(mode, padding, corners):
    def sample(x):
        image = x.view(-1, 3, 4, 6)
        moved = image.mean((2, 3)).unsqueeze(1).expand(-1, 2, 3) * 0.5 + torch.eye(2, 3)
        grid = F.affine_grid(moved, [x.shape[0], 3, 4, 5], align_corners=corners)
        return F.grid_sample(image, grid, mode, padding, align_corners=corners)

    return sample


def sampled_in_space(mode):
    def sample(x):
        image = x.view(-1, 4, 3, 3, 2)
        moved = image.mean((2, 3, 4)).unsqueeze(1).expand(-1, 3, 4) * 0.5 + torch.eye(3, 4)
        grid = F.affine_grid(moved, [x.shape[0], 4, 2, 3, 4], align_corners=True)
        return F.grid_sample(image, grid, mode, align_corners=True)

    return sample


def antialiased(mode):
    by_size = {"size": (4, 5)}, {"scale_factor": (0.67, 0.84)}
    return [
        lambda x, how=how: F.interpolate(x.view(-1, 2, 6, 6), **how, mode=mode, antialias=True)
        for how in covering(by_size, by_size[mode == "bicubic" :][:1])
    ]


def unpooled(x):
    image = x.view(-1, 2, 6, 6)
    return F.max_unpool2d(*F.max_pool2d(image, 2, return_indices=True), 2)


def unpooled_in_space(x):
    image = x.view(-1, 1, 2, 6, 6)
    return F.max_unpool3d(*F.max_pool3d(image, 2, return_indices=True), 2)


def decomposed(x):
    u, s, v = LINEAR.svd(square(x), full_matrices=False)
    return (u * s.unsqueeze(1)) @ v


def of_eigenvectors(x):
    values, vectors = LINEAR.eigh(definite(x))
    return values.unsqueeze(1) * vectors**2


def spectrum(x):
    return torch.fft.rfft(x)


def short_time(x):
    return torch.stft(x, 4, 2, window=torch.hann_window(4), return_complex=True)


def back_again(x):
    """A mask on a spectrogram, as speech enhancement has it."""
    parts = short_time(x)
    return torch.istft(parts * parts.abs().sigmoid(), 4, 2, window=torch.hann_window(4), length=16)


def rotated(x):
    angles = torch.polar(torch.ones(4), torch.arange(4.0))
    return torch.view_as_real(torch.view_as_complex(x.view(-1, 2, 4, 2)) * angles)


def low_modes(x):
    whole = spectrum(x)
    made = torch.zeros_like(whole)
    made[:, :3] = whole[:, :3] * torch.complex(torch.ones(3), torch.arange(3.0))
    return torch.fft.irfft(made, n=16)


def from_parts(x):
    whole = spectrum(x)
    return torch.fft.irfft(torch.polar(whole.abs(), whole.angle()), n=16)


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
    "losses": (
        6,
        [
            lambda x: F.kl_div(F.log_softmax(x, -1), F.softmax(2 * x, -1), reduction="none"),
            lambda x: F.soft_margin_loss(x, torch.ones_like(x), reduction="none"),
            lambda x: per_sample(F.triplet_margin_loss(x, 2 * x, -x, reduction="none")),
            lambda x: per_sample(F.triplet_margin_loss(x, 2 * x, -x, swap=True, p=1.0, reduction="none")),
            lambda x: per_sample(F.triplet_margin_with_distance_loss(x, 2 * x, -x, reduction="none")),
            *(
                lambda x, p=p: F.pairwise_distance(x, 2 * x + 1, p=p, keepdim=True)
                for p in (1.0, 2.0, 3.0, INFINITY)
            ),
        ],
    ),
    "reductions": (
        6,
        [
            *(lambda x, f=f: x * f(x, dim=1, keepdim=True) for f in (torch.nansum, torch.nanmean)),
            *(
                lambda x, f=f: x * f(x, dim=1, keepdim=True)[0]
                for f in (torch.nanmedian, torch.mode, torch.std_mean)
            ),
            *(lambda x, f=f: x * f(x, 1)[0] for f in (torch.cummax, torch.cummin)),
            lambda x: torch.logcumsumexp(x, 1),
            lambda x: x * sum(torch.aminmax(x, dim=1, keepdim=True)),
            lambda x: x * torch.count_nonzero(x, dim=1).unsqueeze(1),
            lambda x: torch.norm(x, p=3, dim=1, keepdim=True),
            lambda x: torch.renorm(x.view(-1, 2, 3), 2, 2, 0.5),
            lambda x: torch.trapezoid(x, torch.arange(6.0), dim=1).unsqueeze(1),
            lambda x: torch.cumulative_trapezoid(x, dx=0.5, dim=1),
            lambda x: x.view(-1, 2, 3).norm(p=3, dim=(1, 2)).unsqueeze(1),
        ],
    ),
    "distances": (
        90,
        [
            *distances(1.0, 2.0, 3.0, INFINITY, width=30, compute_mode="donot_use_mm_for_euclid_dist"),
            *distances(2.0, width=30),
            *distances(2.0, width=30, compute_mode="use_mm_for_euclid_dist"),
            lambda x: x[:, :1] * F.pdist(torch.arange(12.0).view(4, 3)).mean(),
        ],
    ),
    "places": (
        6,
        [
            lambda x: x * torch.bucketize(x.detach(), torch.tensor([-0.5, 0.0, 0.5])),
            lambda x: x * torch.searchsorted(x.detach().sort(1)[0], x.detach(), right=True),
            *(f for reduce in ("sum", "prod", "mean", "amax", "amin") for f in reduced(reduce)),
            lambda x: x.index_fill(1, places(3, 2), 0.5) + x.index_fill(1, places(3, 2), torch.tensor(0.5)),
            lambda x: x.index_copy(1, torch.tensor([1, 3]), x[:, :2] * 2),
            lambda x: torch.zeros(len(x), 6).scatter_add_(1, rows(3, x), x),
            lambda x: torch.zeros_like(x).index_add_(1, torch.tensor([1, 3]), x[:, :2]),
            lambda x: torch.zeros_like(x).index_put_((torch.arange(len(x)), rows(3, x)[:, 1]), x[:, 2]),
            lambda x: x.masked_scatter(places(2, 6).bool(), 2 * x),
            lambda x: x * torch.sort(x, stable=True, dim=1)[0] * (x > 0).any((0, 1)) * (x < 9).all((0, 1)),
            lambda x: x * torch.take(torch.arange(8.0), places(6, 6)),
            lambda x: x * torch.bincount(places(6, 6).flatten(), minlength=6),
            lambda x: x * torch.tensor([0, 3, 3, 5]).bincount(torch.tensor([0.1, 0.2, 0.7, 0.4]), 6),
            lambda x: x * torch.histc(x.detach(), 6, -1, 1.5) + x * x.detach().histc(6, min=-0.3, max=0.3),
            lambda x: x[:, :2].repeat_interleave(torch.tensor([4, 2]), dim=1, output_size=6),
            lambda x: x * torch.repeat_interleave(torch.tensor([2, 0, 4]), output_size=6),
            lambda x: x @ torch.cov(x.T) + x @ torch.corrcoef(x.T) * torch.cov(x[:, 0]),
            lambda x: x * torch.put(torch.arange(6.0), places(6, 3), torch.ones(3), accumulate=True),
            lambda x: x.detach().scatter(1, rows(3, x), 2 * x.detach(), reduce="add") * x,
            lambda x: x.detach().scatter(1, rows(3, x), 2.0, reduce="multiply") * x,
        ],
    ),
    "shapes": (
        6,
        [
            lambda x: torch.unsafe_split(x, 3, 1)[0] + torch.unsafe_split_with_sizes(x, [2, 3, 1], 1)[1],
            lambda x: torch.unsafe_chunk(x, 2, 1)[1],
            lambda x: x.view(-1, 2, 3).diagonal_scatter(x[:, :2], 0, 1, 2),
            torch.diag_embed,
            lambda x: x * torch.diag(x.T @ x, -1).mean() + torch.diag(x.T @ x) + torch.diag(x.sum(0))[1],
            lambda x: x + torch.block_diag(torch.ones(3, 3), torch.eye(3)).sum(0),
            lambda x: x * torch.trace(torch.eye(6)[:, :4]),
            lambda x: x.view(-1, 3, 2)[:, torch.tril_indices(3, 2)[0], torch.tril_indices(3, 2)[1]],
            lambda x: x.view(-1, 3, 2)[:, torch.triu_indices(3, 2)[0], torch.triu_indices(3, 2)[1]],
            lambda x: x + torch.logspace(0, 1, 6) + torch.eye(2, 6)[0],
            lambda x: x @ torch.addr(torch.zeros(6, 6), torch.ones(6), torch.arange(6.0)),
            lambda x: torch.addmv(x[:, 0], x, torch.ones(6)).unsqueeze(1),
            lambda x: x @ torch.addbmm(torch.eye(6), torch.ones(2, 6, 6), torch.ones(2, 6, 6)),
            lambda x: LINEAR.cross(x.view(-1, 2, 3), 2 * x.view(-1, 2, 3) + 1),
            *(
                lambda x, mode=mode: F.pad(x.view(-1, 2, 3), (1, 2), mode)
                for mode in ("reflect", "replicate")
            ),
        ],
    ),
    "images": (
        72,
        [
            *(
                lambda x, mode=mode: F.pad(x.view(-1, 2, 3, 3, 4), (1, 1, 1, 2, 2, 1), mode)
                for mode in ("reflect", "replicate", "circular")
            ),
            *(sampled(*how) for how in covering(SAMPLED, SAMPLED[::4])),
            *(sampled_in_space(mode) for mode in ("bilinear", "nearest")),
            *antialiased("bilinear"),
            *antialiased("bicubic"),
            lambda x: F.channel_shuffle(x.view(-1, 4, 3, 6), 2),
            lambda x: F.adaptive_max_pool3d(x.view(-1, 2, 3, 3, 4), 2),
            lambda x: F.fractional_max_pool2d(
                x.view(-1, 2, 6, 6), 2, 3, _random_samples=torch.full((x.shape[0], 2, 2), 0.3)
            ),
            lambda x: F.fractional_max_pool3d(
                x[:, :64].view(-1, 1, 4, 4, 4), 2, 2, _random_samples=torch.full((x.shape[0], 1, 3), 0.3)
            ),
            unpooled,
            unpooled_in_space,
        ],
    ),
    "quantization": (
        6,
        [
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
            lambda x: torch.fake_quantize_per_tensor_affine(
                x, torch.tensor(0.1), torch.tensor(0, dtype=torch.int32), -128, 127
            ),
            lambda x: torch.fake_quantize_per_channel_affine(
                x, torch.full((6,), 0.1), torch.zeros(6, dtype=torch.int32), 1, -128, 127
            ),
            lambda x: torch._fake_quantize_learnable_per_tensor_affine(
                x, torch.ones(1) * 0.1, torch.zeros(1), -128, 127, 1.0
            ),
            lambda x: torch._fake_quantize_learnable_per_channel_affine(
                x, torch.full((6,), 0.1), torch.zeros(6), 1, -128, 127, 1.0
            ),
        ],
    ),
    "complex numbers": (
        16,
        [
            lambda x: spectrum(x).abs() + spectrum(x).real.square(),
            lambda x: torch.fft.fft(torch.fft.fft(x.view(-1, 4, 4), dim=-1), dim=-2).real,
            lambda x: torch.fft.irfft(spectrum(x) * spectrum(x).conj(), n=16),
            lambda x: torch.fft.irfft2(
                torch.fft.rfft2(x.view(-1, 4, 4), norm="ortho"), s=(4, 4), norm="ortho"
            ),
            lambda x: torch.fft.hfft(torch.fft.ihfft(x), n=16),
            lambda x: torch.fft.irfft(spectrum(x.view(-1, 4, 4).mT), n=4),
            lambda x: torch.exp(1j * x).real,
            lambda x: (torch.fft.fft(x) * 2 * torch.exp(-1j * torch.arange(16) / 16)).real,
            lambda x: (spectrum(x) / (spectrum(x).abs() + 1)).imag,
            lambda x: per_sample(spectrum(x).mean(1).abs()),
            lambda x: (torch.view_as_complex(x.view(-1, 2, 4, 2)) @ torch.ones(4, 2).to(torch.cfloat)).real,
            lambda x: short_time(x).abs(),
            *(rotated, low_modes, from_parts, back_again),
        ],
    ),
    "equations": (
        9,
        [
            lambda x: LINEAR.inv(square(x)),
            lambda x: LINEAR.solve(square(x), square(x) @ torch.ones(3, 2)),
            lambda x: LINEAR.solve(square(x), x[:, :3]),
            lambda x: per_sample(LINEAR.det(square(x))),
            lambda x: per_sample(LINEAR.slogdet(square(x))[1] + torch.logdet(definite(x))),
            lambda x: LINEAR.cholesky(definite(x)),
            lambda x: torch.cholesky_solve(torch.ones(3, 2), LINEAR.cholesky(definite(x))),
            lambda x: torch.cholesky_inverse(LINEAR.cholesky(definite(x))),
            lambda x: LINEAR.solve_triangular(LINEAR.cholesky(definite(x)), x.view(-1, 3, 3), upper=False),
            lambda x: torch.triangular_solve(x.view(-1, 3, 3), LINEAR.cholesky(definite(x)), upper=False)[0],
            lambda x: LINEAR.lu_solve(*LINEAR.lu_factor(square(x)), x.view(-1, 3, 3)),
            lambda x: LINEAR.matrix_power(square(x), -2),
        ],
    ),
    "decompositions": (
        9,
        [
            lambda x: sum(LINEAR.qr(square(x))),
            lambda x: sum(LINEAR.lu(square(x))[1:]),
            lambda x: LINEAR.householder_product(square(x), x[:, :3]),
            lambda x: LINEAR.eigvalsh(definite(x)),
            of_eigenvectors,
            lambda x: LINEAR.svdvals(square(x)),
            decomposed,
            lambda x: torch.matrix_exp(x.view(-1, 3, 3)),
            lambda x: LINEAR.pinv(square(x)),
            lambda x: per_sample(LINEAR.matrix_norm(square(x), "nuc")),
        ],
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_operators(group):
    torch.manual_seed(0)
    width, functions = GROUPS[group]
    equal(group, Of(width, functions), numbers(width), 1)


class Bags(nn.Module):
    def __init__(self, mode, weighted=False, **how):
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(20, 6, mode=mode, **how), nn.Linear(6, 3)
        self.weights = nn.Embedding(20, 1) if weighted else None

    def forward(self, input_ids):
        weights = None if self.weights is None else self.weights(input_ids).squeeze(-1)
        return self.last(self.bag(input_ids, per_sample_weights=weights))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    torch.manual_seed(0)
    for how in covering(({}, {"padding_idx": 0}), [{"padding_idx": 0} if mode == "mean" else {}]):
        equal(mode, Bags(mode, **how), tokens(20, 5), 1)
    if mode == "sum":
        equal("weights per sample", Bags(mode, weighted=True), tokens(20, 5), 1)


class Speech(nn.Module):
    def __init__(self, flat=False, **how):
        super().__init__()
        self.layer, self.loss, self.flat = nn.Linear(5, 7), nn.CTCLoss(**how), flat

    def forward(self, x, labels, steps, count):
        scores = self.layer(x).log_softmax(-1)
        labels = labels.flatten() if self.flat else labels
        return scores, self.loss(scores.transpose(0, 1), labels, steps, count)


def test_classification_of_time():
    fields = (
        Field("x", [9, 5], torch.float32),
        Field("labels", [3], below=6),
        Field("steps", [], below=10),
        Field("count", [], below=4),
    )
    torch.manual_seed(0)
    for how in ({"zero_infinity": True}, {"blank": 6, "reduction": "sum", "zero_infinity": True}):
        equal("ctc", Speech(**how), Batch(list(fields)), 1, has_loss=True)
    refused("ctc, one behind the other", Speech(flat=True), Batch(list(fields)), "pad them to", has_loss=True)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(5, 4)
        angles = torch.polar(torch.ones(5), torch.arange(5.0))
        self.register_buffer("turn", angles, persistent=False)

    def forward(self, x):
        return self.second((torch.fft.rfft(self.first(x)) * self.turn).abs())


def test_no_complex_numbers_between_layers():
    torch.manual_seed(0)
    for layer in equal("a buffer of complex numbers", Complex(), numbers(8), 2):
        assert not any("c64" in of for of in layer.graph["inputs"] + layer.graph["outputs"])


def test_choices_by_gumbel():
    class Choice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x):
            z = self.first(x)
            return self.last(nn.functional.gumbel_softmax(z, hard=True) if self.training else z.softmax(-1))

    torch.manual_seed(0)
    (layer, *_) = equal("gumbel", Choice(), numbers(8), 1)
    assert any(step[0] == "stagecraft::exponential" for step in layer.graph["forward"]["steps"])


def test_draws_with_parameters():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)

        def forward(self, x):
            z = self.first(x)
            if self.training:
                z = z * torch.empty_like(z).uniform_(0.99, 1.01) + torch.empty_like(z).normal_(1.0, 0.1)
                z = z + torch.rand_like(z).uniform_()  # eager draws twice
                z = torch.where(z >= 0, z, z * torch.empty_like(z).uniform_(1 / 8, 1 / 3))
                z = z.gather(1, torch.rand_like(z).argsort(1))
            return self.last(z)

    class Leaky(Noisy):
        def forward(self, x):
            return self.last(F.rrelu(self.first(x), training=self.training))

    torch.manual_seed(0)
    (layer, *_) = equal("noise", Noisy(), numbers(8), 1)
    drawn = [step[0] for step in layer.graph["forward"]["steps"] if step[0].startswith("stagecraft::")]
    assert drawn == ["stagecraft::uniform", "stagecraft::normal", *["stagecraft::uniform"] * 3], drawn
    refused("rrelu", Leaky(), numbers(8), "draws random numbers", "write torch.where(x >= 0, x, x * ")


class Cells(nn.Module):
    """Three steps of a cell, the states of all of which are read. `width`: whole vectors of the processor, or
    with some numbers left over, which GRUCell's gates round otherwise."""

    def __init__(self, cell, width):
        super().__init__()
        self.cell = cell(32, width)

    def forward(self, x):
        state, made = None, 0
        for step in range(3):
            state = self.cell(x[:, step], state)
            made = made + (step + 1) * (state[0] if isinstance(state, tuple) else state)
        return made


def test_cells():
    torch.manual_seed(0)
    widths = {nn.LSTMCell: [13], nn.GRUCell: [32, 13], nn.RNNCell: [32]}
    for cell, some in widths.items():
        for width in covering((32, 13), some):
            equal(f"{cell.__name__}_{width}", Cells(cell, width), numbers(3, 32), 1)


def test_parametrizations():
    torch.manual_seed(0)
    for how in ("cayley", "matrix_exp"):
        linear = nn.utils.parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map=how)
        equal(how, nn.Sequential(nn.Linear(6, 6), linear), numbers(6, name="input"), 1)


class Deformed(nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets, self.weight = nn.Conv2d(2, 18, 3, padding=1), nn.Parameter(torch.randn(3, 2, 3, 3))

    def forward(self, x):
        return torchvision.ops.deform_conv2d(x, self.offsets(x), self.weight, padding=1)


def test_deformed_convolution():
    refused(
        "deform_conv2d",
        Deformed(),
        numbers(2, 6, 6),
        "deform_conv.py",
        "torchvision::deform_conv2d",
        "torch.nn.functional.grid_sample",
    )
