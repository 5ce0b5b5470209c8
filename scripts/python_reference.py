#!/usr/bin/env python3
"""docs/reference/python.md from the signatures and docstrings of python/stagecraft. Needs neither torch
nor a build.

scripts/python_reference.py            # writes the page
scripts/python_reference.py --check    # ends with 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1]
PAGE = SOURCE / "docs/reference/python.md"
WIDTH = 100
FUNCTIONS = ("pipeline", "load", "profile")
CLASSES = ("Pipeline", "Step", "RankTime")
OPTIMIZERS = ("SGD", "Adam", "AdamW", "NAdam", "Adafactor", "Lion")
ERRORS = (
    "StagecraftError",
    "InputError",
    "CaptureError",
    "NotFiniteError",
    "RefusedError",
    "PeerError",
    "InternalError",
)
HEAD = """# The Python package

For people who train from Python: all of the package `stagecraft`, imported as `sc`. [From
Python](../tutorial/python.md) is the introduction. `scripts/python_reference.py` writes this page
from the docstrings.

```
import stagecraft as sc
help(sc.pipeline)
```
"""
PLANNER = """## The planner

`sc.plan`, `sc.check`, `sc.simulate`, `sc.compare`, `sc.explain`, `sc.Cluster`, `sc.Plan` and
`sc.Profile` are those of `stagecraft_planner` ([Planning from
Python](../guides/python_planning.md)).
"""


def page() -> str:
    sys.path.insert(0, str(SOURCE / "python"))
    import stagecraft

    known = set(stagecraft.__all__)
    parts = [HEAD]
    parts += [_function(getattr(stagecraft, name)) for name in FUNCTIONS]
    parts += [_class(getattr(stagecraft, name)) for name in CLASSES]
    parts += ["## Optimizers\n", *(_function(getattr(stagecraft, name), 3) for name in OPTIMIZERS)]
    parts += [_class(stagecraft.Optimizer, 3), "## Errors\n"]
    parts.append("".join(_error(getattr(stagecraft, name)) for name in ERRORS))
    parts.append(PLANNER)
    text = "\n".join(parts)
    left_out = sorted(name for name in known if f"sc.{name}" not in text)
    if left_out:
        raise SystemExit(f"python_reference.py: {', '.join(left_out)} would not be on the page")
    return text


def _function(function: Callable[..., Any], level: int = 2) -> str:
    name = function.__name__
    return f"{'#' * level} {name}\n\n{_signature('sc.' + name, function)}\n{_prose(function)}"


def _class(kind: type, level: int = 2) -> str:
    name = kind.__name__
    parts = [f"{'#' * level} {name}\n\n{_prose(kind, f'`sc.{name}`: ')}"]
    if dataclasses.is_dataclass(kind):
        parts.append(_fields(kind))
    for what, member in vars(kind).items():
        if what.startswith("_") and what != "__call__":
            continue
        if isinstance(member, property):
            parts.append(f"{'#' * (level + 1)} .{what}\n\n{_prose(member, f'`{_returns(member.fget)}`: ')}")
        elif inspect.isfunction(member):
            call = "step" if what == "__call__" else f".{what}"
            title = "step(batch)" if what == "__call__" else f".{what}()"
            parts.append(f"{'#' * (level + 1)} {title}\n\n{_signature(call, member)}\n{_prose(member)}")
    return "\n".join(parts)


def _error(kind: type) -> str:
    bases = " and ".join(f"`{base.__name__}`" for base in kind.__bases__)
    return (
        "\n".join(_wrapped(f"- `sc.{kind.__name__}` ({bases}): {' '.join(_doc(kind).split())}", "  ")) + "\n"
    )


def _signature(name: str, function: Callable[..., Any]) -> str:
    """As code: one parameter per line where one line is too short."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    texts, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        texts.append(f"{parameter.name}: {parameter.annotation}{default}")
    end = f") -> {signature.return_annotation}"
    line = f"{name}({', '.join(texts)}{end}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + end
    return f"```\n{line}\n```\n"


def _value(default: Any) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _returns(function: Any) -> str:
    return str(inspect.signature(function).return_annotation)


def _fields(kind: type) -> str:
    """A table of a dataclass's fields, with the comments behind them."""
    lines = ["| field | type | |", "|---|---|---|"]
    for found in re.finditer(
        r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]+?)?(?:  # (.*))?$", _source(kind), re.MULTILINE
    ):
        name, type_, about = found.groups()
        lines.append(f"| `{name}` | `{type_.replace('|', chr(92) + '|')}` | {about or ''} |")
    return "\n".join(lines) + "\n"


def _source(kind: type) -> str:
    """Of a class, without its docstring."""
    return inspect.getsource(kind).replace(kind.__doc__ or "", "")


def _doc(thing: Any) -> str:
    doc = inspect.getdoc(thing)
    if not doc:
        raise SystemExit(f"python_reference.py: {thing} has no docstring")
    return doc


def _prose(thing: Any, before: str = "") -> str:
    """A docstring as Markdown: paragraphs, and of lines "names: text" a list."""
    return "\n".join("\n".join(block) + "\n" for block in _blocks(before + _doc(thing)))


def _blocks(doc: str) -> Iterator[list[str]]:
    for paragraph in doc.split("\n\n"):
        lines = paragraph.splitlines()
        items = [_item(line) for line in lines if not line.startswith("    ")]
        if not all(items):
            yield _wrapped(" ".join(lines))
            continue
        listed: list[str] = []
        for entry in re.split(r"\n(?=\S)", paragraph):
            found = _item(entry.splitlines()[0])
            assert found
            text = " ".join(entry.split())[len(found) + 1 :].strip()
            names = ", ".join(f"`{name}`" for name in found.split(", "))
            listed += _wrapped(f"- {names}: {text}", "  ")
        yield listed


def _item(line: str) -> str | None:
    """The names in front of "names: text"."""
    found = re.match(r"((?:\w+, )*\w+): \S", line)
    return found and found[1]


def _wrapped(text: str, behind: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        subsequent_indent=behind,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python_reference.py", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare alone")
    asked = parser.parse_args()
    made = page()
    if not asked.check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    print(f"{PAGE.relative_to(SOURCE)} is not up to date: run scripts/python_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
