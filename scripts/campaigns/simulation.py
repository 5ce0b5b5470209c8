"""All threads of a process under one scheduler, which a seed drives: who goes on, what time it is, when a
message comes, when the disk fails and when the power goes (test/simulation). A seed makes the same run each
time, so what it finds can be looked at.

Even seeds hurt a run: killed, stopped, held up, with a disk that fails, hangs or loses power, up to four
times. Then it is left alone, and has the bits of one that never was hurt. Odd seeds run a pipeline over a
transport with shrunk limits, and compare with the oracle; or one of its ranks ends, and the others hear."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from .trial import Wrong

FIRST_SEED = 0
TWICE = 50  # one seed in so many is tried twice


class Campaign:
    def __init__(self, _folder: Path, command: str, _until: float) -> None:
        self.simulate = Path(command).parent / "test/simulation/simulate"
        if not self.simulate.exists():
            raise SystemExit(f"{self.simulate} is not there: build it")
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([self.simulate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self, seed: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Wrong(f"the simulation itself ends with {self.process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        said = self.answer(seed)
        if "wrong" in said:
            raise Wrong(said["wrong"])
        seen = Counter(said["seen"])
        if seed % TWICE == 0:  # in another process, where nothing is left of earlier seeds
            self.process.kill()
            self.process = self.start()
            if self.answer(seed) != said:
                raise Wrong("the same seed makes another run")
            seen["seeds tried twice"] += 1
        seen["seeds"] += 1
        return str(said["name"]), seen
