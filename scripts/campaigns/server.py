"""Starts a command again and again, with a request for memory that fails (test/faults/failing_memory.cpp):
each time in a child of one process that has loaded its libraries, or by mpirun."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
        return self.lines()[-1] if self.lines() else ""

    def lines(self) -> list[str]:
        """Of processes each that ends says why: mpirun tells the others to end."""
        return [line for line in self.said.splitlines() if line.startswith("stagecraft: ")]


class Starts(Protocol):
    """Of `words`, in `folder`."""

    def run(self, mode: str = "fail", n: int = 0) -> Ended:
        """The n-th request fails; none for 0."""


def library_of(command: str) -> Path:
    library = Path(command).parent / "test/faults/libfailing_memory.so"
    if not library.exists():
        raise Wrong(f"{library} is not there: build it")
    return library


class Processes:
    """Ranks under mpirun. The last one is hurt."""

    def __init__(self, command: str, words: list[str], folder: Path, seconds: float, ranks: int) -> None:
        self.words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        self.words += ["-x", f"LD_PRELOAD={library_of(command)}", "-x", "STAGECRAFT_FAILING_RANK"]
        self.words += [command, *words]
        self.folder, self.seconds, self.hurt = folder, seconds, ranks - 1

    def run(self, mode: str = "fail", n: int = 0) -> Ended:
        environment = {**os.environ, "STAGECRAFT_FAILING_RANK": f"{self.hurt} {mode} {n} {self.folder}"}
        with (self.folder / "said").open("w") as said:
            process = subprocess.Popen(
                self.words,
                env=environment,
                cwd=self.folder,
                stdout=said,
                stderr=said,
                stdin=subprocess.DEVNULL,
            )
            try:
                status = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                status = -1
        return Ended(
            self.as_waited_for(status), 0, 0, (self.folder / "said").read_text(errors="replace")[-30000:]
        )

    def as_waited_for(self, code: int) -> int:
        """mpirun may return 1 for what a rank says in exit.json."""
        record = self.folder / "run/exit.json"
        if code == 1 and record.exists():
            code = json.loads(record.read_text())["code"]
        return code if code < 0 else code << 8


class Server:
    """In children of a process."""

    def __init__(self, command: str, words: list[str], folder: Path, seconds: float) -> None:
        library = library_of(command)
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
