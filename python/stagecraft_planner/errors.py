"""What the planner refuses. The texts are the command's own, without its name in front."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .proof import Proof


class StagecraftError(Exception):
    """Any of those below. `code` is the exit code that the command ends with, `document` the JSON that it has
    printed nevertheless."""

    code = 1
    document = ""


class InputError(StagecraftError, ValueError):
    """A file, a value or a combination of them is wrong; the text says where and what was expected."""

    code = 2


class RefusedError(StagecraftError):
    """A program is unsafe, or no plan fits. `proof` has the findings where check() refused a program."""

    code = 3
    proof: Proof | None = None


class PeerError(StagecraftError):
    """Another process of a run died or hangs."""

    code = 4


class InternalError(StagecraftError):
    """Anything else: there is no planner to start, or it ended in a way that it should not."""

    code = 1


def error_of(code: int, text: str, document: str = "") -> StagecraftError:
    """The exception for an exit code of the command; negative: the number of a signal."""
    error = _of_kind(code, text)
    error.document = document
    return error


def _of_kind(code: int, text: str) -> StagecraftError:
    if code < 0:
        return InternalError(f"the planner was ended by signal {-code}{': ' + text if text else ''}")
    for kind in (InputError, RefusedError, PeerError):
        if code == kind.code:
            return kind(text)
    return InternalError(text or f"the planner ended with exit code {code} and said nothing")


class Note(UserWarning):
    """A remark of the command that is no error: it comes as a warning."""
