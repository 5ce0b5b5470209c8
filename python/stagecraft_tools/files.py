"""Files aside: nothing is seen half-written, and what is there already goes last."""

import glob
import os
import re
import secrets

PART = ".part"


def aside_of(path: str) -> str:
    """A name beside `path` that no other process chooses."""
    return f"{path}.{secrets.token_hex(8)}{PART}"


def leftovers(path: str) -> list[str]:
    """What killed runs left beside `path`, or other runs are writing right now."""
    name = re.compile(re.escape(os.path.basename(path)) + r"\.[0-9a-f]{16}" + re.escape(PART))
    return sorted(
        found
        for found in glob.glob(f"{glob.escape(path)}.*{PART}")
        if name.fullmatch(os.path.basename(found))
    )


def sync(path: str) -> None:
    """A file's bytes, or a folder's entries, will be there after a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def put_in_place(pairs: list[tuple[str, str]]) -> list[str]:
    """Renames each (made, path) in turn. What is at the paths steps aside first and comes back where a rename
    fails. Returns the names that these have now, for the caller to remove: a process that is killed on the
    way leaves both the old and the new."""
    before, done = [], []
    try:
        for _, path in reversed(pairs):
            if os.path.lexists(path):
                os.rename(path, aside := aside_of(path))
                before.append((aside, path))
        for made, path in pairs:
            os.rename(made, path)
            done.append((path, made))
    except BaseException:
        for source, target in [*done, *before]:
            os.rename(source, target)
        raise
    for folder in {os.path.dirname(path) or "." for _, path in pairs}:
        sync(folder)
    return [aside for aside, _ in before]
