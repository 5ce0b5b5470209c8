"""Where a module comes from: FILE.py:NAME, or Hugging Face."""

import importlib.util
import inspect
import os
import sys

import torch

from . import hugging_face
from .errors import CaptureError
from .small_twin import small_config
from .no_weights import as_on_cpu, parameters_without_numbers


def from_file(text):
    """The module that FILE.py:NAME is, or that it returns when it is a function or a class."""
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CaptureError(f"{text!r}: expected FILE.py:NAME, as in model.py:build")
    if not os.path.isfile(path):
        raise CaptureError(f"{path}: there is no such file")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location("captured_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise CaptureError(f"{path}: has no {name!r}; it has {', '.join(public)}")
    found = getattr(module, name)
    made = found if isinstance(found, torch.nn.Module) else found()
    if not isinstance(made, torch.nn.Module):
        raise CaptureError(f"{text}: is a {type(made).__name__}; expected a torch.nn.Module, or a function that returns one")
    return made


def input_name(module):
    """The first argument of its forward: the batch's one field."""
    names = list(inspect.signature(module.forward).parameters)
    if not names:
        raise CaptureError("the model's forward takes no argument")
    return names[0]


def numbers(module, shape):
    """Micro-batches of numbers. One array serves all sizes, so that captures at different sizes see equal samples."""
    name = input_name(module)
    drawn = torch.randn(8, *shape, generator=torch.Generator().manual_seed(3))
    return lambda b: {name: drawn[:b].clone()}


def tokens(module, sequence, vocabulary):
    name = input_name(module)
    drawn = torch.randint(vocabulary, (8, sequence), generator=torch.Generator().manual_seed(3))
    return lambda b: {name: drawn[:b].clone()}


def load(arguments):
    """The module and its micro-batches."""
    if arguments.hf:
        if not arguments.sequence:
            raise CaptureError("--hf needs --sequence: the tokens of a sample")
        module = hugging_face.load(arguments.hf, arguments.untie, arguments.seed, numbers=not arguments.no_weights)
        return module, tokens(module, arguments.sequence, module.wrapped.config.vocab_size)
    torch.manual_seed(arguments.seed)
    if arguments.no_weights:
        with parameters_without_numbers():
            module = from_file(arguments.source)
        as_on_cpu(module)
    else:
        module = from_file(arguments.source)
    if arguments.input:
        try:
            shape = [int(size) for size in arguments.input.split(",")]
        except ValueError:
            shape = []
        if not shape or min(shape) < 1:
            raise CaptureError(f"--input {arguments.input}: expected sizes of one sample, as in 3,224,224")
        return module, numbers(module, shape)
    if arguments.sequence and arguments.vocabulary:
        return module, tokens(module, arguments.sequence, arguments.vocabulary)
    raise CaptureError("give --input SIZES for numbers, or --sequence N and --vocabulary N for tokens")


def small_twin(arguments):
    """The same config in small and its micro-batches, or None where there is none."""
    small = small_config(hugging_face.read_config(arguments.hf)) if arguments.hf else None
    if small is None:
        return None
    module = hugging_face.load(arguments.hf, arguments.untie, arguments.seed, about=small)
    return module, tokens(module, min(arguments.sequence, 16), module.wrapped.config.vocab_size)
