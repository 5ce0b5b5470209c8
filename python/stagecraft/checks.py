"""Arguments of the wrong kind, told in one line each."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InputError


def rate(what: str, given: Any) -> float:
    """A learning rate: a finite number of 0 or more, also as a tensor."""
    if hasattr(given, "item") and getattr(given, "ndim", None) == 0:
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise InputError(f"{what}: expected a rate of 0 or more, found {given!r}")
    return float(given)


def whole(what: str, given: Any) -> int | None:
    if given is None or (isinstance(given, numbers.Integral) and not isinstance(given, bool)):
        return None if given is None else int(given)
    raise InputError(f"{what}: expected a whole number, found {given!r}")


def wholes(what: str, given: Any) -> list[int] | None:
    """None where there are none."""
    if given is None or (isinstance(given, Sequence) and not isinstance(given, str)):
        return [whole(what, each) or 0 for each in given or ()] or None
    raise InputError(f"{what}: expected whole numbers as in [1, 2], found {given!r}")


def path(what: str, given: Any) -> str:
    try:
        found = os.fspath(given)
    except TypeError:
        raise InputError(f"{what}: expected a path, found {_kind(given)}") from None
    return os.fsdecode(found)


def keys_of_a_config(given: Any) -> dict[str, Any]:
    """As JSON has them."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f'config: expected a dict as {{"seed": 1}}, found {_kind(given)}')
    try:
        found: dict[str, Any] = json.loads(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise InputError(f"config: is nothing that JSON has: {error}") from error
    return found


def mapping(what: str, given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    hint = ": give its state_dict()" if hasattr(given, "state_dict") else ""
    raise InputError(f"{what}: expected a dict by names, found {_kind(given)}{hint}")


def some(names: Sequence[str]) -> str:
    """The first three, and how many more."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


def _kind(given: Any) -> str:
    return "None" if given is None else f"a {type(given).__name__}"
