"""What a module reaches, its state: buffers, attributes, what lies in lists, dicts and objects of its own, in
closures and globals of its functions. A snapshot of it is compared with a later one, and put back.
"""

from __future__ import annotations

import array
import collections
import functools
import itertools
import logging
import os
import random
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from stagecraft_tools.installed import is_installed

from .errors import OURS, TORCH
from .torch_private import FakeTensor, set_version_counter

if TYPE_CHECKING:
    from .aliases import Json


PLAIN = (int, float, complex, str, bytes, bool, type(None))
SEQUENCES = (list, tuple, set, frozenset, collections.deque)


@functools.cache
def is_users(file: str | None) -> bool:
    """Whether a file is neither of an installed package nor ours."""
    return bool(
        file
        and os.path.isfile(file)
        and not is_installed(file)
        # a build folder has links to ours
        and not any(of(file).startswith((TORCH, OURS)) for of in (os.path.abspath, os.path.realpath))
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers as bytes, to be compared; a NaN is itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@dataclass
class Leaf:
    """What has no parts. `value`: a number or text, a tensor, the state of a generator of random numbers, or
    any other object."""

    value: Any
    copy: Any = None  # of a tensor's numbers as they were
    alias: Any = None  # the tensor's memory as it was
    version: int = 0
    is_buffer: bool = False
    of: tuple = ()  # (object, attribute) of each attribute on the way to it

    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)

    def same(self, other: Leaf) -> bool:
        if self.is_tensor() and other.is_tensor():
            a, b = self.alias, other.alias
            if self.copy is None or other.copy is None:  # a parameter that nothing wrote to
                return self.value is other.value and a.data_ptr() == b.data_ptr() and a.shape == b.shape
            return (
                a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(self.copy), bits(other.copy))
            )
        if isinstance(self.value, PLAIN) and isinstance(other.value, PLAIN):
            return type(self.value) is type(other.value) and repr(self.value) == repr(other.value)
        return self.value is other.value or (isinstance(self.value, Stated) and self.value == other.value)


@dataclass
class Stated:
    """The state of an object that tells it as a text."""

    kind: type
    text: str


def is_fake(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) or tensor.is_meta or torch.nn.parameter.is_lazy(tensor)


def leaf_of(value: Any, values: bool, **about: Any) -> Leaf:
    if isinstance(value, torch.Tensor):
        if not values or is_fake(value) or value.layout != torch.strided:
            return Leaf(
                value,
                None,
                None if torch.nn.parameter.is_lazy(value) else value.detach(),
                value._version,
                **about,
            )
        return Leaf(value, value.detach().clone(), value.detach(), value._version, **about)
    if is_stated(value):
        return Leaf(Stated(type(value), text_of(value)), **about)
    return Leaf(value, **about)


def is_stated(value: Any) -> bool:
    numpy = type(value).__module__.partition(".")[0] == "numpy" and not isinstance(value, type)
    return numpy or isinstance(
        value, (torch.Generator, random.Random, itertools.count, itertools.cycle, bytearray, array.array)
    )


def text_of(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    if isinstance(value, random.Random):
        return str(value.getstate())
    if hasattr(value, "bit_generator"):
        return str(value.bit_generator.state)
    if hasattr(value, "get_state"):
        return str([part.tolist() if hasattr(part, "tolist") else part for part in value.get_state()])
    return value.tobytes().hex() if hasattr(value, "tobytes") else repr(value)


def globals_of(function: Any) -> Json:
    """Names of the file's own that the function reads, with their values; not other functions, classes and
    modules."""
    code, names = function.__code__, function.__globals__
    todo: list[Any] = [code]
    found: Json = {}
    while todo:
        at = todo.pop()
        todo += [c for c in at.co_consts if isinstance(c, types.CodeType)]
        found.update((name, names[name]) for name in at.co_names if name in names)
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType))
    }


