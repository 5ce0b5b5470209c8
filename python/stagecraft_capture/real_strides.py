"""Strides that torch's fake kernels tell wrongly where an input is not contiguous. The real kernels are asked, on zeros."""

import contextlib

import torch
from torch._decomp import decomposition_table, meta_table
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map_only

ATEN = torch.ops.aten
OPERATORS = [
    *(ATEN.native_batch_norm.default, ATEN._native_batch_norm_legit.default, ATEN._native_batch_norm_legit.no_stats),
    *(ATEN._native_batch_norm_legit_functional.default, ATEN._native_batch_norm_legit_no_training.default),
    *(ATEN.native_batch_norm_backward.default, ATEN.native_layer_norm_backward.default),
    *(ATEN.hardswish_backward.default, ATEN.glu_backward.default, ATEN.native_channel_shuffle.default),
    *(ATEN.roll.default, ATEN.reflection_pad2d.default, ATEN.replication_pad2d.default),
]
WRITTEN_OUT = [op for op in OPERATORS if op not in meta_table]


def in_order(tensor):
    """Whether its strides are those of a new tensor, those of sizes of 1 as well: kernels tell channels last by them."""
    return tensor.is_contiguous() and tensor.stride() == torch._prims_common.make_contiguous_strides_for(tensor.shape)


def by_real_kernel(mode, operator, *args, **kwargs):
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if all(map(in_order, tensors)):
        if operator not in WRITTEN_OUT:
            return NotImplemented
        with mode:
            return decomposition_table.get(operator, operator.decompose)(*args, **kwargs)
    zeros = lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).zero_()
    with torch.no_grad(), unset_fake_temporarily():
        made = operator(*tree_map_only(torch.Tensor, zeros, args), **tree_map_only(torch.Tensor, zeros, kwargs))
    with mode:
        return tree_map_only(torch.Tensor, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype), made)


class OfOperators(dict):
    """What FakeTensorMode remembers of operators. Subgraphs are left out: their entries may live no longer than they do."""

    def __setitem__(self, key, entry):
        if isinstance(key.key[0], torch._ops.OpOverload):
            super().__setitem__(key, entry)


REMEMBERED = OfOperators()  # while the real kernels are asked: a model's layers have much in common


@contextlib.contextmanager
def real_strides():
    before = {op: op_implementations_dict.get(op) for op in OPERATORS}
    op_implementations_dict.update(dict.fromkeys(OPERATORS, by_real_kernel))
    meta_table.update(dict.fromkeys(WRITTEN_OUT, by_real_kernel))  # else what they are written out as would be asked first
    FakeTensorMode.cache, outside = REMEMBERED, FakeTensorMode.cache
    try:
        yield
    finally:
        for op, kernel in before.items():
            op_implementations_dict.pop(op)
            if kernel is not None:
                op_implementations_dict[op] = kernel
        for op in WRITTEN_OUT:
            del meta_table[op]
        FakeTensorMode.cache = outside
