"""Where a module comes from: FILE.py:NAME, or Hugging Face."""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from . import hugging_face
from .batch import Field, drawn, parse_field, sizes_in
from .calls import by_name, names_by_place, takes_whole
from .calls import missing as missing_arguments
from .errors import CaptureError, missing
from .losses import USUAL, Fields, WithLoss, usual
from .no_weights import as_on_cpu, parameters_without_numbers
from .precision import COMPUTED, in_precision
from .results import Results, by_mode, results_of, structure
from .routed import with_hooks
from .small_twin import small_config
from .stored import read_by
from .users_code import first_look, refuse_result, refuse_untrainable, refuse_unusual, running, unwrapped

if TYPE_CHECKING:
    from .batch import Batch
    from .stored import Place


def function_in(path: str, name: str) -> Any:
    """What a Python file has under a name."""
    if not os.path.isfile(path):
        raise CaptureError(f"{path}: there is no such file: give FILE.py:NAME")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name_of_module = f"captured_model:{os.path.abspath(path)}"
    if name_of_module in sys.modules:  # a model and its loss in one file share what it holds
        return named_in(sys.modules[name_of_module], path, name)
    spec: Any = importlib.util.spec_from_file_location(name_of_module, path)
    module = sys.modules[name_of_module] = importlib.util.module_from_spec(spec)
    with running(f"{path} cannot be imported"):
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name_of_module]
            if not isinstance(error, ModuleNotFoundError):
                raise
            raise CaptureError(f"{path}: {missing((error.name or str(error)).partition('.')[0])}") from error
    return named_in(module, path, name)


def named_in(module: Any, path: str, name: str) -> Any:
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise CaptureError(f"{path}: has no {name!r}; it has {', '.join(public) or 'nothing'}")
    return getattr(module, name)


def from_file(text: str) -> torch.nn.Module:
    """The module that FILE.py:NAME is, or that it returns when it is a function or a class."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CaptureError(f"{text!r}: expected FILE.py:NAME, as in model.py:build")
    found = function_in(path, name)
    if not isinstance(found, torch.nn.Module) and not callable(found):
        raise CaptureError(
            f"{text}: is a {type(found).__name__}; expected a torch.nn.Module, or a function that returns one"
        )
    with running(f"{text} fails"):
        made = found if isinstance(found, torch.nn.Module) else found()
    if not isinstance(made, torch.nn.Module):
        what = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
        raise CaptureError(f"{text}: returns {what}; expected a torch.nn.Module")
    return unwrapped(made)


def input_name(module: torch.nn.Module) -> str:
    """The first argument of its forward."""
    kind = type(module)
    if "forward" not in dir(kind) or kind.forward is torch.nn.Module.forward:
        raise CaptureError(f"{kind.__name__} has no forward: write one that takes the samples")
    first = next(iter(names_by_place(module, 1)), None)
    if first is None and takes_whole(module, ("any",)):
        raise CaptureError(
            f"{kind.__name__}.forward takes its batch by names: name the input, as in --input x=f32[8]"
        )
    if first is None:
        raise CaptureError(f"{kind.__name__}.forward takes no argument: let it take the samples")
    return first


def input_field(module: torch.nn.Module, arguments: argparse.Namespace) -> Field:
    numbers = COMPUTED[arguments.dtype]
    if arguments.input and "=" in arguments.input:
        named = parse_field(arguments.input, "--input")
        return replace(named, dtype=numbers) if named.dtype == torch.float32 else named
    name = input_name(module)
    if arguments.input:
        return Field(name, sizes_in(arguments.input), numbers)
    if arguments.sequence and arguments.vocabulary:
        return Field(name, [arguments.sequence], below=arguments.vocabulary)
    raise CaptureError("give --input SIZES for numbers, or --sequence N and --vocabulary N for tokens")


def require_arguments(module: torch.nn.Module, names: Collection[str]) -> None:
    """Refuses a module whose forward needs more than the batch has."""
    for name in missing_arguments(module, names):
        raise CaptureError(
            f"the model's forward needs {name!r}: give --field {name}=TYPE[SIZES], as in {name}=i64[128]"
        )


def load_loss(text: str) -> Callable[..., Any]:
    """FILE.py:NAME, a function of (output, batch)."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CaptureError(
            f"--loss {text}: expected {', '.join(USUAL)} or FILE.py:NAME, a function of the output and the"
            " batch"
        )
    found = function_in(path, name)
    if type(found).__module__ == "torch.nn.modules.loss":
        raise CaptureError(
            f"--loss {text}: is a {type(found).__name__} of two tensors; write a function of (output, batch),"
            f" as in lambda output, batch: {name}(output, batch['targets'])"
        )
    if isinstance(found, type) or not callable(found):
        raise CaptureError(
            f"--loss {text}: is a {type(found).__name__ if not isinstance(found, type) else 'class'};"
            " expected a function of (output, batch)"
        )
    return found