def stored(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """What it holds. The [] of a dictionary's subclass may make something (ACT2FN of transformers)."""
    return dict(dict.items(table) if isinstance(table, dict) else table)


def is_buffer(holder: Any, name: Any, value: Any) -> bool:
    """Others than modules may have such an attribute, too."""
    buffers = getattr(holder, "_buffers", None)
    return isinstance(buffers, dict) and name in buffers and buffers[name] is value


class Snapshot:
    """Of everything that `module` reaches. Numbers of parameters are remembered of those in `written` alone,
    since they are many; without `values` of no tensor."""

    def __init__(self, module: torch.nn.Module, written: Iterable[Any] = (), values: bool = True) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.containers: list[Any] = []
        self.grads: list[Any] = []
        parameters, written = {id(p) for p in module.parameters()}, {id(p) for p in written}
        seen: set[int] = set()
        todo: collections.deque[tuple[str, Any, tuple[Any, ...]]] = collections.deque([("", module, ())])
        todo += [
            (f"global hook {name}", table, ())
            for name, table in vars(torch.nn.modules.module).items()
            if name.startswith("_global_") and name.endswith("_hooks")
        ]
        self.alive = []  # an id stays its object's
        while todo:
            path, value, of = todo.popleft()
            parts = self.parts_of(value)
            if parts is None:
                self.leaves[path] = leaf_of(
                    value,
                    values and (id(value) not in parameters or id(value) in written),
                    is_buffer=bool(of) and is_buffer(of[-1][0], of[-1][1], value),
                    of=of,
                )
                if id(value) in parameters:
                    self.grads.append((value, value.grad))
            elif id(value) not in seen:
                seen.add(id(value))
                self.alive.append(value)
                self.remember(value)
                todo += [
                    (self.joined(path, value, key), part, of + self.hangs_on(value, key))
                    for key, part in parts
                ]

    @staticmethod
    def hangs_on(value: Any, key: Any) -> tuple[tuple[Any, str], ...]:
        return (
            ((value, key),)
            if hasattr(value, "__dict__")
            and isinstance(key, str)
            and not isinstance(value, (types.FunctionType, type, dict))
            else ()
        )

    @staticmethod
    def joined(path: str, value: Any, key: Any) -> str:
        named = (
            f".{key}"
            if isinstance(value, torch.nn.Module) or not isinstance(value, (*SEQUENCES, dict))
            else f"[{key!r}]"
        )
        return (path + named).removeprefix(".")

    def parts_of(self, value: Any) -> list[tuple[Any, Any]] | None:
        """(key, part) of each part; None of what has none."""
        if is_stated(value) or isinstance(
            value,
            (
                *PLAIN,
                torch.Tensor,
                torch.dtype,
                torch.device,
                types.ModuleType,
                types.CodeType,
                types.BuiltinFunctionType,
                logging.Filterer,  # what is logged, and by whom, no forward reads
                logging.Manager,
            ),
        ):
            return None
        if isinstance(value, torch.nn.Module):
            own = {**vars(value)}
            named = {**own.pop("_parameters", {}), **own.pop("_buffers", {}), **own.pop("_modules", {})}
            return [*named.items(), *own.items(), ("<class>", type(value))]
        if isinstance(value, dict):
            return (
                [*value.items(), *vars(value).items()] if hasattr(value, "__dict__") else list(value.items())
            )
        if isinstance(value, SEQUENCES):
            return list(enumerate(value))
        if isinstance(value, functools.partial):
            return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        if isinstance(value, types.MethodType):
            return [("<self>", value.__self__), ("<function>", value.__func__)]
        if isinstance(value, types.FunctionType):
            return self.parts_of_function(value)
        if isinstance(value, type):
            files = {
                f.__code__.co_filename for f in vars(value).values() if isinstance(f, types.FunctionType)
            }
            if not any(map(is_users, files)):
                return None
            return [
                (name, part)
                for name, part in vars(value).items()
                if not name.startswith("__") or isinstance(part, types.FunctionType)
            ] + [(base.__name__, base) for base in value.__bases__ if base is not object]
        if isinstance(value, (staticmethod, classmethod)):
            return [("<function>", value.__func__)]
        if isinstance(value, property):
            return [("<function>", value.fget), ("<setter>", value.fset)]
        if isinstance(value, types.CellType):
            try:
                return [("<value>", value.cell_contents)]
            except ValueError:
                return []
        of_slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
        names = [
            name
            for given in of_slots
            for name in ([given] if isinstance(given, str) else given)
            if name not in ("__dict__", "__weakref__") and hasattr(value, name)
        ]
        if hasattr(value, "__dict__") or names:
            return [
                *(vars(value).items() if hasattr(value, "__dict__") else ()),
                *((name, getattr(value, name)) for name in names),
            ]
        return None

    @staticmethod
    def parts_of_function(function: Any) -> list[tuple[Any, Any]]:
        parts = [
            (name, cell) for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())
        ]
        parts += [
            ("<defaults>", function.__defaults__ or ()),
            ("<named defaults>", function.__kwdefaults__ or {}),
        ]
        if is_users(function.__code__.co_filename):  # packages mark their own functions
            parts += [("<attributes>", vars(function)), *globals_of(function).items()]
        return parts

    def remember(self, value: Any) -> None:
        """What a container holds, to be put back."""
        if isinstance(value, torch.nn.Module):
            for table in (
                vars(value),
                *(vars(value).get(name) for name in ("_parameters", "_buffers", "_modules")),
            ):
                if table is not None:
                    self.containers.append((table, dict(table)))
        elif isinstance(value, dict):
            self.containers.append((value, stored(value)))
        elif isinstance(value, (list, collections.deque)):
            self.containers.append((value, list(value)))
        elif isinstance(value, set):
            self.containers.append((value, set(value)))
        elif (
            isinstance(value, types.CellType)
            or not hasattr(value, "__dict__")
            or isinstance(value, (type, types.FunctionType, types.MethodType, types.ModuleType))
        ):
            return
        else:
            self.containers.append((vars(value), dict(vars(value))))

    def about_to_write(self, memory: int) -> list[Any]:
        """Remembers the numbers of parameters there; the parameters."""
        found = [
            leaf
            for leaf in self.leaves.values()
            if leaf.is_tensor()
            and leaf.copy is None
            and leaf.alias is not None
            and leaf.alias.untyped_storage().data_ptr() == memory
        ]
        for leaf in found:
            leaf.copy = leaf.alias.clone()
        return [leaf.value for leaf in found]

    def restore(self) -> None:
        for table, held in self.containers:
            if isinstance(table, (list, collections.deque)):
                if len(table) != len(held) or any(a is not b for a, b in zip(table, held)):
                    table.clear()
                    table.extend(held)
            elif isinstance(table, set):
                if table != held:
                    table.clear()
                    table.update(held)
            elif (now := stored(table)).keys() != held.keys() or any(
                now[key] is not value for key, value in held.items()
            ):
                table.clear()
                table.update(held)
        with torch.no_grad():
            for leaf in self.leaves.values():
                if leaf.is_tensor() and leaf.copy is not None:
                    self.put_back(leaf)
        for parameter, grad in self.grads:
            parameter.grad = grad

    @staticmethod
    def put_back(leaf: Leaf) -> None:
        if leaf.value.grad_fn is not None and leaf.alias.grad_fn is None and leaf.value._is_view() is False:
            leaf.value.detach_()
        if (
            leaf.value.data_ptr() != leaf.alias.data_ptr()
            or leaf.value.shape != leaf.alias.shape
            or leaf.value.stride() != leaf.alias.stride()
        ):
            leaf.value.data = leaf.alias
        if leaf.value._version != leaf.version or not torch.equal(bits(leaf.alias), bits(leaf.copy)):
            leaf.alias.copy_(leaf.copy)
            # it is what it was: gradients of an earlier forward may still need it
            set_version_counter((leaf.alias,), (leaf.version,))

    def differences(self, later: Snapshot) -> dict[str, tuple[Any, Any]]:
        """path -> (leaf before, leaf after), of what is not the same; None where there was or is none."""
        paths = [*self.leaves, *(path for path in later.leaves if path not in self.leaves)]
        pairs = {path: (self.leaves.get(path), later.leaves.get(path)) for path in paths}
        return {path: (a, b) for path, (a, b) in pairs.items() if a is None or b is None or not a.same(b)}
