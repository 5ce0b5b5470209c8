"""The seals of scripts/lint.sh --includes, all at once: a process for each source takes longer than all of
them here.

python3 seals.py FOLDER CHECK SOURCE...: prints the sources that have no seal in the folder, each behind its
seal. A seal is named by the check, the source, and what the source and all our headers that it reaches
contain, as seal_of() in lint.sh has it."""

import functools
import hashlib
import re
import sys
from pathlib import Path

INCLUDED = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


@functools.cache
def contents(file: str) -> bytes:
    return Path(file).read_bytes()


@functools.cache
def ours(file: str) -> list[str]:
    return [name for name in map(bytes.decode, INCLUDED.findall(contents(file))) if Path(name).exists()]


def reached(source: str) -> list[str]:
    """The source and its headers."""
    found, waiting = {source}, [source]
    while waiting:
        new = set(ours(waiting.pop())) - found
        found |= new
        waiting += new
    return sorted(found)


def main() -> None:
    folder, check, *sources = sys.argv[1:]
    for source in sources:
        said = f"{check} {source}\n".encode()
        digest = hashlib.sha256(said + b"".join(map(contents, [".clang-tidy", *reached(source)]))).hexdigest()
        seal = Path(folder) / digest[:32]
        if not seal.exists():
            print(seal, source)


main()
