"""What captured graphs run on GPUs, held against PyTorch: on its fake tensors of a fake "cuda" device, forms
of attention and of LSTMs have the shapes, types and strides of what the graphs were captured with, and the
kernels that they call take them. The list of operators says of each one that PyTorch calls not deterministic
on GPUs what is done. The forms come by test/models/device_forms.cpp."""

import itertools
import random
import re

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from places import BUILD, SOURCE
from stagecraft_tools.torch_versions import VERSIONS

aten = torch.ops.aten
FLASH, EFFICIENT, PLAIN = range(3)
MOST = 70  # cases of attention for each kernel, of 1,440 in all
NAMES = ["flash", "efficient", "plain"]
NARROW = (torch.float16, torch.bfloat16)
failures = []


def told(tensor):
    return (tuple(tensor.shape), tensor.dtype, tensor.stride())


def same(what, ours, expected, part=slice(None)):
    for i, (a, b) in enumerate(zip(ours, expected, strict=True)):
        if told(a)[part] != told(b)[part] or a.device.type != "cuda":
            failures.append(f"{what}, result {i}: {told(a)} on {a.device}, expected {told(b)}")


def head_tensors(batch, heads, kv_heads, queries, keys, size, dtype, layout):
    """q, k, v as (heads, tokens), as tokens of projections, or cut from one projection of all three."""

    def one(n, tokens):
        if layout == "heads":
            return torch.randn(batch, n, tokens, size, dtype=dtype)
        if layout == "tokens":
            return torch.randn(batch, tokens, n, size, dtype=dtype).transpose(1, 2)
        return torch.randn(batch, tokens, n, 3 * size, dtype=dtype)[..., size : 2 * size].transpose(1, 2)

    return one(heads, queries), one(kv_heads, keys), one(kv_heads, keys)


def mask_of(kind, batch, heads, queries, keys, dtype):
    if kind == "none":
        return None
    if kind == "bool":
        return torch.ones(queries, keys, dtype=torch.bool)
    if kind == "float32":
        return torch.zeros(batch, 1, queries, keys)
    shape = {
        "full": (batch, heads, queries, keys),
        "of samples": (batch, 1, 1, keys),
        "of all": (queries, keys),
        "of queries": (1, 1, queries, 1),
    }[kind]
    return torch.zeros(shape, dtype=dtype)


def takes(kernel, dtype, heads, size, tokens, mask, causal):
    """As device_attention.h has it, but for what the GPU decides."""
    if kernel == FLASH:
        return dtype in NARROW and mask == "none" and size <= 192 and not (causal and tokens[0] != tokens[1])
    if kernel == EFFICIENT:
        block = 8 if dtype in NARROW else 4
        of_its_type = mask != "bool" and (mask != "float32" or dtype == torch.float32)
        return dtype != torch.float64 and size % block == 0 and heads[0] == heads[1] and of_its_type
    return True


def eager(kernel, q, k, v, mask, causal, scale):
    """What scaled_dot_product_attention does with each kernel, and its backward: mixed values, log-sums,
    gradients of q, k and v. By hand, since autograd's engine asks the driver."""
    if kernel == FLASH:
        size, over = q.shape[-1], -q.shape[-1] % 8
        scale = scale or size**-0.5
        padded = [F.pad(x, (0, over)) if over else x for x in (q, k, v)]
        mixed, log_sum, *about, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            *padded, 0.0, causal, False, scale=scale
        )
        grads = aten._scaled_dot_product_flash_attention_backward(
            torch.ones_like(mixed), *padded, mixed, log_sum, *about, 0.0, causal, seed, offset, scale=scale
        )
        return mixed[..., :size], log_sum, [x[..., :size] for x in grads]
    if kernel == EFFICIENT:
        if mask is not None:
            keys = k.shape[-2]
            mask = mask.expand(*mask.shape[:-1], keys)
            mask = F.pad(mask, (0, -keys % 16))[..., :keys] if keys % 16 else mask
            mask = mask.expand(q.shape[0], q.shape[1], q.shape[2], keys)
        made = aten._scaled_dot_product_efficient_attention(q, k, v, mask, True, 0.0, causal, scale=scale)
        grads = aten._scaled_dot_product_efficient_attention_backward(
            torch.ones_like(made[0]),
            q,
            k,
            v,
            mask,
            *made,
            0.0,
            [True, True, True, False],
            causal,
            scale=scale,
        )
        return made[0], made[1], grads[:3]
    # Without a device the choice is plain; a gradient is like what it is of.
    return (
        F.scaled_dot_product_attention(
            q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        ),
        None,
        [q, k, v],
    )


