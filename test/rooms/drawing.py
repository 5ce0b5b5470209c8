#!/usr/bin/env python3
"""Compares the rooms drawn in docs/architecture.md with what CMake's targets link.

    drawing.py ARCHITECTURE_MD LINKS

LINKS has one line per target, "room -> public links ; private links", lists separated by blanks. Only links
between rooms count. Exits with 1 and says which room differs.
"""

import re
import sys
from pathlib import Path


def drawn(page):
    """room -> its links: of the block of schedules/, and of the table below it."""
    section = page[page.index("## Rooms") : page.index("## The way of a micro-batch")]
    rooms = {}
    for line in section.splitlines():
        if match := re.match(r"   (\w+) .* -> ([\w ]+)$", line):
            rooms[match[1]] = set(match[2].split())
        elif match := re.match(r"\| `(\w+)`.*\| ([^|]+) \|$", line):
            rooms[match[1]] = set(re.findall(r"\w+", match[2]))
    return rooms


def linked(text):
    rooms = {}
    for line in text.splitlines():
        room, _, links = line.partition(" -> ")
        rooms[room] = set(re.findall(r"stagecraft::(\w+)", links))
    return rooms


def main():
    page, links = (Path(path).read_text() for path in sys.argv[1:3])
    there, here = drawn(page), linked(links)
    wrong = 0
    for room in sorted(here.keys() | there.keys()):
        if room == "base":
            continue
        if room not in there or room not in here:
            print(f"{room}: {'not drawn in the page' if room in here else 'drawn, but no target'}")
            wrong += 1
            continue
        rooms_drawn = {link for link in there[room] if link in here or link in ("schedules", "partitioner")}
        if rooms_drawn != here[room]:
            print(f"{room}: drawn with {sorted(rooms_drawn)}, links {sorted(here[room])}")
            wrong += 1
    print(f"{len(here)} rooms compared with the page")
    sys.exit(1 if wrong or not there else 0)


main()
