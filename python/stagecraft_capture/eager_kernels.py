"""Operators that tracing would write out in Python, as other operators, and that eager mode has a kernel for.
The two round differently, and the kernel keeps the order of dimensions in memory that its input has."""

import contextlib
from collections.abc import Iterator

import torch

from .torch_private import DispatchKey

ATEN = torch.ops.aten
PACKETS = [
    *(
        getattr(ATEN, f"{kind}{n}d")
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
    ),
    *(ATEN.upsample_linear1d, ATEN.upsample_bilinear2d, ATEN.upsample_trilinear3d, ATEN.upsample_bicubic2d),
    *(ATEN.hardshrink, ATEN.softshrink, ATEN.multi_margin_loss, ATEN.multilabel_margin_loss_forward),
]
IN_PYTHON = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    overloads = [getattr(packet, name) for packet in PACKETS for name in packet.overloads()]
    hidden = [
        (op, key, op.py_kernels.pop(key)) for op in overloads for key in IN_PYTHON if key in op.py_kernels
    ]
    for op in overloads:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in hidden:
            op.py_kernels[key] = kernel
        for op in overloads:
            op._dispatch_cache.clear()
