"""One request for memory, or for a thread, fails, once: each of a tiny run in turn. The run has to go on, or to
end with a documented exit code and a line that says what there was no memory for. Started again, it has to end
with the bits of a run that was left alone.

Which requests are tried: first one of each place in the program (each stack of callers), by seeds from 0 on,
and behind them any, at random. So `--seed 0` and enough minutes try all places of a schedule, and the trials
behind that the n-th request for any n."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from .trial import Facts, Setting, Wrong, left_over

SECONDS = 60  # that one start may take
FIRST_SEED = 0
# Seeds go from setting to setting.
SETTINGS = (
    Setting("1f1b", 2, "threads"),
    Setting("pipedream", 2, "threads", in_background=True),
)
SCATTER = 7919  # places of neighbouring seeds lie far apart: a campaign of minutes tries some of everything
ENDS = {0, 2, 3}  # exit codes


def tiny(setting: Setting) -> dict[str, Any]:
    """Four steps, two validations, two checkpoints."""
    config = setting.config(Path("run"))
    layers = [layer for layer in config["model"]["layers"] if layer["type"] != "delay"]
    config["model"]["layers"] = [*layers[:-1], {"type": "relu"}, layers[-1]]
    config["data"] |= {"samples": 16, "validation_samples": 8}
    cuts = {} if setting.schedule == "1f1b" else {"cuts": [2]}
    config["pipeline"] = {"schedule": setting.schedule, "stages": 2} | cuts
    return config | {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": 4,
        "validation": {"every_steps": 2},
        "checkpoint": config["checkpoint"] | {"every_steps": 2},
    }


class Server:
    """Starts a run again and again without loading its libraries anew (test/faults/failing_memory.cpp)."""

    def __init__(self, command: str, folder: Path, library: Path) -> None:
        environment = {**os.environ, "STAGECRAFT_FAILING_MEMORY": "1", "LD_PRELOAD": str(library)}
        self.process = subprocess.Popen(
            [command, "train", "run.json", "--resume"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.folder = folder

    def run(self, mode: str, n: int) -> tuple[int, int]:
        """Its status, as waitpid has it, and how many requests it has made."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{mode} {n} {SECONDS} {self.folder}\n")
        self.process.stdin.flush()
        status, count = map(int, self.process.stdout.readline().split())
        return status, count


class Hurt:
    """A setting, with what its run is like when nothing fails."""

    def __init__(self, setting: Setting, command: str, folder: Path, library: Path) -> None:
        self.setting, self.folder = setting, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        import json

        (folder / "run.json").write_text(json.dumps(tiny(setting)))
        self.server = Server(command, folder, library)
        status, self.requests = self.server.run("list", 0)
        if status != 0:
            raise Wrong(f"{setting}: left alone it ends with {status}\n{self.said()}")
        self.places = sorted(map(int, (folder / "places").read_text().split()))
        self.facts = Facts.of(folder / "run")

    def said(self) -> str:
        return (self.folder / "said").read_text()[-3000:]

    def trial(self, n: int) -> str:
        """How the session ends whose n-th request fails."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "place").unlink(missing_ok=True)
        status, _ = self.server.run("fail", n)
        place = self.folder / "place"
        failed = place.exists()
        where = f"{self.setting}: request {n} fails"
        said = self.said()
        stack = place.read_text() if failed else ""
        if status == -1:
            raise Wrong(f"{where}, and it hangs\n{said}\n{stack}")
        if os.WIFSIGNALED(status):
            raise Wrong(f"{where}, and it dies of signal {os.WTERMSIG(status)}\n{said}\n{stack}")
        code = os.WEXITSTATUS(status)
        if code not in ENDS:
            raise Wrong(f"{where}, and it ends with {code}\n{said}\n{stack}")
        last = said.rstrip().splitlines()[-1] if said.strip() else ""
        if code != 0 and not (last.startswith("stagecraft: ") and ("memory" in last or "thread" in last)):
            raise Wrong(f"{where}, and the last line of exit code {code} is {last!r}\n{stack}")
        halves = sorted(str(path) for path in self.folder.rglob("*.part"))
        if halves:
            raise Wrong(f"{where}, and it leaves {halves}\n{said}\n{stack}")
        status, _ = self.server.run("fail", 0)
        if status != 0:
            raise Wrong(f"{where}, and the next start ends with {status}\n{self.said()}\n{stack}")
        difference = Facts.of(self.folder / "run").difference(self.facts) or left_over(self.folder / "run")
        if difference:
            raise Wrong(f"{where}, and behind it: {difference}\n{stack}")
        return f"ended with {code}" if failed else "made fewer"


class Campaign:
    def __init__(self, folder: Path, command: str, until: float) -> None:
        self.folder, self.command = folder, command
        self.library = Path(command).parent / "test/faults/libfailing_memory.so"
        if not self.library.exists():
            raise Wrong(f"{self.library} is not there: build it")
        self.hurt: dict[int, Hurt] = {}

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        which = seed % len(SETTINGS)
        if which not in self.hurt:
            setting = SETTINGS[which]
            self.hurt[which] = Hurt(setting, self.command, self.folder / str(which), self.library)
        hurt = self.hurt[which]
        index, places = seed // len(SETTINGS), hurt.places
        if index < len(places):
            n = places[index * SCATTER % len(places)]
        else:
            n = random.Random(seed).randint(1, hurt.requests)
        return hurt.setting.schedule, Counter({"requests": 1, hurt.trial(n): 1})
