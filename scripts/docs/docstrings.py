"""How this project's docstrings become Markdown: an extension of griffe, which reads Python for mkdocstrings.

Lines "names: text" become a list, and a field without a docstring gets the comment behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ITEM = re.compile(r"((?:\w+, )*\w+): (\S.*)")


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n\n".join(_blocks(obj.docstring.value))

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring or not attr.lineno:
            return
        line = attr.lines_collection[attr.filepath][(attr.endlineno or attr.lineno) - 1]
        if comment := re.search(r"  # (.+)$", line):
            attr.docstring = griffe.Docstring(comment[1], parent=attr)


def _blocks(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if not all(ITEM.match(line) for line in lines if not line.startswith("    ")):
            yield paragraph
            continue
        entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", paragraph)]
        found = [ITEM.match(entry) for entry in entries]
        yield "\n".join(
            f"- {', '.join(f'`{name}`' for name in item[1].split(', '))}: {item[2]}" for item in found if item
        )
