"""Strides that torch's fake kernels tell wrongly where an input is not contiguous, or of any input, as those
of Fourier transforms. The real kernels are asked, on zeros."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from .torch_private import (
    FakeTensorMode,
    OpOverload,
    decomposition_table,
    fake_kernels,
    make_contiguous_strides_for,
    meta_table,
    pytree,
    unset_fake_temporarily,
)

ATEN = torch.ops.aten
OPERATORS = [
    *(
        ATEN.native_batch_norm.default,
        ATEN._native_batch_norm_legit.default,
        ATEN._native_batch_norm_legit.no_stats,
    ),
    *(ATEN._native_batch_norm_legit_functional.default, ATEN._native_batch_norm_legit_no_training.default),
    *(ATEN.native_batch_norm_backward.default, ATEN.native_layer_norm_backward.default),
    *(ATEN.hardswish_backward.default, ATEN.glu_backward.default, ATEN.native_channel_shuffle.default),
    *(ATEN.log_sigmoid_forward.default, ATEN.log_sigmoid_backward.default),
    *(ATEN.roll.default, ATEN.reflection_pad2d.default, ATEN.replication_pad2d.default),
    *(ATEN.elu_backward.default, ATEN.hardtanh_backward.default, ATEN.hardsigmoid_backward.default),
    *(ATEN.leaky_relu_backward.default, ATEN.threshold_backward.default, ATEN.softplus_backward.default),
    *(ATEN.rrelu_with_noise_backward.default, ATEN._prelu_kernel_backward.default),
    *(ATEN.logit_backward.default, ATEN._log_softmax_backward_data.default, ATEN.xlogy.Tensor),
    *(ATEN.mse_loss_backward.default, ATEN.huber_loss_backward.default),
    *(ATEN.smooth_l1_loss_backward.default, ATEN.binary_cross_entropy_backward.default),
    ATEN.reflection_pad2d_backward.default,
]
ALWAYS = [ATEN._fft_r2c.default, ATEN._fft_c2r.default, ATEN._fft_c2c.default]
WRITTEN_OUT = [op for op in OPERATORS if op not in meta_table]


def in_order(tensor: torch.Tensor) -> bool:
    """Whether its strides are those of a new tensor, those of sizes of 1 as well: kernels tell channels last
    by them."""
    return tensor.is_contiguous() and tensor.stride() == make_contiguous_strides_for(tensor.shape)


def by_real_kernel(mode: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if operator not in ALWAYS and all(map(in_order, tensors)):
        if operator not in WRITTEN_OUT:
            return NotImplemented
        with mode:
            return decomposition_table.get(operator, operator.decompose)(*args, **kwargs)

    def zeros(t: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).zero_()

    with torch.no_grad(), unset_fake_temporarily():
        made = operator(
            *pytree.tree_map_only(torch.Tensor, zeros, args),
            **pytree.tree_map_only(torch.Tensor, zeros, kwargs),
        )
    with mode:
        return pytree.tree_map_only(
            torch.Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype), made
        )


class OfOperators(dict):
    """What FakeTensorMode remembers of operators. Subgraphs are left out: their entries may live no longer
    than they do."""

    def __setitem__(self, key: Any, entry: Any) -> None:
        if isinstance(key.key[0], OpOverload):
            super().__setitem__(key, entry)


REMEMBERED = OfOperators()  # while the real kernels are asked: a model's layers have much in common


@contextlib.contextmanager
def real_strides() -> Iterator[None]:
    before = {op: fake_kernels.get(op) for op in (*OPERATORS, *ALWAYS)}
    fake_kernels.update(dict.fromkeys(before, by_real_kernel))
    # else what they are written out as would be asked first
    meta_table.update(dict.fromkeys(WRITTEN_OUT, by_real_kernel))
    FakeTensorMode.cache, outside = REMEMBERED, FakeTensorMode.cache
    try:
        yield
    finally:
        for op, kernel in before.items():
            fake_kernels.pop(op)
            if kernel is not None:
                fake_kernels[op] = kernel
        for op in WRITTEN_OUT:
            del meta_table[op]
        FakeTensorMode.cache = outside
