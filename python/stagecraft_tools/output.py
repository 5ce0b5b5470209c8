"""The folder that a tool makes: written aside, and put in its place whole, instead of an earlier one of the
same tool at most.

A record in it, TOOL.json, lists the tool's files and their sizes. A folder without such a record, or with
anything that the record does not list, is somebody else's and stays untouched. Of a folder that is replaced
the listed files are removed, and nothing else.
"""

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterable

from .files import aside_of, leftovers, put_in_place, sync
from .refusal import Refused

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
FOLDER, OTHER = None, -1  # what stands for a size: of folders, and of links, pipes and devices


def record_of(tool: str) -> str:
    return f"{tool.replace('-', '_')}.json"


def entries_in(folder: str) -> dict[str, int | None]:
    """All that lies in it, by paths relative to it, with sizes."""
    found = {}
    for at, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = os.path.join(at, name)
            kind = (
                OTHER
                if os.path.islink(path)
                else (
                    FOLDER
                    if os.path.isdir(path)
                    else os.path.getsize(path)
                    if os.path.isfile(path)
                    else OTHER
                )
            )
            found[os.path.relpath(path, folder)] = kind
    return found


def recorded_in(folder: str, tool: str) -> dict[str, int]:
    """Files that the tool wrote there, its record among them, with sizes; none where there is no record of
    it."""
    try:
        with open(f"{folder}/{record_of(tool)}", encoding="utf-8") as file:
            record = json.load(file)
        if record["tool"] != tool:
            return {}
        return {
            **{entry["name"]: entry["bytes"] for entry in record["files"]},
            record_of(tool): os.path.getsize(file.name),
        }
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def folders_of(files: Iterable[str]) -> set[str]:
    return {name[:end] for name in files for end, letter in enumerate(name) if letter == "/"}


def strange_in(folder: str, tool: str) -> str | None:
    """Why the folder may not be removed, or None."""
    entries, ours = entries_in(folder), recorded_in(folder, tool)
    if entries and not ours:
        return f"holds {min(entries)} and no {record_of(tool)}: {tool} did not make it"
    known = {**ours, **dict.fromkeys(folders_of(ours), FOLDER)}
    for name, size in sorted(entries.items()):
        if name not in known:
            return f"holds {name}, which {tool} did not write"
        if size != known[name]:
            return f"holds {name}, which is not as {tool} wrote it"
    return None


def remove_recorded(folder: str, tool: str) -> None:
    """The tool's files, and the folders that are empty then."""
    there, files = entries_in(folder), recorded_in(folder, tool)
    for name in sorted(there.keys() & files.keys(), key=lambda name: name == record_of(tool)):
        os.remove(f"{folder}/{name}")
    for name in [*sorted(there.keys() & folders_of(files), reverse=True), "."]:
        os.rmdir(os.path.normpath(f"{folder}/{name}"))


class OutputFolder:
    """As a context it ends with nothing left aside, and with nothing changed where publish() was not
    reached."""

    def __init__(self, tool: str, path: str) -> None:
        """Refuses what could not be put in its place in the end, before anything is computed."""
        self.tool, self.said, self.path = tool, path, os.path.abspath(path)
        if not path:
            raise Refused("-o: expected the name of a folder")
        self.check()
        self.replaces = bool(recorded_in(self.path, tool))
        parent = os.path.dirname(self.path)
        if not os.path.isdir(parent):
            raise Refused(f"-o {path}: there is no folder {parent}: make it first")
        for left in leftovers(self.path):
            what = "whole, an earlier one" if recorded_in(left, tool) else "half-written"
            print(
                f"{tool}: note: {left} is {what}: a run that was killed left it, or another is writing"
                " it now",
                file=sys.stderr,
            )
        self.aside = aside_of(self.path)
        try:
            os.mkdir(self.aside)
        except OSError as error:
            raise Refused(f"-o {path}: nothing can be written in {parent}: {error.strerror}") from error

    def __enter__(self) -> "OutputFolder":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS and not error.filename:
            error.filename = self.said  # writing knows no file
        shutil.rmtree(self.aside, ignore_errors=True)

    def check(self) -> None:
        """Refuses to replace what is not the tool's own."""
        if not os.path.lexists(self.path):
            return
        if os.path.islink(self.path) or not os.path.isdir(self.path):
            raise Refused(f"-o {self.said}: is there and is no folder: name another one")
        if strange := strange_in(self.path, self.tool):
            raise Refused(f"-o {self.said}: {strange}: name another folder, or remove this one yourself")

    def publish(self) -> None:
        """All files lie in `aside`: from now on they are at the path."""
        files = [
            {"name": name, "bytes": size}
            for name, size in sorted(entries_in(self.aside).items())
            if size is not FOLDER
        ]
        with open(f"{self.aside}/{record_of(self.tool)}", "w", encoding="utf-8") as file:
            json.dump({"format": 1, "tool": self.tool, "files": files}, file, indent=1, allow_nan=False)
            file.write("\n")
        for at, _, names in os.walk(self.aside):
            for name in names:
                sync(os.path.join(at, name))
            sync(at)
        self.check()
        for before in put_in_place([(self.aside, self.path)]):
            remove_recorded(before, self.tool)