def attention():
    """Each kernel on all cases that it takes."""
    ours = torch.ops.stagecraft_forms
    run = [0, 0, 0]
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    masks = ("none", "full", "of samples", "of all", "of queries", "bool", "float32")
    cases = list(
        itertools.product(
            dtypes,
            ((6, 6), (6, 2), (6, 1)),
            (8, 64, 20, 5, 200),
            ((16, 16), (5, 7), (33, 33)),
            masks,
            (False, True),
        )
    )
    cases = [case for case in cases if not (case[-1] and case[-2] != "none")]
    random.Random(5).shuffle(cases)
    picked = []
    for kernel in (FLASH, EFFICIENT, PLAIN):
        picked += [case for case in cases if case not in picked and takes(kernel, *case)][:MOST]
    for number, (dtype, (heads, kv_heads), size, (queries, keys), mask_kind, causal) in enumerate(picked):
        layout = ("heads", "tokens", "one")[number % 3]
        scale = (None, 0.3)[number % 2]
        q, k, v = head_tensors(2, heads, kv_heads, queries, keys, size, dtype, layout)
        mask = mask_of(mask_kind, 2, heads, queries, keys, dtype)
        what = (
            f"{dtype} {heads}/{kv_heads} heads of {size}, {queries} x {keys}, mask {mask_kind}, causal"
            f" {causal}, {layout}"
        )
        captured = None
        if mask_kind != "bool":  # captures have made numbers of them
            if mask_kind == "float32" and dtype == torch.float64:
                continue
            captured = aten._scaled_dot_product_flash_attention_for_cpu(
                q, k, v, 0.0, causal, attn_mask=mask, scale=scale
            )
            captured += aten._scaled_dot_product_flash_attention_for_cpu_backward(
                torch.ones_like(captured[0]), q, k, v, *captured, 0.0, causal, attn_mask=mask, scale=scale
            )
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            there = [mode.from_tensor(x).to("cuda") if x is not None else None for x in (q, k, v, mask)]
            fq, fk, fv, fmask = there
            for kernel in (FLASH, EFFICIENT, PLAIN):
                if not takes(kernel, dtype, (heads, kv_heads), size, (queries, keys), mask_kind, causal):
                    continue
                run[kernel] += 1
                name = f"{NAMES[kernel]}: {what}"
                try:
                    mixed, log_sum = ours.attend(kernel, fq, fk, fv, causal, fmask, scale)
                    grads = ours.attend_backward(
                        kernel, torch.ones_like(mixed), fq, fk, fv, mixed, log_sum, causal, fmask, scale
                    )
                    if captured is not None:  # the graph's own, strides and all
                        same(name, [mixed, *grads], [captured[0], *captured[2:]])
                    if mask_kind == "float32" and dtype in NARROW:
                        continue  # eager has no such on GPUs
                    out, its_sum, its_grads = eager(kernel, fq, fk, fv, fmask, causal, scale)
                    same(name + ", eager", [mixed, *grads], [out, *its_grads], slice(2))
                    # Eager's are in whole blocks of queries, a graph's are not.
                    if its_sum is not None:
                        same(name + ", log-sum", [log_sum], [its_sum[..., :queries]])
                    if captured is not None:
                        same(name + ", log-sum", [log_sum], [captured[1]], slice(2))
                except Exception as error:  # a kernel that does not take it
                    failures.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    return run


