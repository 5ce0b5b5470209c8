"""Strides of results in a trace are those of eager's kernels, however the arguments lie."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from stagecraft_capture.real_strides import real_strides
from stagecraft_capture.torch_private import FakeTensorMode

A = torch.ops.aten
SIZES = (2, 3, 4, 5)

# Of a gradient and of what forward read, both of SIZES.
OPERATORS = {
    "elu_backward": lambda g, x: A.elu_backward(g, 1.0, 1.0, 1.0, False, x),
    "gelu_backward": A.gelu_backward,
    "glu_backward": lambda g, x: A.glu_backward(g[:, :, :2], x, 2),
    "hardshrink_backward": lambda g, x: A.hardshrink_backward(g, x, 0.5),
    "hardsigmoid_backward": A.hardsigmoid_backward,
    "hardswish_backward": A.hardswish_backward,
    "hardtanh_backward": lambda g, x: A.hardtanh_backward(g, x, -1, 1),
    "leaky_relu_backward": lambda g, x: A.leaky_relu_backward(g, x, 0.1, False),
    "log_sigmoid_backward": lambda g, x: A.log_sigmoid_backward(g, x, x * 1),
    "logit_backward": A.logit_backward,
    "mish_backward": A.mish_backward,
    "prelu_backward": lambda g, x: A._prelu_kernel_backward(g, x, torch.rand(1, 3, 1, 1)),
    "rrelu_backward": lambda g, x: A.rrelu_with_noise_backward(g, x, x, 0.1, 0.3, False, False),
    "sigmoid_backward": A.sigmoid_backward,
    "silu_backward": A.silu_backward,
    "softplus_backward": lambda g, x: A.softplus_backward(g, x, 1, 20),
    "softshrink_backward": lambda g, x: A.softshrink_backward(g, x, 0.5),
    "tanh_backward": A.tanh_backward,
    "threshold_backward": lambda g, x: A.threshold_backward(g, x, 0),
    "softmax_backward": lambda g, x: A._softmax_backward_data(g, x, 1, torch.float32),
    "log_softmax_backward": lambda g, x: A._log_softmax_backward_data(g, x, 1, torch.float32),
    "mse_backward": lambda g, x: A.mse_loss_backward(g, x, x * 1, 0),
    "huber_backward": lambda g, x: A.huber_loss_backward(g, x, x * 1, 0, 1.0),
    "smooth_l1_backward": lambda g, x: A.smooth_l1_loss_backward(g, x, x * 1, 0, 1.0),
    "binary_cross_entropy_backward": lambda g, x: A.binary_cross_entropy_backward(g, x, x * 1, None, 0),
    "reflection_pad2d_backward": lambda g, x: A.reflection_pad2d_backward(g, x[:, :, :2, :3], [1, 1, 1, 1]),
    "avg_pool2d_backward": lambda g, x: A.avg_pool2d_backward(
        g[:, :, :2, :2], x, [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "adaptive_avg_pool2d_backward": lambda g, x: A._adaptive_avg_pool2d_backward(g[:, :, :2, :2], x),
    "softmax": lambda g, x: A._softmax(x, 1, False),
    "log_softmax": lambda g, x: A._log_softmax(x, 1, False),
    "topk": lambda g, x: A.topk(x, 2, -1),
    "sort": lambda g, x: A.sort(x, 1),
    "cumsum": lambda g, x: A.cumsum(x, 1),
    "gather": lambda g, x: A.gather(x, 1, torch.zeros(SIZES, dtype=torch.long)),
    "scatter_add": lambda g, x: A.scatter_add(x, 1, torch.zeros(SIZES, dtype=torch.long), g),
    "where": lambda g, x: A.where.self(x > 0.5, g, x),
    "addcmul": lambda g, x: A.addcmul(x, g, g),
    "lerp": lambda g, x: A.lerp.Tensor(x, g, g),
    "xlogy": lambda g, x: A.xlogy.Tensor(x, g),
    "cat": lambda g, x: A.cat([x, g], 1),
    "index": lambda g, x: A.index.Tensor(x, [None, torch.tensor([0, 2])]),
    "avg_pool2d": lambda g, x: A.avg_pool2d(x, 2),
    "max_pool2d": lambda g, x: A.max_pool2d_with_indices(x, 2),
    "upsample_bilinear2d": lambda g, x: A.upsample_bilinear2d(x, [8, 10], False),
    "layer_norm": lambda g, x: A.native_layer_norm(x, [5], torch.ones(5), torch.zeros(5), 1e-5),
}


def lying(how):
    x = torch.rand(SIZES) * 0.8 + 0.1
    return {
        "dense": lambda: x,
        "channels last": lambda: x.contiguous(memory_format=torch.channels_last),
        "turned": lambda: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "with gaps": lambda: x.repeat_interleave(2, -1)[..., ::2],
        "expanded": lambda: x[:, :, :1].expand(SIZES),
    }[how]()


def strides(made):
    """Sizes of one have none of their own."""
    tensors = [
        t for t in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(t, torch.Tensor)
    ]
    return [[s if n > 1 else 0 for n, s in zip(t.shape, t.stride())] for t in tensors]


WAYS = ("dense", "channels last", "turned", "with gaps", "expanded")


@pytest.mark.parametrize("name", OPERATORS)
def test_of_a_trace(name):
    operator = OPERATORS[name]
    for ways in itertools.product(WAYS, repeat=2):
        given = [lying(how) for how in ways]
        with real_strides(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            traced = strides(operator(*map(mode.from_tensor, given)))
        assert traced == strides(operator(*given)), ways
