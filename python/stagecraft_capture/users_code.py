"""The user's Python: what it raises becomes a line with its place, and what it returns is looked at before
anything is traced."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from stagecraft_tools.console import first_line

from .calls import names_by_place, takes_whole
from .errors import CaptureError, place_in
from .export_errors import place_of_error, with_place
from .instead import of_detectors
from .reach import Snapshot, is_fake

DRAWN = "; integers are drawn below a bound: give --field NAME=i64[SIZES]<N, or --vocabulary"
# Of what PyTorch says, where it does not say what to do.
REMEDIES = (
    (r"out of bounds|out of range in self", DRAWN),
    (r"no NVIDIA driver|not compiled with CUDA", "; leave .cuda() out: runs bring layers to their devices"),
    (r"same dtype|expected scalar type", "; convert with .to(other.dtype)"),
)


def usual_remedy(module: torch.nn.Module | None) -> str:
    """Where nothing better is known."""
    if module is None:
        return "; run it in Python alone, and mend it there"
    return "; call it so in Python, and mend it there, or give other samples (--input, --field)"


@contextlib.contextmanager
def running(what: str | Callable[[], str], module: torch.nn.Module | None = None) -> Iterator[None]:
    """What the user's code raises here, which is `what`, is refused. `module`: whose part is named."""
    try:
        yield
    except CaptureError as error:
        raise with_place(error, module) from error
    except (Exception, SystemExit) as error:
        place = place_of_error(error, module) or place_in(error)
        said = (
            f"{first_line(error)} (it ends the process)"
            if isinstance(error, SystemExit)
            else first_line(error)
        )
        remedy = next((words for text, words in REMEDIES if re.search(text, said)), usual_remedy(module))
        what = what if isinstance(what, str) else what()
        raise CaptureError(f"{f'{place}: ' if place else ''}{what}: {said}{remedy}") from error


def _around(part: torch.nn.Module) -> torch.nn.Module | None:
    """The module that torch.compile, DataParallel or DistributedDataParallel was put around."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return getattr(part, "_orig_mod", None) or (part.module if isinstance(part, parallel) else None)


def inside(module: torch.nn.Module) -> torch.nn.Module:
    """Without those around the whole."""
    while (inner := _around(module)) is not None:
        module = inner
    return module


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Without those around its parts, either: a run compiles and replicates by itself."""
    module = inside(module)
    for part in list(module.modules()):
        for name, child in list(part._modules.items()):
            if child is not None and _around(child) is not None:
                part._modules[name] = unwrapped(child)
    return module


def uncompiled() -> AbstractContextManager[None]:
    """In it what the user compiled (torch.compile as a decorator, module.compile()) runs as it was written: a
    graph is made of its operators, and eager mode is what it is compared with."""
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return,no-untyped-call]


def refuse_unusual(module: torch.nn.Module) -> None:
    """Modules that have no numbers on this processor, or nothing to train."""
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(
            f"{type(module).__name__} is TorchScript, which has no Python to follow: return the"
            " torch.nn.Module that it was made of"
        )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise CaptureError(f"{name} has no sizes yet: call the lazy module once before it is returned")
        if tensor.device.type != "cpu":
            raise CaptureError(
                f"{name} is on the device {tensor.device}: return the module on the CPU (for types alone,"
                " give --no-weights)"
            )
        if tensor.is_complex() and isinstance(tensor, torch.nn.Parameter):
            raise CaptureError(
                f"{name} is complex, and weights are real numbers: hold it as two,"
                f" torch.nn.Parameter(torch.view_as_real(...)), and read it in forward by"
                f" torch.view_as_complex(self.{name.rpartition('.')[2]})"
            )
        if tensor.is_quantized or tensor.layout != torch.strided:
            kind = "quantized" if tensor.is_quantized else "sparse"
            raise CaptureError(
                f"{name} is {kind}, which runs do not know: return a module of dense real numbers"
            )
    if said := of_detectors(module):
        raise CaptureError(said)
    refuse_untrainable(module)


def refuse_untrainable(module: torch.nn.Module) -> None:
    parameters = dict(module.named_parameters())
    if not parameters:
        raise CaptureError(
            f"{type(module).__name__} has no parameters: there is nothing to train; make its weights"
            " parameters (torch.nn.Parameter, modules that are its attributes, lists of them"
            " torch.nn.ModuleList)"
        )
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise CaptureError(
            f"all weights of {type(module).__name__} are frozen: there is nothing to train; set requires_grad"
            f" of those to train, as in model.{next(iter(parameters))}.requires_grad_()"
        )