def results_for(
    made: Any,
    module: torch.nn.Module,
    loss: Callable[..., Any] | None,
    fields: dict[str, torch.Tensor],
    places: Sequence[Place] = (),
) -> Results:
    """Of results.py, in both modes. `fields`: two samples, of which the module made `made` in evaluation, and
    with `places`, of stored.py, what stands there too."""
    results = _results_in_a_mode(made, module, loss, fields, places)
    if loss is None:
        return results
    again = first_look(WithLoss(module, None, None, places), dict(fields), training=True)
    if structure(again) == structure(made):
        return results
    return by_mode(results, made, _results_in_a_mode(again, module, loss, fields, places), again)


def _results_in_a_mode(
    made: Any,
    module: torch.nn.Module,
    loss: Callable[..., Any] | None,
    fields: dict[str, torch.Tensor],
    places: Sequence[Place],
) -> Results:
    called = loss and (lambda output: WithLoss(module, loss, None, places).loss_of(output, fields))

    def of_three() -> Any:
        more = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in fields.items()}
        try:
            return first_look(WithLoss(module, None, None, places), more, training=module.training)
        except CaptureError:
            return None

    with running("the loss fails", module):
        results = results_of(made, module, called, 2, of_three)
    if results.detached:  # the loss may differentiate in training what it only reads in evaluation
        mode = module.training
        again = first_look(WithLoss(module, None, None, places), dict(fields), training=True)
        module.train()
        with running("the loss fails", module):
            in_training = results_of(again, module, called, 2, of_three)
        module.train(mode)
        results.detached &= in_training.detached if in_training.names == results.names else frozenset()
    return results


def load(arguments: argparse.Namespace) -> tuple[Any, Batch, bool]:
    """The module, the batch that it reads, and whether it returns its loss too."""
    if arguments.hf:
        if arguments.loss:
            raise CaptureError("--hf has the model's own loss: leave --loss out, which is for FILE.py:NAME")
        with running(f"{arguments.hf}: transformers cannot make the model"):
            loaded = hugging_face.load_with_batch(arguments)
        refuse_untrainable(loaded[0])
        return loaded
    torch.manual_seed(arguments.seed)
    with parameters_without_numbers() if arguments.no_weights else contextlib.nullcontext():
        module = from_file(arguments.source)
    arguments.dtype = in_precision(module, arguments.dtype, arguments.full)
    mode = as_on_cpu(module) if arguments.no_weights else None
    refuse_unusual(module)
    with_hooks(module)
    fields = [input_field(module, arguments), *map(parse_field, arguments.field)]
    require_arguments(module, {field.name for field in fields})

    def samples() -> dict[str, torch.Tensor]:
        return {name: mode.from_tensor(t) if mode else t for name, t in drawn(fields).at(2).items()}

    made = first_look(WithLoss(module, None), samples())
    loss = load_loss(arguments.loss) if arguments.loss and arguments.loss not in USUAL else None
    places = read_by(loss, module, Fields(samples())) if loss and not mode else []
    if places:
        made = first_look(WithLoss(module, None, None, places), samples())
    results = results_for(made, module, loss, samples(), places)
    example = results.one(made)
    refuse_result(example, module)
    plain = len(fields) == 1 and isinstance(made, torch.Tensor) and by_name(module, fields[0].name)
    if plain and not arguments.loss:
        return module, drawn(fields), False
    if arguments.loss in USUAL:
        loss, target = usual(arguments.loss, example)
        fields = [*(f for f in fields if f.name != target.name), target]
    wrapped = WithLoss(module, loss, results, places)
    if loss is not None:
        first_look(wrapped, samples(), "the loss")
    return wrapped, drawn(fields), loss is not None


def small_twin(arguments: argparse.Namespace) -> tuple[Any, Batch, bool] | None:
    """What load() returns for the same config in small, or None where there is none."""
    small = small_config(hugging_face.config_of(arguments)) if arguments.hf else None
    if small is None:
        return None
    arguments = copy.copy(arguments)
    arguments.sequence = arguments.sequence and min(arguments.sequence, 16)
    return hugging_face.load_with_batch(arguments, about=small)
