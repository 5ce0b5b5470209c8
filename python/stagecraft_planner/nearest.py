"""The name that was meant, and functions that know it."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """`; did you mean "stages"?`, or nothing where no name is near."""
    known = list(names)
    near = [name for name in known if _letters(name) == _letters(word)]
    near = near or difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def _letters(name: str) -> str:
    """What people remember of a name: its letters, in whatever case and with whatever between."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def keywords_checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which answers a keyword that it does not take with the nearest one that it does."""
    names = [name for name in inspect.signature(function).parameters if not name.startswith("_")]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise TypeError(f'{function.__name__}() takes no "{name}"{did_you_mean(name, names)}')
        return function(*args, **kwargs)

    return checked
