"""Where a module comes from: FILE.py:NAME, or Hugging Face."""

import contextlib
import copy
import importlib.util
import inspect
import os
import sys

import torch

from . import hugging_face
from .batch import Batch, Field, parse_field, sizes_in
from .errors import CaptureError, missing
from .losses import USUAL, WithLoss, usual
from .no_weights import as_on_cpu, parameters_without_numbers
from .own_gpt import gpt
from .precision import NARROW, narrow_as_asked
from .reach import Snapshot
from .small_twin import small_config


def function_in(path, name):
    """What a Python file has under a name."""
    if not os.path.isfile(path):
        raise CaptureError(f"{path}: there is no such file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("captured_model", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise CaptureError(f"{path}: {missing(error.name.partition('.')[0])}") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise CaptureError(f"{path}: has no {name!r}; it has {', '.join(public)}")
    return getattr(module, name)


def from_file(text):
    """The module that FILE.py:NAME is, or that it returns when it is a function or a class."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CaptureError(f"{text!r}: expected FILE.py:NAME, as in model.py:build")
    found = function_in(path, name)
    made = found if isinstance(found, torch.nn.Module) else found()
    if not isinstance(made, torch.nn.Module):
        raise CaptureError(f"{text}: is a {type(made).__name__}; expected a torch.nn.Module, or a function that returns one")
    return made


def input_name(module):
    """The first argument of its forward."""
    names = list(inspect.signature(module.forward).parameters)
    if not names:
        raise CaptureError("the model's forward takes no argument")
    return names[0]


def input_field(module, arguments):
    name = input_name(module)
    if arguments.input:
        return Field(name, sizes_in(arguments.input), NARROW.get(arguments.dtype, torch.float32))
    if arguments.sequence and arguments.vocabulary:
        return Field(name, [arguments.sequence], below=arguments.vocabulary)
    raise CaptureError("give --input SIZES for numbers, or --sequence N and --vocabulary N for tokens")


def require_arguments(module, names):
    """Refuses a module whose forward needs more than the batch has."""
    for parameter in inspect.signature(module.forward).parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not variadic and parameter.default is parameter.empty and parameter.name not in names:
            raise CaptureError(f"the model's forward needs {parameter.name!r}: give --field {parameter.name}=TYPE[SIZES], as in {parameter.name}=i64[128]")


def load_loss(text):
    """FILE.py:NAME, a function of (output, batch)."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CaptureError(f"--loss {text}: expected {', '.join(USUAL)} or FILE.py:NAME, a function of the output and the batch")
    return function_in(path, name)


def load(arguments):
    """The module, the batch that it reads, and whether it returns its loss too."""
    if arguments.hf:
        if arguments.loss:
            raise CaptureError("--hf has the model's own loss; --loss is for FILE.py:NAME")
        return hugging_face.load_with_batch(arguments)
    torch.manual_seed(arguments.seed)
    with parameters_without_numbers() if arguments.no_weights else contextlib.nullcontext():
        module = gpt(arguments.gpt, arguments.vocabulary, arguments.sequence) if arguments.gpt else from_file(arguments.source)
    narrow_as_asked(module, arguments)
    mode = as_on_cpu(module) if arguments.no_weights else None
    fields = [input_field(module, arguments), *map(parse_field, arguments.field)]
    require_arguments(module, {field.name for field in fields})
    if not arguments.loss and len(fields) == 1:
        return module, Batch(fields), False
    loss = None
    if arguments.loss in USUAL:
        given = {name: mode.from_tensor(t) if mode else t for name, t in Batch(fields).at(2).items()}
        lazy, before = any(map(torch.nn.parameter.is_lazy, module.parameters())), Snapshot(module)
        with torch.no_grad():
            example = WithLoss(module.eval(), None)(**given)
        if not lazy:  # those get their weights by it
            before.restore()  # a forward may change state in evaluation too
        loss, target = usual(arguments.loss, example)
        fields = [*(f for f in fields if f.name != target.name), target]
    elif arguments.loss:
        loss = load_loss(arguments.loss)
    return WithLoss(module, loss), Batch(fields), loss is not None


def small_twin(arguments):
    """What load() returns for the same config in small, or None where there is none."""
    small = small_config(hugging_face.config_of(arguments)) if arguments.hf else None
    if small is None:
        return None
    arguments = copy.copy(arguments)
    arguments.sequence = arguments.sequence and min(arguments.sequence, 16)
    return hugging_face.load_with_batch(arguments, about=small)
