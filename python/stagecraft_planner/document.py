"""What the command reads and writes: an object with typed fields that is a JSON file as well."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Any, ClassVar, TypeVar

from . import json_text, typed
from .errors import InputError

D = TypeVar("D", bound="Document")
StrPath = str | os.PathLike[str]


# What tells files apart that people take for each other, in this order.
_KINDS = {
    "schedule": {"ranks", "group_sizes"},
    "profile": {"measurements"},
    "cluster": {"levels"},
    "trace": {"traceEvents"},
    "run config": {"data", "train_batch_size", "train_micro_batch_size_per_gpu"},
    "plan": {"stages", "schedule", "micro_batches", "costs"},
}


def read_text(path: StrPath) -> str:
    """Raises InputError for what cannot be read."""
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{name}: cannot be opened: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not UTF-8") from None


def write_text(path: StrPath, text: str) -> None:
    """Aside first, so that a reader never sees half of it. Links are followed; what is no file (a pipe, a
    device) is written to directly. Raises InputError for what cannot be written."""
    name = os.fspath(path)
    place = os.path.realpath(name)
    direct = os.path.exists(place) and not os.path.isfile(place)
    aside = place if direct else f"{place}.{secrets.token_hex(8)}.part"
    try:
        with open(aside, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        if not direct:
            os.replace(aside, place)
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror}") from None
    finally:
        if not direct:
            with contextlib.suppress(OSError):
                os.remove(aside)


class Document:
    """Base of all objects that are files, too. They do not change: dataclasses.replace() makes others.

    What was loaded is saved as it was, byte by byte, comments included. What was made in Python is written
    as the command writes it.
    """

    _kind: ClassVar[str] = "document"
    _text: str | None = None  # as it was read
    _origin: str | None = None  # the path that it was loaded from

    @classmethod
    def load(cls: type[D], path: StrPath) -> D:
        """From a file. Raises InputError with the file, the JSON pointer and what was expected there."""
        loaded = cls._of_text(read_text(path), os.fspath(path))
        object.__setattr__(loaded, "_origin", os.fspath(path))
        return loaded

    @classmethod
    def from_json(cls: type[D], text: str) -> D:
        """From a file's text. Raises InputError as load() does."""
        return cls._of_text(text, f"{cls._kind}.json")

    @classmethod
    def _of_text(cls: type[D], text: str, name: str) -> D:
        document = cls._of_value(json_text.parse(text, name), name)
        object.__setattr__(document, "_text", text)
        return document

    @classmethod
    def _of_value(cls: type[D], value: Any, name: str) -> D:
        if isinstance(value, dict) and cls._kind in _KINDS:
            told = next((kind for kind, keys in _KINDS.items() if keys & value.keys()), cls._kind)
            if told != cls._kind:
                raise InputError(f"{name}: is a {told}; expected a {cls._kind}")
        return typed.read(cls, value, name)

    def to_json(self) -> str:
        """The text of the file, with a newline at its end."""
        return self._text if self._text is not None else json_text.dump(typed.write(self))

    def save(self, path: StrPath) -> None:
        """Writes the file. What is there already is replaced."""
        write_text(path, self.to_json())

    @property
    def _label(self) -> str:
        """What the command's texts call it: the path that it was loaded from, or a plain name."""
        return self._origin or f"{self._kind}.json"