def lstm():
    ours = torch.ops.stagecraft_forms
    count = 0
    for steps, batch, width, size, biased, reverse in itertools.product(
        (1, 4), (1, 3), (5,), (6,), (False, True), (False, True)
    ):
        # cuDNN's kernel would ask the driver.
        with FakeTensorMode(), torch.backends.cudnn.flags(enabled=False):
            eager_lstm = torch.nn.LSTM(width, size, device="cuda")  # PyTorch's fake cell wants biases
            x = torch.randn(steps, batch, width, device="cuda")
            hx, cx = (torch.randn(1, batch, size, device="cuda") for _ in range(2))
            with torch.no_grad():
                y, (h, c) = eager_lstm(x, (hx, cx))
            weights = [w.detach() for w in eager_lstm.parameters()]
            if not biased:
                weights[2:] = [None, None]
            given = [x, *weights, hx[0], cx[0]]
            made = ours.lstm(*given, reverse, True)
            what = f"LSTM of {steps} steps, {batch} samples, biased {biased}"
            same(what, made, [y, h[0], c[0]])
            grads = ours.lstm_backward(*(torch.ones_like(m) for m in made), *given, reverse)
            of = [x, *(w.detach() for w in eager_lstm.parameters())]  # a gradient is like what it is of
            same(what + ", gradients", grads, [*of[:4], hx[0], cx[0]])
            count += 1
    return count


def experts():
    ours, count = torch.ops.stagecraft_forms, 0
    for dtype, rows in itertools.product((torch.float32, torch.bfloat16), (1, 7)):
        x, weights = torch.randn(rows, 8, dtype=dtype), torch.randn(3, 16, 8, dtype=dtype).mT
        gradient, ends = torch.randn(rows, 16, dtype=dtype), torch.tensor([0, 1, rows], dtype=torch.int32)
        calls = {"forward": (x, weights), "of rows": (gradient, weights.mT), "of weights": (x.mT, gradient)}
        for name, given in calls.items():
            captured = aten._grouped_mm(*given, ends)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                there = [mode.from_tensor(t).to("cuda") for t in (*given, ends)]
                same(f"experts, {name}, {rows} rows of {dtype}", [ours.grouped_mm(*there)], [captured])
            count += 1
    return count


# The list below is of the torch that setup.sh installs; another one's has other lines.
LISTED = torch.__version__.startswith(VERSIONS[0].minor + ".")

# PyTorch's list, by line (torch.use_deterministic_algorithms), and the operators of the line that graphs may
# have.
BY_SETTING = {
    "torch.nn.Conv1d": ["convolution", "convolution_backward"],
    "torch.nn.Conv2d": [],
    "torch.nn.Conv3d": [],
    "torch.nn.ConvTranspose1d": [],
    "torch.nn.ConvTranspose2d": [],
    "torch.nn.ConvTranspose3d": [],
    # Of torch.nn's functions, which take another way; the operator itself is refused.
    "torch.nn.ReplicationPad1d": [],
    "torch.nn.ReplicationPad2d": [],
    "torch.nn.ReplicationPad3d": [],
    "torch.bmm": [],
    "torch.Tensor.__getitem__": [],
    "torch.Tensor.index_put": ["index_put"],
    "torch.Tensor.put_": [],
    "torch.Tensor.scatter_add_": ["scatter_add"],
    "torch.gather": [],
    "torch.index_add": ["index_add"],
    "torch.index_select": [],
    "torch.repeat_interleave": [],
    "torch.Tensor.index_copy": ["index_copy"],
    "torch.Tensor.scatter": ["scatter.src", "scatter.value"],
    "torch.Tensor.scatter_reduce": [],
    "torch.cumsum": ["cumsum"],
    "torch.nn.Embedding": ["embedding_dense_backward"],
    "torch.nn.MaxPool3d": ["max_pool3d_with_indices_backward"],
}
REFUSED = {
    "torch.nn.AvgPool3d": ["avg_pool3d_backward"],
    "torch.nn.AdaptiveAvgPool2d": ["_adaptive_avg_pool2d_backward"],
    "torch.nn.AdaptiveAvgPool3d": ["_adaptive_avg_pool3d_backward"],
    "torch.nn.AdaptiveMaxPool2d": ["adaptive_max_pool2d_backward"],
    "torch.nn.FractionalMaxPool2d": ["fractional_max_pool2d_backward"],
    "torch.nn.FractionalMaxPool3d": ["fractional_max_pool3d_backward"],
    "torch.nn.MaxUnpool1d": [],
    "torch.nn.MaxUnpool2d": ["max_unpool2d"],
    "torch.nn.MaxUnpool3d": ["max_unpool3d"],
    "torch.nn.functional.interpolate": [
        "upsample_linear1d_backward",
        "upsample_bilinear2d_backward",
        "upsample_bicubic2d_backward",
        "upsample_trilinear3d_backward",
        "_upsample_bilinear2d_aa_backward",
        "_upsample_bicubic2d_aa_backward",
    ],
    "torch.nn.ReflectionPad1d": ["reflection_pad1d_backward"],
    "torch.nn.ReflectionPad3d": ["reflection_pad3d_backward"],
    "torch.nn.CTCLoss": ["ctc_loss_backward"],
    "torch.nn.EmbeddingBag": ["_embedding_bag_backward"],
    "torch.Tensor.put_": ["put"],
    "torch.histc": [],
    "torch.bincount": [],
    "torch.median": ["median.dim", "nanmedian.dim"],
    "torch.nn.functional.grid_sample": ["grid_sampler_2d_backward", "grid_sampler_3d_backward"],
    "torch.Tensor.scatter_reduce": ["scatter_reduce.two"],
    "torch.Tensor.resize_": [],
    "torch.nn.NLLLoss": ["nll_loss2d_forward"],
    # LibTorch's kernels have a deterministic form: no call of alertNotDeterministic is left in them.
    "torch.nn.ReflectionPad2d": ["reflection_pad2d_backward"],
}
IN_FACT_BY_SETTING = {"reflection_pad2d_backward"}
# Their kernels add by atomics, or LibTorch throws for what torch.nn calls otherwise.
ALSO_REFUSED = {
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    "adaptive_max_pool3d_backward",
    "index_reduce",
    "scatter.reduce",
    "scatter.value_reduce",
}


