"""metrics.jsonl, read while a run writes it.

A run appends whole lines. A line that is not whole yet has no newline, and waits. `--resume` cuts the file
behind its checkpoint and writes those lines again, and a run that begins again puts another file in its
place: then reading begins anew, and whoever reads leaves out what was there before.
"""

import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

PIECE = 1 << 20  # bytes read at once
REMEMBERED = 256  # bytes in front of the place where reading goes on


class MetricsFile:
    def __init__(self, path: str) -> None:
        self.path = path
        self.at = 0  # all lines in front of it have been read
        self.before = b""  # the bytes there, as they were read
        self.file_number: int | None = None
        self.rewinds = 0  # times that what was read was no longer there
        self.broken = 0  # lines that are no JSON of a step: a power cut leaves such

    def lines(self) -> Iterator[tuple[dict[str, Any], float]]:
        """What came since the last call: lines, each with the time at which it was written (without one, the
        file's)."""
        if not os.path.exists(self.path):
            return
        with open(self.path, "rb") as file:
            facts = os.fstat(file.fileno())
            self.find_place(file, facts)
            for line in self.whole_lines(file, facts.st_size):
                record = record_of(line)
                if record is None:
                    self.broken += 1
                    continue
                yield record, float(record.get("unix_time", facts.st_mtime))

    def find_place(self, file: BinaryIO, facts: os.stat_result) -> None:
        """Back to the beginning where the file is not the one that was read."""
        file.seek(max(self.at - len(self.before), 0))
        same = self.file_number in (None, facts.st_ino) and file.read(len(self.before)) == self.before
        self.file_number = facts.st_ino
        if not same:
            self.at, self.before = 0, b""
            self.rewinds += 1

    def whole_lines(self, file: BinaryIO, end: int) -> Iterator[bytes]:
        for piece in pieces_of(file, self.at, end):
            self.at += len(piece)
            self.before = piece[-REMEMBERED:]
            yield from piece.splitlines()


def pieces_of(file: BinaryIO, at: int, end: int) -> Iterator[bytes]:
    """Whole lines, many at once, from `at` to the last newline in front of `end`."""
    rest = b""
    file.seek(at)
    while at < end and (read := file.read(min(PIECE, end - at))):
        at += len(read)
        whole, newline, rest = (rest + read).rpartition(b"\n")
        if newline:
            place = file.tell()
            yield whole + newline
            file.seek(place)


def record_of(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        if isinstance(record["step"], int) and isinstance(record["ms"], int | float) and "loss" in record:
            return dict(record)
    except (ValueError, KeyError, TypeError):
        pass
    return None
