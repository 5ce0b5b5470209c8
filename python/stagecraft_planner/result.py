"""What a verb answered, which can ask it again for text and pictures."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from .binary import Call
from .document import Document
from .errors import InputError

R = TypeVar("R", bound="Result")


class Result(Document):
    """An answer. One that was loaded has its fields alone: its text and its pictures need what it is of."""

    _call: ClassVar[Call | None] = None
    _tables: ClassVar[str | None] = None

    @classmethod
    def _answered(cls: type[R], text: str, call: Call, tables: str | None = None) -> R:
        result = cls.from_json(text)
        object.__setattr__(result, "_call", call)
        object.__setattr__(result, "_tables", tables)
        return result

    def _ask(self) -> Call:
        if self._call is None:
            raise InputError(f"{self._label}: was loaded, and what it is of is not in it: ask anew")
        return self._call

    def _written(self, option: str, name: str) -> str:
        return self._ask().run(f"{option}={{{name}}}", "--json").written[name]

    def __str__(self) -> str:
        """The command's own text; of one that was loaded, its JSON."""
        if self._tables is not None:
            return self._tables
        return self._call.run().stdout if self._call is not None else self.to_json()
