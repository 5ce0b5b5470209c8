"""What a function or a class without a file of its own does, as values that pickle takes: of a notebook, of a
prompt, of text that was executed; and of lambdas and functions within functions, wherever they stand."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

# Of a class: where it stands, not what it does.
_PLACES = {
    "__annotate_func__",
    "__annotations__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__static_attributes__",
    "__weakref__",
}


def has_no_file(thing: types.FunctionType | type) -> bool:
    """Whether pickle's name of it says nothing of what it does."""
    if "<" in thing.__qualname__:  # <lambda>, <locals>
        return True
    if isinstance(thing, types.FunctionType):
        return not os.path.isfile(thing.__code__.co_filename)
    module = sys.modules.get(thing.__module__)
    return thing.__module__ == "__main__" and not os.path.isfile(getattr(module, "__file__", None) or "")


def parts_of(thing: types.FunctionType | type) -> tuple[Any, ...]:
    """All that decides what it does. Other functions and classes among them are as they are."""
    return _of_class(thing) if isinstance(thing, type) else _of_function(thing)


def patched(module: Any) -> list[tuple[str, str, types.FunctionType]]:
    """Functions without a file in the place of others that have one: in installed modules, and in the
    classes of `module`'s parts."""
    places = [
        (name, vars(each)) for name, each in list(sys.modules.items()) if isinstance(each, types.ModuleType)
    ]
    main = [
        (where, name, value)
        for where, its in places
        for name, value in list(its.items())
        if type(value) is types.FunctionType and value.__module__ == "__main__" != where
    ]
    kinds = {kind for part in module.modules() for kind in type(part).__mro__ if not has_no_file(kind)}
    own = [
        (f"{kind.__module__}.{kind.__qualname__}", name, value)
        for kind in kinds
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType) and value.__module__ == "__main__" and has_no_file(value)
    ]
    return sorted([each for each in main if has_no_file(each[2])] + own, key=lambda each: each[:2])


def _of_function(function: types.FunctionType) -> tuple[Any, ...]:
    code = function.__code__
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # nothing yet
            cells.append(None)
    reads = {}
    if function.__module__ == "__main__" and not os.path.isfile(code.co_filename):
        reads = {
            name: function.__globals__[name] for name in sorted(_names(code)) if name in function.__globals__
        }
    return (
        "function",
        function.__qualname__,
        _of_code(code),
        function.__defaults__,
        function.__kwdefaults__,
        tuple(cells),
        reads,
    )


def _of_code(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(
        _of_code(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts
    )
    return (
        code.co_code,
        constants,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_exceptiontable,
    )


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names(each)


def _of_class(kind: type) -> tuple[Any, ...]:
    own = {name: _of_attribute(value) for name, value in vars(kind).items() if name not in _PLACES}
    return ("class", kind.__qualname__, type(kind), kind.__bases__, own)


def _of_attribute(value: Any) -> Any:
    if isinstance(value, (staticmethod, classmethod)):
        return (type(value).__name__, value.__func__)
    if isinstance(value, property):
        return ("property", value.fget, value.fset, value.fdel)
    if isinstance(value, functools.cached_property):
        return ("cached_property", value.func)
    if isinstance(value, types.MemberDescriptorType):
        return ("slot", value.__name__)
    return value
