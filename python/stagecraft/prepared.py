"""What a module, a batch and the arguments of `pipeline()` become: a model folder and the parts of a config
that say what is trained on what."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagecraft_planner.nearest import did_you_mean

from . import captured, checks, optimizers
from .errors import InputError
from .fields import Reader, described, reader_of
from .optimizers import NAMES, Optimizer
from .schedulers import is_scheduler, rates_read

if TYPE_CHECKING:
    import torch

MICRO_BATCHES = 8  # where nobody says how many
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Prepared:
    """What a module and a batch become; the config is the caller's to go on with."""

    config: dict[str, Any]  # model, data, optimizer and sizes
    reader: Reader
    fields: Mapping[str, torch.Tensor]
    folder: captured.ModelFolder


def prepared_of(
    module: torch.nn.Module,
    batch: Any,
    *,
    loss: captured.Loss | str | None,
    optimizer: Any,
    micro_batches: int | None,
    precision: str | torch.dtype,
    layers: str,
    lengths: Sequence[int],
    cache: bool,
) -> Prepared:
    check_module(module)
    inner = inside(module)
    check_loss(loss)
    computed_in = precision_of(precision)
    reader = reader_of(batch, inner)
    fields = on_cpu(reader.fields(batch), module)
    fields = {name: fields[name] for name in reader.names}
    samples = len(fields[reader.input])
    if samples < 1:
        raise InputError("the batch has no samples")
    micro_batch = micro_batch_size(samples, micro_batches)
    chosen = optimizer_of(optimizer, inner)
    choices = captured.Choices(loss, layers, computed_in, tuple(lengths), cache)
    folder = captured.folder_of(inner, fields, choices)
    config: dict[str, Any] = {
        "model": {"family": "captured", "path": folder.path},
        "data": {
            "type": "given",
            "inputs": reader.input,
            "fields": described(fields),
            "shuffle": False,
            **({"lengths": all_lengths(lengths, fields[reader.input])} if lengths else {}),
        },
        "optimizer": optimizers.config_of(chosen, holders(folder.path)),
        "train_batch_size": samples,
        "train_micro_batch_size_per_gpu": micro_batch,
        **captured.in_a_config(inner, computed_in),
    }
    return Prepared(config, reader, fields, folder)


def precision_of(given: Any) -> str:
    """By the name, or as torch.bfloat16."""
    name = str(given).removeprefix("torch.")
    if name in PRECISIONS:
        return name
    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}.get(name.lower())
    meant = f"; did you mean {short!r}?" if short else did_you_mean(name, PRECISIONS)
    raise InputError(f"precision: expected {', '.join(PRECISIONS)}, found {given!r}{meant}")


def on_cpu(fields: dict[str, torch.Tensor], module: torch.nn.Module) -> dict[str, torch.Tensor]:
    import torch

    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type != "cpu":
            raise InputError(
                f"the module's {name} is on {tensor.device}: call module.cpu() first; the engine brings"
                ' stages to their devices itself (config={"device": "cuda"})'
            )
        if not torch.nn.parameter.is_lazy(tensor) and tensor.is_inference():
            raise InputError(
                f"the module's {name} was made in inference mode, which nothing trains: make the module"
                " outside of torch.inference_mode()"
            )
    for name, tensor in fields.items():
        if tensor.device.type != "cpu":
            raise InputError(f'the batch: "{name}" is on {tensor.device}: hand over batches on the CPU')
        if tensor.dim() < 1:
            raise InputError(f'the batch: "{name}" is one number, not rows of samples')
        if tensor.dtype not in (
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int64,
            torch.int32,
            torch.bool,
        ):
            raise InputError(
                f'the batch: "{name}" is {tensor.dtype}, which runs do not have: hand over {name}.long() or'
                f" {name}.float()"
            )
    return fields


