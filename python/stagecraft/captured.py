"""A module as a model folder, in a cache by its structure, so that a second start captures nothing."""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import inspect
import io
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CaptureError, InputError
from .structure import structure_of
from .telling import phase

if TYPE_CHECKING:
    import torch

KEPT = 16  # folders of the cache
Loss = Callable[[Any, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class ModelFolder:
    path: str
    said: str  # what the capture printed; "" where that is not kept
    temporary: tempfile.TemporaryDirectory[str] | None = None  # which goes with the last who holds this


@dataclass(frozen=True)
class Choices:
    """Of a capture."""

    loss: Loss | str | None
    layers: str
    precision: str
    lengths: Sequence[int]
    cache: bool


def cache_folder() -> Path:
    """$STAGECRAFT_CACHE, or stagecraft/captures in the user's cache folder."""
    if given := os.environ.get("STAGECRAFT_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stagecraft" / "captures"


def folder_of(module: torch.nn.Module, fields: Mapping[str, torch.Tensor], choices: Choices) -> ModelFolder:
    """Captures `module` with samples of `fields`, its input first, unless that was done before. The module,
    torch's random numbers and its settings are afterwards what they were. Throws CaptureError."""
    key = None
    if choices.cache:
        about = [(name, tuple(t.shape[1:]), str(t.dtype)) for name, t in fields.items()]
        key = structure_of(
            module,
            [about, choices.loss, choices.layers, choices.precision, list(choices.lengths), module.training],
        )
    if key is None:
        place = tempfile.TemporaryDirectory(prefix="stagecraft-capture-")
        return ModelFolder(
            f"{place.name}/model", _capture(module, fields, choices, f"{place.name}/model"), place
        )
    folder = cache_folder() / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):  # of several processes that start together one captures
        if (folder / "manifest.json").is_file():
            os.utime(folder)
            with contextlib.suppress(OSError):
                return ModelFolder(str(folder), _report_of(folder).read_text(encoding="utf-8"))
            return ModelFolder(str(folder), "")
        said = as_arguments(_capture(module, fields, choices, str(folder)))
        with contextlib.suppress(OSError):  # the capture is whole without
            _report_of(folder).write_text(said, encoding="utf-8")
        _tidy(folder)
    return ModelFolder(str(folder), said)


def _report_of(folder: Path) -> Path:
    """Beside it: a model folder has its own files alone."""
    return folder.with_name(f"{folder.name}.txt")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder.with_name(f".{folder.name}.lock")
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _tidy(newest: Path) -> None:
    """The oldest folders go, of those that were captures."""
    folders = [each for each in newest.parent.iterdir() if (each / "stagecraft_capture.json").is_file()]
    for each in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(each, ignore_errors=True)
        _report_of(each).unlink(missing_ok=True)


def in_a_config(module: torch.nn.Module, precision: str) -> dict[str, Any]:
    """What a config says of what the captured module computes in. Throws CaptureError."""
    from stagecraft_capture.errors import CaptureError as Refused
    from stagecraft_capture.precision import IN_A_CONFIG, precision_of

    try:
        return IN_A_CONFIG[precision_of(module, precision)]
    except Refused as error:
        raise CaptureError(str(error)) from error


def _capture(module: torch.nn.Module, fields: Mapping[str, torch.Tensor], choices: Choices, path: str) -> str:
    """Returns what a person may like to read."""
    from stagecraft_capture.errors import CaptureError as Refused
    from stagecraft_capture.errors import require_known_torch
    from stagecraft_capture.users_code import DRAWN, uncompiled
    from stagecraft_tools.refusal import Refused as ToolRefused

    try:
        require_known_torch()
        with _as_before(module), uncompiled(), phase(f"capturing the module, a {type(module).__name__}"):
            return _captured(module, fields, choices, path)
    except (Refused, ToolRefused) as error:
        raise CaptureError(as_arguments(str(error).replace(DRAWN, _most_of(fields)))) from error


# What the capture says of its options, for who has none of them.
_IN_PYTHON = (
    (r" \(see stagecraft-capture --help\)", ""),
    (r"give --field (\S+?)=TYPE\[SIZES\].*", r"give \1 in the batch"),
    (r": name its entries, the input first, as in --input .*", ": give a batch of named entries"),
    (r"give other samples \(--input, --field\)", "give another batch"),
    (r" \(--field\b[^)]*\)", ""),
    (r"--loss FILE\.py:NAME", "loss=FUNCTION"),
    (r"; nothing is written: --allow-inexact .*", ""),
    (r" \(for types alone, give --no-weights\)", ""),
    (r" and --dtype is (\w+)", r" and precision is \1"),
    (r"--dtype (\w+)", r'precision="\1"'),
    (r": --full '[^']*' keeps them in float32", ""),
    (r"--layers (narrow:\d+)", r'layers="\1"'),
    (r"--layers PATTERN", "layers=PATTERN"),
    (r"--(layers|lengths)\b", r"\1"),
)


def as_arguments(said: str) -> str:
    """What the capture says of its options, of the arguments of `pipeline()`."""
    for option, argument in _IN_PYTHON:
        said = re.sub(option, argument, said)
    return said


def _most_of(fields: Mapping[str, torch.Tensor]) -> str:
    """Of whole numbers, for a lookup that found nothing: here they are the batch's own."""
    most = [
        f"{int(tensor.max())} in {name}"
        for name, tensor in fields.items()
        if tensor.numel() and not tensor.is_floating_point()
    ]
    return f"; the batch has numbers up to {', '.join(most)}" if most else ""


@contextlib.contextmanager
def _as_before(module: torch.nn.Module) -> Iterator[None]:
    """Puts back what a capture needs otherwise: gradients, modes, random numbers, threads, warnings."""
    import torch

    gradients = [(p, p.grad) for p in module.parameters()]
    modes = [(part, part.training) for part in module.modules()]
    threads = torch.get_num_threads()
    config = getattr(module, "config", None)
    # what a model keeps for generating is none of a training's
    settings: dict[str, Any] = {}
    if getattr(config, "use_cache", None):
        settings["use_cache"] = False
    if getattr(config, "_experts_implementation", None):
        from stagecraft_capture.hugging_face import experts_way

        settings["_experts_implementation"] = experts_way(config)
    before = {name: getattr(config, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(config, name, value)
        as_in_training = torch.inference_mode(False), torch.enable_grad()
        with (
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            as_in_training[0],
            as_in_training[1],
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)
        torch.set_num_threads(threads)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for part, training in modes:
            part.training = training


def _captured(
    module: torch.nn.Module, fields: Mapping[str, torch.Tensor], choices: Choices, path: str
) -> str:
    import torch

    from stagecraft_capture import into_folder
    from stagecraft_capture.batch import SAMPLES, Batch, Field
    from stagecraft_capture.precision import NARROW, in_precision, precision_of
    from stagecraft_capture.routed import Routed, has_router_loss, with_hooks
    from stagecraft_capture.users_code import first_look, refuse_unusual, unwrapped
    from stagecraft_tools.output import OutputFolder

    torch.set_num_threads(1)
    arguments = _arguments(choices, path)
    if precision_of(module, choices.precision) in NARROW:
        module = copy.deepcopy(module)  # its parameters become narrow
    module = unwrapped(module)
    arguments.dtype = in_precision(module, choices.precision)
    refuse_unusual(module)
    with_hooks(module)
    samples = {name: _samples_of(tensor, SAMPLES) for name, tensor in fields.items()}
    its_input = next(iter(samples))
    if samples[its_input].is_floating_point() and arguments.dtype in NARROW:  # as layer 0 gets it
        samples[its_input] = samples[its_input].to(NARROW[arguments.dtype])
    described = [Field(name, list(t.shape[1:]), t.dtype) for name, t in samples.items()]
    two = {name: tensor[:2] for name, tensor in samples.items()}
    if choices.loss is None and "labels" in samples and has_router_loss(module):
        wrapped: Any = Routed(module)
        wrapped.write_companions = None  # its config lies in no folder
    else:
        wrapped, described = _with_loss(module, choices.loss, two, described)
    first_look(wrapped, dict(two), "the loss")
    printed = io.StringIO()
    with OutputFolder("stagecraft-capture", path) as output, contextlib.redirect_stdout(printed):
        into_folder.capture_loaded(
            output, arguments, wrapped, Batch(described, samples), True, time.monotonic()
        )
    return printed.getvalue()


def _with_loss(
    module: torch.nn.Module, loss: Any, two: dict[str, torch.Tensor], described: list[Any]
) -> tuple[Any, list[Any]]:
    """The module and its loss, and the fields of a batch with the target as that reads it. `two`: samples."""
    from stagecraft_capture.losses import USUAL, Fields, WithLoss, usual
    from stagecraft_capture.source import results_for
    from stagecraft_capture.stored import read_by
    from stagecraft_capture.users_code import first_look, refuse_result

    made = first_look(WithLoss(module, None), dict(two))
    if isinstance(loss, str) and loss not in USUAL:
        raise InputError(
            f'loss: "{loss}" is not one of {", ".join(USUAL)}; give a function of (output, batch)'
        )
    if loss is None:
        loss = own_loss(made, module, two)
    function = None if isinstance(loss, str) else loss
    places = read_by(function, module, Fields(two)) if function else []
    if places:
        made = first_look(WithLoss(module, None, None, places), dict(two))
    results = results_for(made, module, function, dict(two), places)
    example = results.one(made)
    refuse_result(example, module)
    if isinstance(loss, str):
        function, target = usual(loss, example)
        if target.name not in two:
            raise InputError(f'loss: "{loss}" reads the target, and the batch has {", ".join(two)}')
        described = [target if field.name == target.name else field for field in described]
        described = [_with_type(field, two[field.name]) for field in described]
    return WithLoss(module, function, results, places), described


def _arguments(choices: Choices, path: str) -> argparse.Namespace:
    from stagecraft_capture.arguments import parse

    words = ["module.py:module", "--no-trial", "--layers", choices.layers, "-o", path]
    if choices.lengths:
        words += ["--lengths", ",".join(map(str, choices.lengths))]
    if choices.precision != "float32":
        words += ["--dtype", choices.precision]
    return parse(words)


def _samples_of(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count`, around again where there are fewer."""
    import torch

    rows = torch.arange(count) % tensor.shape[0]
    return tensor.detach()[rows].contiguous()


def _with_type(field: Any, tensor: torch.Tensor) -> Any:
    import dataclasses

    return dataclasses.replace(field, shape=list(tensor.shape[1:]), dtype=tensor.dtype)


def own_loss(made: Any, module: torch.nn.Module, names: Iterable[str]) -> Loss:
    """The loss that a module returns among its results. `names`: of the batch's fields. Throws InputError
    where there is none."""
    if isinstance(made, Mapping) and "loss" in made:
        return _loss_entry
    if isinstance(made, (tuple, list)):
        numbers = [i for i, part in enumerate(made) if hasattr(part, "dim") and part.dim() == 0]
        if len(numbers) == 1:
            return _Place(numbers[0])
    if hasattr(made, "loss") and made.loss is not None:
        return _loss_attribute
    labels = "labels" in inspect.signature(module.forward).parameters
    without = f" without labels in the batch, which has {', '.join(names)}" if labels else ""
    raise InputError(
        f"loss: {type(module).__name__} returns no loss of its own{without}: give loss=, a name"
        " (cross_entropy, mse) or a function of (output, batch)"
    )


def _loss_entry(output: Any, _: Mapping[str, Any]) -> Any:
    return output["loss"]


def _loss_attribute(output: Any, _: Mapping[str, Any]) -> Any:
    return output.loss


@dataclass(frozen=True)
class _Place:
    """The loss among several results."""

    index: int

    def __call__(self, output: Any, _: Mapping[str, Any]) -> Any:
        return output[self.index]
