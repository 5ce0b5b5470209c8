#!/usr/bin/env python3
"""No two headers define a type of one full name: the linker keeps one destructor of the two and calls it for
both.

    one_name.py SOURCE
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOMS = ("base", "cli", "engine", "models", "partitioner", "profiler", "schedules")
WORDS = re.compile(
    r"//[^\n]*|namespace\s+([\w:]+)?\s*\{|\b(?:struct|class|union|enum"
    r" class|enum)\s+(?:\[\[\w+\]\]\s*)?(\w+)(?:\s+final)?\s*(?::[^;{()]*)?\{|\{|\}"
)


def types_of(text):
    """Full names of the types that a header defines outside of functions and other types."""
    open_scopes, found = [], []
    for word in WORDS.finditer(text):
        namespace, name = word.groups()
        if word[0].startswith("//"):
            continue
        if word[0] == "}":
            open_scopes.pop()
        elif word[0].startswith("namespace"):
            open_scopes.append(namespace or "(anonymous)")
        else:
            if name and name != "std" and None not in open_scopes:  # template <> struct std::hash<...>
                found.append("::".join([*open_scopes, name]))
            open_scopes.append(None)
    return found


def main():
    source = Path(sys.argv[1])
    headers = sorted(header for room in ROOMS for header in (source / room).rglob("*.h"))
    where = defaultdict(list)
    for header in headers:
        for name in types_of(header.read_text()):
            where[name].append(str(header.relative_to(source)))
    assert len(where) > 300, f"only {len(where)} types found: is this the tree?"
    twice = {name: files for name, files in where.items() if len(files) > 1}
    for name, files in twice.items():
        print(f"{name} is defined in {' and '.join(files)}: one of them needs another name")
    sys.exit(1 if twice else 0)


main()
