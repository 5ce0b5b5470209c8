"""One request for memory, or for a thread, fails, once: each of a tiny run in turn. The run has to go on, or
to end with a documented exit code and a line that says that memory or threads have run out. Started again, it
has to end with the bits of a run that was left alone.

Ranks are threads, or processes under mpirun, one of which is hurt. What Open MPI asks for itself never fails.

Seeds from 0 on try the first request of each place in the program (each stack of callers); those behind them
any, at random."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from .server import Ended, Processes, Server, Starts
from .trial import Facts, Setting, Wrong, left_over

SECONDS = 60  # that one start may take
FIRST_SEED = 0
# Seeds go from setting to setting.
SETTINGS = (
    Setting("1f1b", 2, "threads"),
    Setting("pipedream", 2, "threads", in_background=True),
    Setting("1f1b", 2, "mpirun"),
)
SCATTER = 7919  # places of neighbouring seeds lie far apart: a campaign of minutes tries some of everything
ENDS = {0, 2, 3}  # exit codes
# What glibc ends a process with where a thread's own variables find no memory: nobody can catch it.
GLIBC = "Fatal glibc error: failed to register TLS destructor: out of memory"
WORDS = ("memory", "thread")  # one of which the line has


def tiny(setting: Setting) -> dict[str, Any]:
    """Four steps, two validations, two checkpoints."""
    config = setting.config(Path("run"))
    layers = [layer for layer in config["model"]["layers"] if layer["type"] != "delay"]
    config["model"]["layers"] = [*layers[:-1], {"type": "relu"}, layers[-1]]
    config["data"] |= {"samples": 16, "validation_samples": 8}
    config["pipeline"] = {"schedule": setting.schedule, "cuts": [2]}
    return config | {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": 4,
        "validation": {"every_steps": 2},
        "checkpoint": config["checkpoint"] | {"every_steps": 2},
    }


class Hurt:
    """A setting, with what its run is like when nothing fails."""

    def __init__(self, setting: Setting, command: str, folder: Path) -> None:
        self.setting, self.folder = setting, folder
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(tiny(setting)))
        words = ["train", "run.json", "--resume"]
        self.starts: Starts
        if setting.launcher == "threads":
            self.starts = Server(command, words, folder, SECONDS)
        else:
            self.starts = Processes(command, words, folder, SECONDS, setting.ranks)
        self.starts.run("list").code(f"{setting}: nothing fails", {0})
        self.places = sorted(map(int, (folder / "places").read_text().split()))
        self.facts = Facts.of(folder / "run")

    def trial(self, n: int) -> str:
        """How the session ends whose n-th request fails."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        place = self.folder / "place"
        place.unlink(missing_ok=True)
        ended = self.starts.run("fail", n)
        if not place.exists():
            return "made fewer"
        where = f"{self.setting}: request {n} fails"
        try:
            end = "ended by glibc" if self.by_glibc(ended) else f"ended with {ended.code(where, ENDS)}"
            told = ended.lines() if self.setting.launcher == "mpirun" else [ended.line()]
            if end not in ("ended by glibc", "ended with 0") and not any(
                word in line for word in WORDS for line in told
            ):
                raise Wrong(f"{where}, and it says {ended.line()!r}\n{ended.said}")
            self.starts.run().code(f"{where}, and it is started again", {0})
            difference = Facts.of(self.folder / "run").difference(self.facts) or left_over(
                self.folder / "run"
            )
            halves = sorted(path.name for path in (self.folder / "run").rglob("*.part"))
            if halves or difference:
                raise Wrong(f"{where}, and behind it: {difference or halves}")
        except Wrong as wrong:
            raise Wrong(f"{wrong}\n{place.read_text()}") from None
        return end

    def by_glibc(self, ended: Ended) -> bool:
        """Under mpirun the other rank may be the first to say so."""
        return GLIBC in ended.said and (self.setting.launcher == "mpirun" or os.WIFSIGNALED(ended.status))


class Campaign:
    def __init__(self, folder: Path, command: str, until: float) -> None:
        self.folder, self.command = folder, command
        self.hurt: dict[int, Hurt] = {}

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        which = seed % len(SETTINGS)
        if which not in self.hurt:
            self.hurt[which] = Hurt(SETTINGS[which], self.command, self.folder / str(which))
        hurt = self.hurt[which]
        index, places = seed // len(SETTINGS), hurt.places
        if index < len(places):
            n = places[index * SCATTER % len(places)]
        else:
            n = random.Random(seed).randint(1, places[-1])
        name = f"{hurt.setting.schedule}, {hurt.setting.launcher}"
        return name, Counter({"requests": 1, hurt.trial(n): 1})