@contextlib.contextmanager
def state_kept(module: torch.nn.Module) -> Iterator[None]:
    """A forward may change state in evaluation too. Lazy parts get their weights by it, and keep them."""
    from .state import Lines

    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        yield
        return
    before = Snapshot(module)
    try:
        # frozen parameters that it writes to, as codebooks, are remembered before it does
        with contextlib.nullcontext() if any(map(is_fake, module.parameters())) else Lines(module, before):
            yield
    finally:
        before.restore()


def as_field(tensor: torch.Tensor) -> str:
    """Its type as --field has it."""
    kind = "f32" if tensor.is_floating_point() else "i64"
    return f"{kind}[{','.join(map(str, tensor.shape[1:]))}]"


def sizes_of(fields: dict[str, torch.Tensor]) -> str:
    return ", ".join(
        f"{name} of {str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for name, t in fields.items()
    )


NO_DICTIONARY = re.compile(
    r"invalid data type 'str'|not a mapping|'Tensor' object has no attribute '(get|items|keys|values|pop)'$"
)


def of_dictionary(called: torch.nn.Module, fields: Collection[str]) -> str:
    """A word on a batch that a module gets as a whole: its argument may be misspelt in a field's name."""
    module = getattr(called, "wrapped", called)
    argument = next(iter(names_by_place(module, 1)), None)
    if argument is None or not takes_whole(module, fields):
        return ""
    return f" (no argument has the name {' or '.join(fields)}, so {argument!r} is a dictionary of them)"


def works(called: torch.nn.Module, fields: dict[str, torch.Tensor]) -> bool:
    try:
        called(**fields)
    except (Exception, SystemExit):
        return False
    return True


def first_look(
    called: torch.nn.Module,
    fields: dict[str, torch.Tensor],
    what: str = "the model",
    training: bool = False,
) -> Any:
    """What a module, with its loss where it has one, returns in evaluation, or in `training`, for `fields`,
    which are two samples."""

    def failing() -> str:
        alone = "" if training or not works(called.train(), fields) else " after eval(), not in training,"
        return f"{what} fails{alone} on samples of {sizes_of(fields)}{of_dictionary(called, fields)}"

    with (
        state_kept(called),
        torch.random.fork_rng(devices=[]),
        running(failing, called),
    ):
        try:
            return called.train(training)(**fields)
        except (TypeError, AttributeError) as error:
            name, tensor = next(iter(fields.items()))
            if not NO_DICTIONARY.search(str(error)) or takes_whole(
                getattr(called, "wrapped", called), fields
            ):
                raise
            raise CaptureError(
                f"{name!r} is a tensor, and is read as a dictionary ({first_line(error)}): name its entries,"
                f" the input first, as in --input x={as_field(tensor)} --field mask=bool[8]"
            ) from error


def refuse_result(made: Any, module: torch.nn.Module) -> None:
    """Unless it is one tensor of numbers that a weight reaches, with a dimension of samples."""
    if not isinstance(made, torch.Tensor):
        raise CaptureError(
            f"{type(module).__name__}.forward returns {described(made)}: return one tensor, the one that the"
            " loss reads; several can be packed into one by torch.cat"
        )
    if not made.is_floating_point():
        raise CaptureError(
            f"{type(module).__name__}.forward returns"
            f" {str(made.dtype).removeprefix('torch.')}{list(made.shape)}: return the floating-point numbers"
            " that the loss reads"
        )
    if made.dim() == 0:
        raise CaptureError(
            f"{type(module).__name__}.forward returns one number for the whole batch: return the output of"
            " each sample, and give its loss with --loss FILE.py:NAME"
        )
    if not made.requires_grad:
        raise CaptureError(
            f"no weight of {type(module).__name__} has a gradient: its output comes from torch.no_grad,"
            " inference_mode or .detach(), or by a way that reads no weight, as an early return does: leave"
            " that out where the model trains"
        )


def described(made: Any) -> str:
    if isinstance(made, dict):
        return (
            f"a {type(made).__name__} of"
            f" {', '.join(f'{name}: {described(value)}' for name, value in made.items()) or 'nothing'}"
        )
    if isinstance(made, (tuple, list)):
        return f"a {type(made).__name__} of {', '.join(map(described, made)) or 'nothing'}"
    return "None" if made is None else type(made).__name__
