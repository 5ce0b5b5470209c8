"""Starts a command again and again, each time in a child of one process that has loaded its libraries
(test/faults/failing_memory.cpp)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .trial import Wrong


@dataclass
class Ended:
    """How a start ended, with what it said."""

    status: int  # as waitpid has it; -1: it took too long, and was killed
    requests: int  # for memory and threads
    peak: int  # KiB
    said: str

    def code(self, where: str, known: set[int]) -> int:
        """Its exit code, which has to be one of `known`, and what it said then one line for people."""
        if self.status == -1:
            raise Wrong(f"{where}, and it hangs\n{self.said}")
        if os.WIFSIGNALED(self.status):
            raise Wrong(f"{where}, and it dies of signal {os.WTERMSIG(self.status)}\n{self.said}")
        code = os.WEXITSTATUS(self.status)
        if code not in known:
            raise Wrong(f"{where}, and it ends with {code}\n{self.said}")
        if code != 0 and not self.line():
            raise Wrong(f"{where}, and does not say why\n{self.said}")
        return code

    def line(self) -> str:
        """Why it ended; a refusal for want of memory lists behind it what takes most."""
        lines = [line for line in self.said.splitlines() if line.startswith("stagecraft: ")]
        return lines[-1] if lines else ""


class Server:
    """Of `words`, in `folder`."""

    def __init__(self, command: str, words: list[str], folder: Path, seconds: float) -> None:
        library = Path(command).parent / "test/faults/libfailing_memory.so"
        if not library.exists():
            raise Wrong(f"{library} is not there: build it")
        environment = {**os.environ, "STAGECRAFT_FAILING_MEMORY": "1", "LD_PRELOAD": str(library)}
        self.process = subprocess.Popen(
            [command, *words], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder, self.seconds = folder, seconds

    def run(self, mode: str = "fail", n: int = 0) -> Ended:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{mode} {n} {self.seconds} {self.folder}\n")
        self.process.stdin.flush()
        status, requests, peak = map(int, self.process.stdout.readline().split())
        said = (self.folder / "said").read_text(errors="replace")[-30000:]
        return Ended(status, requests, peak, said)
