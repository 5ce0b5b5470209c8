"""JSON as the command reads and writes it: with comments, each key once, numbers with their digits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from .errors import InputError

# A string, which may hold what looks like a comment, or a comment.
_STRING_OR_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class Number(float):
    """A number with a fraction or an exponent that is written again as it was read. There are several ways to
    write most of them, and the command does not always take the shortest."""

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        number.text = text
        return number

    text: str


def parse(text: str, name: str) -> Any:
    """The value. Raises InputError, which names the file `name`, for what is not JSON."""
    # Where such a thing stands is known once everything around it is.
    wrong: list[tuple[Any, str, str]] = []

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            wrong.append((found, f"/{_escaped(twice)}", f'the key "{twice}" appears twice in one object'))
        return found

    def number(text: str) -> Number:
        found = Number(text)
        if math.isinf(found):
            wrong.append((found, "", f"expected a number below 1.8e308, found {text}"))
        return found

    def refuse(constant: str) -> Any:
        raise InputError(f"{name}: not valid JSON: {constant} is no number")

    def blank(match: re.Match[str]) -> str:
        # Of the same length, so that places in errors are those in the file.
        return match[0] if match[1] else re.sub(r"[^\n]", " ", match[0])

    if not text.strip():
        raise InputError(f"{name}: is empty")
    if "/" in text:
        text = _STRING_OR_COMMENT.sub(blank, text)
    try:
        value = json.loads(text, parse_float=number, parse_constant=refuse, object_pairs_hook=entries)
        if wrong:
            at, key, what = wrong[-1]  # the outermost: what stands around it is all there
            place = f"{_pointer_to(at, value)}{key}"
            raise InputError(f"{name}: {place}: {what}" if place else f"{name}: {what}")
        return value
    except json.JSONDecodeError as error:
        raise InputError(f"{name}: not valid JSON: {syntax_error(error)}") from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deep") from None


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _pointer_to(found: Any, within: Any) -> str | None:
    """The JSON pointer of that very object, if it is there."""
    if within is found:
        return ""
    children: Iterable[tuple[object, Any]] = ()
    if isinstance(within, dict):
        children = within.items()
    elif isinstance(within, list):
        children = enumerate(within)
    for key, child in children:
        rest = _pointer_to(found, child)
        if rest is not None:
            return f"/{_escaped(str(key))}{rest}"
    return None


# Python's words, and what the command says in their place.
_EXPECTED = {
    "Expecting value": "expected a value",
    "Expecting ',' delimiter": 'expected "," or the closing bracket',
    "Expecting ':' delimiter": 'expected ":"',
    "Expecting property name enclosed in double quotes": "expected a key in double quotes",
    "Illegal trailing comma before end of object": "expected a key behind it: is the comma one too many?",
    "Illegal trailing comma before end of array": "expected a value behind it: is the comma one too many?",
    "Extra data": "expected the end of the text",
    "Unterminated string starting at": "expected a closing quote for this string",
    "Invalid control character at": "expected line breaks and tabs in a string as \\n and \\t",
}


def syntax_error(error: json.JSONDecodeError, one_line: bool = False) -> str:
    """Where, what stands there, and what was expected. `one_line`: of a text that is a line of a file."""
    line = "" if one_line else f"line {error.lineno}, "
    said = _EXPECTED.get(error.msg, f"{error.msg[0].lower()}{error.msg[1:]}")
    return f"{line}column {error.colno}: found {_found(error.doc, error.pos)}; {said}"


def _found(text: str, at: int) -> str:
    """What stands there: a word, or a character."""
    word = re.match(r"\w{1,40}|.", text[at:], re.DOTALL)
    return json.dumps(word[0], ensure_ascii=False) if word else "the end of the text"


def dump(value: Any) -> str:
    """The text of a file: indented by two, with a newline at its end."""
    parts: list[str] = []
    _append(value, "\n", parts)
    parts.append("\n")
    return "".join(parts)


def _number(value: float) -> str:
    if isinstance(value, Number):
        return value.text
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{value} cannot be written: JSON has finite numbers alone")
    text = repr(value)
    if abs(value) < 1e15 or "e" in text:
        return text
    # Python begins with exponents one digit later.
    digits = text.removesuffix(".0").lstrip("-")
    sign = "-" if value < 0 else ""
    significant = digits.rstrip("0")
    fraction = f".{significant[1:]}" if len(significant) > 1 else ""
    return f"{sign}{significant[0]}{fraction}e+{len(digits) - 1}"


def _append(value: Any, line: str, parts: list[str]) -> None:
    if isinstance(value, dict) and value:
        inner = line + "  "
        for index, (key, item) in enumerate(value.items()):
            parts.append(f"{',' if index else '{'}{inner}{json.dumps(key, ensure_ascii=False)}: ")
            _append(item, inner, parts)
        parts.append(f"{line}}}")
    elif isinstance(value, (list, tuple)) and value:
        inner = line + "  "
        for index, item in enumerate(value):
            parts.append(f"{',' if index else '['}{inner}")
            _append(item, inner, parts)
        parts.append(f"{line}]")
    elif isinstance(value, float):
        parts.append(_number(value))
    else:
        parts.append(json.dumps(value, ensure_ascii=False))