def determinism():
    table = (SOURCE / "models/captured/operators/operators.cpp").read_text()
    classes = dict(re.findall(r'Operator\{"(?:aten|stagecraft)::([\w.]+)", k(\w+)', table))
    if len(classes) < 300:
        failures.append(f"operators.cpp: {len(classes)} operators read")
    said = torch.use_deterministic_algorithms.__doc__
    halves = said[said.index("act\n    deterministically") :].split("will throw a", 1)
    for half, known in zip(halves, (BY_SETTING, REFUSED), strict=True):
        of_gpus = [
            entry
            for entry in re.split(r"^        \* ", half, flags=re.MULTILINE)[1:]
            if "MPS" not in entry or "CUDA" in entry
        ]
        lines = {re.sub(r"[`~,]|:\w+:", "", entry.split()[0]) for entry in of_gpus}
        if lines != set(known) and LISTED:
            failures.append(f"PyTorch's list has changed: {sorted(lines ^ set(known))}")
    setting = {name for names in BY_SETTING.values() for name in names} | IN_FACT_BY_SETTING
    refused = {name for names in REFUSED.values() for name in names} - IN_FACT_BY_SETTING | ALSO_REFUSED
    for name in sorted(setting | refused):
        expected = {"Refused", "RefusedSummed"} if name in refused else {"Set"}
        if classes.get(name, "").removesuffix("Since215") not in expected:
            failures.append(f"{name} is {classes.get(name)}, expected {expected}")
    for name, its in classes.items():
        if its.startswith("Refused") and name not in refused:
            failures.append(f"{name} is refused, and PyTorch does not say why")
    return len(classes)


@pytest.fixture(autouse=True)
def no_failures():
    """`failures` has what a test found, of the first of which it tells."""
    torch.set_num_threads(1)
    failures.clear()
    yield
    assert not failures, failures[:20]


@pytest.fixture(scope="module")
def forms():
    torch.ops.load_library(BUILD / "test/models/libdevice_forms.so")


def test_operators():
    print(f"{determinism()} operators")


def test_attention(forms):
    run = attention()
    print(", ".join(f"{n} {name}" for n, name in zip(run, NAMES)))
    assert min(run) > 0, "a kernel took no case"


def test_lstms(forms):
    print(f"{lstm()} LSTMs")


def test_experts(forms):
    print(f"{experts()} products of experts")
