"""What a run directory says of its run: which one it is, whether it goes on, how it ended."""

import json
import os
from dataclasses import dataclass
from typing import Any

MARK = "Stagecraft run."
RECORDS = (
    "config.json",
    "plan.json",
    "exit.json",
    "logs",
    "live",
    "checkpoints",
)  # beside those of is_there()
FOLLOWED = {"follow", "tensorboard"}  # what following leaves
STOPPED = 75  # the exit code of a run that a signal stopped


@dataclass(frozen=True)
class Holder:
    """The process that uses the directory, or used it last."""

    process: int
    numbers: str  # which numbers of processes are meant: the running kernel and the container


@dataclass(frozen=True)
class End:
    """How the last session of a run ended."""

    word: str  # "finished", "stopped", "failed", "killed"
    code: int
    message: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.message}" if self.message else self.word


class RunDirectory:
    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def is_there(self) -> bool:
        """Whether a run has made the folder its own. Nothing may be written there before."""
        return any(os.path.exists(self.file(name)) for name in (".lock", "metrics.jsonl", "summary.json"))

    def is_record(self, name: str) -> bool:
        """Whether a run writes what is called so. In a folder of runs one may be called "live", too."""
        return name in RECORDS and not os.path.exists(self.file(f"{name}/plan.json"))

    def foreign(self) -> str:
        """Why this can be no run's directory; "" where it is one, or may become one."""
        if not os.path.exists(self.path):
            return ""
        if not os.path.isdir(self.path):
            return "is no folder, and so no run's"
        try:
            inside = sorted(os.listdir(self.path))
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if self.is_there() or any(self.is_record(name) for name in inside) or not set(inside) - FOLLOWED:
            return ""
        runs = [name for name in inside if os.path.exists(self.file(f"{name}/plan.json"))][:3]
        such = ", ".join(self.file(name) for name in runs) or "as a config's run_dir names it"
        return (
            "is a folder with nothing of a run in it; expected a run directory, "
            f"{'such as ' if runs else ''}{such}"
        )

    def document(self, name: str) -> dict[str, Any]:
        """A JSON object of the directory; {} where there is none yet."""
        try:
            with open(self.file(name), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def lock_lines(self) -> list[str]:
        try:
            with open(self.file(".lock"), encoding="utf-8", errors="replace") as file:
                return file.read(4096).splitlines()
        except OSError:
            return []

    def identity(self) -> str:
        """The same for all sessions of the run; "" where this user may not read it."""
        lines = self.lock_lines()
        return lines[0].removeprefix("Stagecraft ") if lines and lines[0].startswith(MARK) else ""

    def holder(self) -> Holder | None:
        words = next((line.split() for line in self.lock_lines() if not line.startswith(MARK)), [])
        if len(words) < 3 or not words[0].isdecimal():
            return None
        return Holder(int(words[0]), words[2])

    def is_held(self) -> bool | None:
        """Whether a process of the run lives; None where that cannot be known: it is another machine's, or
        the directory another user's. Takes no lock, which could get in a run's way."""
        holder = self.holder()
        if holder is None or holder.numbers != numbers_here():
            return None
        try:
            os.kill(holder.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.has_lock(holder.process)

    def has_lock(self, process: int) -> bool:
        """Numbers of processes are given anew. True where the system does not tell."""
        if os.path.exists(self.file(".owner")):
            return True
        try:
            number = os.stat(self.file(".lock")).st_ino
            with open("/proc/locks", encoding="ascii") as file:
                return any(f" {process} " in line and f":{number} " in line for line in file)
        except OSError:
            return True

    def changed(self) -> float:
        """When the run last wrote something, in seconds since 1970."""
        names = (".lock", "metrics.jsonl", "summary.json", "exit.json", "plan.json", "config.json")
        times = [os.stat(self.file(name)).st_mtime for name in names if os.path.exists(self.file(name))]
        return max(times, default=0.0)

    def predicted_ms(self) -> float | None:
        predicted = self.document("plan.json").get("predicted")
        found = predicted.get("step_ms") if isinstance(predicted, dict) else None
        return float(found) if isinstance(found, int | float) else None

    def end(self) -> End:
        """Of a session that is over."""
        failure, summary = self.document("exit.json"), self.document("summary.json")
        code = failure.get("code")
        if isinstance(code, int) and code not in (0, STOPPED):
            return End("failed", code, str(failure.get("message", "")))
        if code == STOPPED or summary.get("stopped_by_signal"):
            return End("stopped", STOPPED)
        return End("finished", 0) if summary else End("killed", 1)


def numbers_here() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
