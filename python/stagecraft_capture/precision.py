"""Mixed precision: a module that computes in bfloat16 or float16, of float32 weights.

A run keeps float32 weights, which its steps update, and hands layers copies in the type that they were
captured in. So the module's parameters become narrow here, and remember the numbers that they were made of:
these are what the model folder stores.
"""

import argparse
import fnmatch
from collections.abc import Iterable

import torch

from .errors import CaptureError

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def master_of(tensor: torch.Tensor) -> torch.Tensor:
    """The float32 numbers that a parameter was narrowed from, or else itself."""
    return getattr(tensor, "master", tensor)


def wide(output: torch.Tensor) -> torch.Tensor:
    """For losses, which are computed in float32."""
    return output.float() if output.dtype in NARROW.values() else output


def patterns(text: str, module: torch.nn.Module) -> list[str]:
    """Those of --full. Refuses one that fits no module."""
    found = [pattern for pattern in (text or "").split(",") if pattern]
    for pattern in found:
        if not any(fits(path, part, pattern) for path, part in module.named_modules()):
            classes = sorted(
                {
                    type(part).__name__
                    for part in module.modules()
                    if any(True for _ in part.parameters(recurse=False))
                }
            )
            raise CaptureError(
                f"--full {pattern}: no module's path, and no class of one, fits; classes with parameters are"
                f" {', '.join(classes)}"
            )
    return found


def fits(path: str, part: torch.nn.Module, pattern: str) -> bool:
    """A path has as many parts as its pattern, as with --layers; a pattern of one part also stands for
    classes."""
    wanted, parts = pattern.split("."), path.split(".")
    of_path = len(wanted) == len(parts) and all(map(fnmatch.fnmatchcase, parts, wanted))
    return of_path or (len(wanted) == 1 and fnmatch.fnmatchcase(type(part).__name__, pattern))


def tensors_in_full(module: torch.nn.Module, full: Iterable[str]) -> set[int]:
    """ids of parameters and buffers under modules that fit one of the patterns."""
    kept = [
        part for path, part in module.named_modules() if any(fits(path, part, pattern) for pattern in full)
    ]
    return {id(tensor) for part in kept for tensor in [*part.parameters(), *part.buffers()]}


def kept_by_transformers(module: torch.nn.Module, dtype: torch.dtype) -> set[int]:
    """ids of the parameters that transformers keeps in float32 where it loads the model in `dtype`."""
    names = list(getattr(module, "_keep_in_fp32_modules_strict", None) or [])
    if dtype == torch.float16:
        names += getattr(module, "_keep_in_fp32_modules", None) or []

    def inside(path: str) -> bool:
        return any(f".{name}." in f".{path}." for name in names)

    return {
        id(parameter) for path, parameter in module.named_parameters(remove_duplicate=False) if inside(path)
    }


def narrow_as_asked(module: torch.nn.Module, arguments: argparse.Namespace) -> None:
    """By --dtype and --full."""
    if arguments.dtype in NARROW:
        narrow(module, NARROW[arguments.dtype], patterns(arguments.full, module))


def narrow(module: torch.nn.Module, dtype: torch.dtype, full: Iterable[str] = ()) -> None:
    """Converts parameters and persistent buffers to `dtype`, but those of modules that fit a pattern of
    `full`, and those that transformers keeps in float32. Buffers that are not persistent stay: rotary tables
    would lose their precision."""
    kept = tensors_in_full(module, full) | kept_by_transformers(module, dtype)
    for parameter in module.parameters():
        if parameter.dtype == torch.float32 and id(parameter) not in kept:
            master = parameter.data
            parameter.data = master.to(dtype)
            parameter.master = master
    for part in module.modules():
        for name, buffer in part._buffers.items():
            persistent = name not in part._non_persistent_buffers_set
            if buffer is not None and persistent and buffer.dtype == torch.float32 and id(buffer) not in kept:
                part._buffers[name] = buffer.to(dtype)


def narrow_statistics(module: torch.nn.Module) -> int:
    """How many batch norms keep running statistics in a narrow type."""
    narrow_ones = (
        m
        for m in module.modules()
        if isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.running_var is not None
    )
    return sum(m.running_var.dtype in NARROW.values() for m in narrow_ones)
