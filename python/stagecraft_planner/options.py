"""Keywords as the command's options."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import InputError

Value = str | int | float | Iterable[str] | Iterable[int] | None


def options_of(**keywords: Value) -> tuple[str, ...]:
    """`micro_batches=8` as "--micro-batches=8". None is left out; a list is joined by commas. A name that is
    a word of Python has an underscore behind it."""
    options = []
    for keyword, value in keywords.items():
        name = "--" + keyword.rstrip("_").replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            raise InputError(f"{keyword}: expected a value, found {value}")
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            options.append(f"{name}={value}")
        else:
            items = [str(item) for item in value]
            if not items:
                raise InputError(f"{keyword}: is empty; leave it out, or give one at least")
            options.append(f"{name}={','.join(items)}")
    return tuple(options)


def flag_of(keyword: str, value: bool, no: str = "") -> tuple[str, ...]:
    """`pareto=True` as "--pareto"; False as `no`, or nothing. Raises InputError for what is neither."""
    if not isinstance(value, bool):
        raise InputError(f"{keyword}: expected True or False, found {value!r}")
    return ("--" + keyword.replace("_", "-"),) if value else (no,) if no else ()
