"""The planner: the `stagecraft` command in its build without the engine, started anew for each question."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType

from .document import read_text, write_text
from .errors import InternalError, Note, error_of

VARIABLE = "STAGECRAFT_PLANNER"
ALONE = "STAGECRAFT_ALONE"  # the command then takes no launcher's word for what it is
_BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "stagecraft")
# Each message of the command begins so, and may have several lines.
_MESSAGE = re.compile(r"^stagecraft: ", re.MULTILINE)
_SEE_HELP = re.compile(r"\nSee `stagecraft [^`]*`\.$")


def planner() -> str:
    """Its path: the environment variable STAGECRAFT_PLANNER, or what the package was installed with."""
    given = os.environ.get(VARIABLE)
    path = given or _BESIDE
    if os.path.isfile(path) and os.access(path, os.X_OK):
        return path
    raise InternalError(
        f"{VARIABLE}={given}: there is no program to start: set it to the planner of a build, or unset it"
        if given
        else f"{path}: there is no planner to start: install the package with pip, or set {VARIABLE} to"
        " build/planner/stagecraft of a build"
    )


def alone() -> dict[str, str]:
    """The environment of a command that this process asks. Under torchrun or mpirun it would else take itself
    for one of their processes."""
    return {**os.environ, ALONE: "1"}


@dataclass(frozen=True)
class Answer:
    """What a call left behind."""

    stdout: str
    written: Mapping[str, str]  # by the names asked for


@dataclass(frozen=True)
class Call:
    """A verb with its options and the files it reads: all that is needed to ask again."""

    verb: str
    options: tuple[str, ...] = ()
    files: Mapping[str, str] = field(
        default_factory=dict
    )  # contents, by names that the options have in braces
    labels: Mapping[str, str] = field(default_factory=dict)  # what texts call them

    def run(self, *more: str) -> Answer:
        """Runs the command with these options as well. A name in braces, as in "--svg={plan.svg}", is a file
        of the call's, or one that the command is to write. Raises what errors.py has; remarks are warnings.

        Ctrl-C, or any other exception here, ends the command.
        """
        with tempfile.TemporaryDirectory(prefix="stagecraft-") as folder:
            for name, text in self.files.items():
                write_text(os.path.join(folder, name), text)
            wanted: list[str] = []

            def placed(match: re.Match[str]) -> str:
                if match[1] not in self.files:
                    wanted.append(match[1])
                return os.path.join(folder, match[1])

            options = [re.sub(r"\{([^{}]+)\}", placed, option) for option in (*self.options, *more)]
            code, stdout, stderr = _run([planner(), self.verb, *options])

            def named(text: str) -> str:
                for name in (*self.files, *wanted):
                    text = text.replace(os.path.join(folder, name), self.labels.get(name, name))
                return text

            stdout = named(stdout)
            messages = [message.rstrip("\n") for message in _MESSAGE.split(named(stderr)) if message.strip()]
            for message in messages:
                if message.startswith("note: "):
                    warnings.warn(message.removeprefix("note: "), Note, stacklevel=4)
            if code != 0:
                text = "\n".join(message for message in messages if not message.startswith("note: "))
                raise error_of(code, _SEE_HELP.sub("", text), stdout)
            paths = {name: os.path.join(folder, name) for name in wanted}
            return Answer(
                stdout, {name: read_text(path) for name, path in paths.items() if os.path.exists(path)}
            )


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C comes at the end of it. A program that has just begun would else be nobody's to end."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        before(*came[0])


def _run(command: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error. Whatever is raised here ends the program."""
    child = None
    try:
        with _ctrl_c_later():
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=alone(),
            )
        stdout, stderr = child.communicate()
    except OSError as error:
        raise InternalError(f"{command[0]}: cannot be started: {error.strerror}") from None
    except BaseException:
        if child is not None:
            with child:
                child.kill()
        raise
    return child.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace")
