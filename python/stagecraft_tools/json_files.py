"""JSON that a person may have written: what is wrong with it, by its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stagecraft_planner.json_text import syntax_error

from .refusal import Refused


def read_json(path: str | Path) -> Any:
    """Throws Refused for what is no JSON in UTF-8, and OSError."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no UTF-8 at byte {error.start}") from None
    return parse_json(text, str(path))


def parse_json(text: str, name: str, one_line: bool = False) -> Any:
    """Of a whole text, or of a line of one, which `name` names then."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Refused(f"{name}: not valid JSON: {syntax_error(error, one_line)}") from None
    except RecursionError:
        raise Refused(f"{name}: is nested too deep") from None
