"""Dataclasses from JSON and back. A field is a key of the same name; one without a default is required. An
absent key of an optional field is None, and None is not written."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
import typing
from typing import Any, TypeVar

from .errors import InputError
from .nearest import did_you_mean

T = TypeVar("T")
KEY = "key"  # metadata of a field whose key is no name in Python


@dataclasses.dataclass(frozen=True)
class Field:
    """One that is in JSON."""

    name: str
    key: str
    type: Any
    required: bool
    default: Any


@functools.cache
def fields_of(kind: type[Any]) -> tuple[Field, ...]:
    """In the order in which they are written. Names with an underscore in front are not in JSON."""
    hints = typing.get_type_hints(kind)
    return tuple(
        Field(
            field.name,
            field.metadata.get(KEY, field.name),
            hints[field.name],
            field.default is dataclasses.MISSING,
            field.default,
        )
        for field in dataclasses.fields(kind)
        if field.init
    )


def optional_of(hint: Any) -> Any:
    """X of `X | None`, None of anything else."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(one for one in typing.get_args(hint) if one is not types.NoneType)
    return None


def read(kind: type[T], value: Any, file: str, pointer: str = "") -> T:
    """Raises InputError with the file, the JSON pointer and what was expected there."""
    return typing.cast(T, _read(kind, value, file, pointer))


def write(value: Any) -> Any:
    """What json_text.dump() takes. Numbers of other libraries become Python's. Raises InputError for a field
    of another type."""
    if not dataclasses.is_dataclass(value):
        return value
    written = {}
    kind: Any = type(value)
    for field in fields_of(kind):
        item = getattr(value, field.name)
        if item is not None:
            written[field.key] = _written(field.type, item, f"{kind.__name__}.{field.name}")
    return written


def _written(hint: Any, value: Any, place: str) -> Any:
    hint = optional_of(hint) or hint
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise InputError(f"{place}: expected a sequence, found {_shown(value)}")
        inner = typing.get_args(hint)[0]
        return [_written(inner, item, f"{place}[{at}]") for at, item in enumerate(value)]
    if hint is int or hint is float:
        return _number(hint, value, place)
    if dataclasses.is_dataclass(hint) and isinstance(value, typing.cast(type[Any], hint)):
        return write(value)
    return _read(hint, value, place, "")


def _number(hint: Any, value: Any, place: str) -> int | float:
    try:
        number = (
            float(value) if hint is float else operator.index(int(value) if value == int(value) else value)
        )
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, (bool, str)):
        raise InputError(f"{place}: expected {_EXPECTED[hint]}, found {_shown(value)}")
    return number


def _refuse(file: str, pointer: str, what: str) -> InputError:
    return InputError(f"{file}: {pointer + ': ' if pointer else ''}{what}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_EXPECTED = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def _read(hint: Any, value: Any, file: str, pointer: str) -> Any:
    optional = optional_of(hint)
    if optional is not None:
        return None if value is None else _read(optional, value, file, pointer)
    if hint in _EXPECTED:
        return _scalar(hint, value, file, pointer)
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _refuse(file, pointer, f"expected an array, found {_shown(value)}")
        inner = typing.get_args(hint)[0]
        return tuple(_read(inner, item, file, f"{pointer}/{at}") for at, item in enumerate(value))
    if origin is typing.Literal:
        words = typing.get_args(hint)
        if value not in words:
            raise _refuse(
                file, pointer, f"{_shown(value)} is not one of {', '.join(words)}{_near(value, words)}"
            )
        return value
    return value if isinstance(value, hint) else _object(hint, value, file, pointer)


def _near(value: Any, words: tuple[str, ...]) -> str:
    return did_you_mean(value, words) if isinstance(value, str) else ""


def _scalar(hint: Any, value: Any, file: str, pointer: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():  # 8e9, as programs write it
        return int(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise _refuse(file, pointer, f"expected {_EXPECTED[hint]}, found {_shown(value)}")


def _object(kind: Any, value: Any, file: str, pointer: str) -> Any:
    if not isinstance(value, dict):
        raise _refuse(file, pointer, f"expected an object, found {_shown(value)}")
    fields = fields_of(kind)
    keys = [field.key for field in fields]
    for key in value:
        if key not in keys:
            raise _refuse(file, f"{pointer}/{key}", f"unknown key{did_you_mean(key, keys)}")
    arguments = {}
    for field in fields:
        if field.key in value:
            arguments[field.name] = _read(field.type, value[field.key], file, f"{pointer}/{field.key}")
        elif field.required:
            raise _refuse(file, pointer, f'"{field.key}" is missing')
    return kind(**arguments)