def micro_batch_size(samples: int, micro_batches: int | None) -> int:
    micro_batches = checks.whole("micro_batches", micro_batches)
    wanted = min(samples, MICRO_BATCHES) if micro_batches is None else micro_batches
    if not 1 <= wanted <= samples:
        raise InputError(f"micro_batches: expected 1 to {samples}, the samples of a batch, found {wanted}")
    size = -(-samples // wanted)
    if micro_batches is not None and -(-samples // size) != micro_batches:
        raise InputError(
            f"micro_batches: {samples} samples in {micro_batches} micro-batches of equal size (the last may"
            f" be shorter) do not come out: use {-(-samples // size)}, or another batch"
        )
    return size


def all_lengths(lengths: Iterable[int], tensor: torch.Tensor) -> list[int]:
    return sorted({*lengths, tensor.shape[1]})


def optimizer_of(given: Any, module: torch.nn.Module) -> Optimizer:
    if isinstance(given, Optimizer):
        return given
    if isinstance(given, str):
        known = {name.lower(): name for name in NAMES}
        return Optimizer(known.get(given.lower(), given))
    if hasattr(given, "param_groups"):
        return optimizers.read(given, module)
    if callable(given):
        raise InputError(
            f"optimizer: {getattr(given, '__name__', given)!r} is not called yet: give"
            " stagecraft.AdamW(lr=...), or torch.optim.AdamW(module.parameters(), lr=...)"
        )
    raise InputError(
        f"optimizer: is a {type(given).__name__}, expected stagecraft.AdamW(lr=...), or an instance of"
        " torch.optim"
    )


def holders(folder: str) -> dict[str, list[str]]:
    """Of each parameter's name "layer.parameter" in all layers that hold it."""
    manifest = json.loads(Path(folder, "manifest.json").read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}
    for layer in manifest["layers"]:
        for name in layer["parameters"]:
            found.setdefault(name, []).append(f"{layer['name']}.{name}")
    return found


def rates_of(
    given: Any, optimizer: Any, steps: int | None
) -> tuple[Callable[[int], float] | None, Mapping[str, Any] | None]:
    """A function of the step, or a config's scheduler, or neither: the optimizer's own rate."""
    if given is None and any("initial_lr" in group for group in getattr(optimizer, "param_groups", ())):
        warnings.warn(
            "the optimizer has a scheduler, which the pipeline does not follow unless it is given as"
            " learning_rate=",
            stacklevel=3,
        )
    if is_scheduler(given):
        return rates_read(given, optimizer, steps), None
    if given is None or callable(given):
        return given, None
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        raise InputError("learning_rate: is a number, which the optimizer takes: stagecraft.AdamW(lr=...)")
    if not isinstance(given, Mapping):
        raise InputError(
            f"learning_rate: is a {type(given).__name__}, expected a function of the step, one of"
            " torch.optim.lr_scheduler, or a config's scheduler as"
            ' {"type": "WarmupCosineLR", "params": {...}}'
        )
    kind, params = given.get("type"), given.get("params", {})
    if steps is None and kind in OF_ALL_STEPS and not params.get("total_num_steps"):
        raise InputError(f"learning_rate: {kind} goes by the steps of the whole training: give steps=")
    return None, given


OF_ALL_STEPS = ("WarmupDecayLR", "WarmupCosineLR", "OneCycleLR", "WarmupStableDecayLR")


def inside(module: torch.nn.Module) -> torch.nn.Module:
    """Without what torch.compile and DataParallel put around it."""
    from stagecraft_capture import users_code

    return users_code.inside(module)


def check_module(module: Any) -> None:
    import torch

    if isinstance(module, torch.nn.Module):
        return
    if isinstance(module, type):
        raise InputError(
            f"the module is the class {module.__name__}: give an instance, {module.__name__}(...)"
        )
    raise InputError(f"the module is a {type(module).__name__}, expected a torch.nn.Module")


def check_loss(loss: Any) -> None:
    """Of PyTorch's losses, which take two tensors, and are taken for functions of (output, batch)."""
    import torch

    kind = type(loss) if isinstance(loss, torch.nn.Module) else loss
    if getattr(kind, "__module__", "") not in ("torch.nn.modules.loss", "torch.nn.functional"):
        return
    name = getattr(kind, "__name__", "it")
    made = f"{name}()" if isinstance(kind, type) else name
    raise InputError(
        f'loss: {name} takes two tensors: give "cross_entropy" or "mse", or a function of (output, batch), as'
        f" lambda output, batch: {made}(output, batch['targets'])"
    )


def merged(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Objects within each other key by key."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(config.get(key), dict):
            config[key] = merged(config[key], value)
        else:
            config[key] = dict(value) if isinstance(value, Mapping) else value
    return config
