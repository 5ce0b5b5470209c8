"""What a module computes in: float32, float64, or mixed precision, which is bfloat16 or float16 of float32
weights.

In mixed precision a run keeps float32 weights, which its steps update, and hands layers copies in the type
that they were captured in. So the module's parameters become narrow here, unless they are, and remember the
numbers that they were made of: these are what the model folder stores.
"""

import fnmatch
from collections.abc import Iterable
from typing import Any

import torch

from .errors import CaptureError

NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# What runs compute in, and of what the input's numbers are.
COMPUTED = {"float32": torch.float32, "float64": torch.float64, **NARROW}
# What a run's config says for each.
IN_A_CONFIG: dict[str, dict[str, Any]] = {
    "float32": {},
    "float64": {"dtype": "float64"},
    "bfloat16": {"bf16": {"enabled": True}},
    "float16": {"fp16": {"enabled": True}},
}


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


def precision_of(module: torch.nn.Module, asked: str) -> str:
    """What the module computes in, of COMPUTED: its weights' own type, or what is `asked` for where they are
    float32."""
    own = {str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.dtype.is_floating_point}
    found = {*own, asked} - {"float32"} or {"float32"}
    if len(found) > 1 or own > {"float64"} or not found <= COMPUTED.keys():
        raise CaptureError(
            f"{type(module).__name__} has weights of {', '.join(sorted(own))}"
            f"{f' and --dtype is {asked}' if asked != 'float32' else ''}, and a run computes in one type:"
            " call .float() before it is returned (--dtype bfloat16 computes in bfloat16)"
        )
    return found.pop()


def in_precision(module: torch.nn.Module, asked: str, full: str | None = None) -> str:
    """The same, with weights as runs have them: float32 ones are converted to what is `asked` for, but those
    of modules that fit `full`, and narrow ones remember float32 numbers."""
    found = precision_of(module, asked)
    if found in NARROW:
        for parameter in module.parameters():
            if parameter.dtype == NARROW[found]:
                parameter.master = parameter.data.float()
    if asked in NARROW:
        narrow(module, NARROW[asked], patterns(full or "", module))
    return found


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
