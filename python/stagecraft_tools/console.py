"""Refusals in one line, and a line of progress."""

import argparse
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TextIO

from .launchers import require_alone
from .refusal import Refused

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asked for the end. What is written aside is removed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Progress:
    """One line, on a terminal, which changes five times per second at most. Nothing elsewhere."""

    def __init__(self, out: TextIO = sys.stderr) -> None:
        self.out, self.next, self.shows = out, 0.0, out.isatty()

    def show(self, line: Callable[[], str]) -> None:
        """`line` makes the text, where it is shown."""
        if self.shows and time.monotonic() >= self.next:
            self.next = time.monotonic() + 0.2
            self.out.write(f"\r{line()} ")
            self.out.flush()

    def clear(self) -> None:
        if self.shows:
            self.out.write("\r\x1b[K")


def stop(number: int, _: object) -> None:
    raise Stopped(number)


def first_line(error: object) -> str:
    """What an exception says, without the lines behind the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(
        lines[: 2 if lines and lines[0].endswith(":") else 1]
    )  # a heading tells nothing by itself
    return f"{type(error).__name__}: {said.rstrip('.')}" if lines else type(error).__name__


def add_traceback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="where the tool ends with an error, print Python's traceback too",
    )


def run(
    tool: str,
    main: Callable[[], int],
    modules: str,
    place_of: Callable[[BaseException], str] = lambda error: "",
) -> int:
    """`main`'s exit code. What it refuses, a file that cannot be read or written, and a Python module that is
    missing are one line and exit code 2 or what it says; anything else one line and 1. `modules`: what to
    install then. `place_of`: a place in the user's files that an error came by, or ""."""
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
            signal.signal(number, stop)
    try:
        require_alone()
        return main()
    except Stopped as stopped:
        print(f"{tool}: interrupted; nothing was written", file=sys.stderr)
        return 128 + stopped.number
    except Exception as error:
        if "--traceback" in sys.argv:
            traceback.print_exc()
        code, line = said_of(error, tool, modules, place_of)
        if line:
            print(f"{tool}: {line}", file=sys.stderr)
        return code


def said_of(
    error: BaseException, tool: str, modules: str, place_of: Callable[[BaseException], str]
) -> tuple[int, str]:
    """Exit code and line."""
    if isinstance(error, Refused):
        return error.code, " ".join(str(error).splitlines())
    if isinstance(error, ModuleNotFoundError):
        return (
            2,
            (
                f"there is no Python module {error.name} here: scripts/setup.sh --models, or python3 -m pip"
                f" install {modules}"
            ),
        )
    if isinstance(error, OSError) and error.strerror:
        return 2, f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, MemoryError):
        return 1, "the memory does not suffice"
    place = place_of(error)
    return (
        1,
        (
            f"{place + ': ' if place else ''}{first_line(error)}; this is a defect of {tool}: --traceback"
            " prints where it comes from"
        ),
    )
