"""The line of the user's Python that changes something, found by looking after each line: for a refusal,
which nobody waits for often."""

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .reach import is_users


def caller_of(frame: FrameType) -> FrameType | None:
    """The user's function that called this one, or None."""
    caller = frame.f_back
    while caller is not None and not is_users(caller.f_code.co_filename):
        caller = caller.f_back
    return caller


def line_in(frame: FrameType | None) -> tuple[str, int, str] | None:
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def line_that_changes(look: Callable[[], Any], work: Callable[[], Any]) -> str:
    """The user's line in which what `look` returns becomes another while `work` runs, as errors.place_of()
    has lines, with its text; or "". What `work` raises is not raised."""
    known, at, found = look(), None, ""

    def compare() -> None:
        nonlocal known, found
        if not found and (now := look()) != known:
            known = now
            if at is not None:
                file, line, name = at
                found = f'File "{file}", line {line}, in {name} ({linecache.getline(file, line).strip()})'

    def within(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal at
        sys.settrace(None)  # looking is Python too
        try:
            compare()
        finally:
            sys.settrace(entered)
        at = line_in(caller_of(frame) if event == "return" else frame) or at
        return None if found else within

    def entered(frame: FrameType, event: str, argument: object) -> Any:
        return within if not found and is_users(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        work()
    except Exception:
        pass
    finally:
        sys.settrace(before)
    compare()
    return found
