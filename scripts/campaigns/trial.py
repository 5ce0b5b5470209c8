"""What campaigns share: the runs, how they are started, what is compared, and the table."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Synchronous ones, and two that are not: what is saved is what all of them go on from.
SCHEDULES = (
    "fill_drain",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "interleaved_zb",
    "zb_v",
    "v_half",
    "v_min",
    "auto",
    "pipedream",
    "2bw",
)
PATIENCE = 300.0  # seconds that one start may take
RESTARTS = 8  # of torchrun's
KEEP = 2  # checkpoints


class Wrong(Exception):
    """What should never be seen."""


@dataclass
class Setting:
    """A run, and what starts its ranks: threads of a process, mpirun, or torchrun's agent."""

    schedule: str
    ranks: int
    launcher: str
    steps: int = 40
    in_background: bool = False  # checkpoints

    def config(self, run_dir: Path) -> dict[str, Any]:
        hidden = {"type": "linear", "features": 8}
        # A step takes some 10 to 50 ms, so that checkpoints, steps and what lies between are all hit.
        pause = {
            "type": "delay",
            "forward_ms": 0.3,
            "backward_input_ms": 0.3,
            "backward_weight_ms": 0.1,
            "features": 8,
            "parameters": 1,
        }
        layers = [hidden if i % 2 == 0 else pause for i in range(3 * self.ranks)]
        synchronous = self.schedule not in ("pipedream", "2bw")
        # The numbers of the others are those of their cuts, which plans of two measurements may not share.
        cuts = {} if synchronous else {"cuts": [3 * stage for stage in range(1, self.ranks)]}
        ranks = {"ranks": {"min": self.ranks, "max": self.ranks}} if synchronous else {}
        optimizer = {"type": "AdamW", "params": {"lr": 0.01}} if synchronous else {"type": "SGD"}
        return {
            "model": {"family": "sequential", "layers": [*layers, {"type": "linear", "features": 4}]},
            "data": {
                "type": "synthetic",
                "samples": 64,
                "validation_samples": 0,
                "shape": [8],
                "classes": 4,
            },
            "loss": {"type": "cross_entropy"},
            "optimizer": optimizer,
            "train_batch_size": 4 * self.ranks,
            "train_micro_batch_size_per_gpu": 2,
            "train_steps": self.steps,
            "threads_per_rank": 1,
            "pipeline": {"schedule": self.schedule, **cuts, **ranks},
            "profiler": {"repeats": 2, "warmup_ms": 0},
            "checkpoint": {"every_steps": 4, "keep": KEEP, "in_background": self.in_background},
            "steps_per_print": 0,
            "run_dir": str(run_dir),
        }

    def __str__(self) -> str:
        saving = ", checkpoints in the background" if self.in_background else ""
        return f"{self.schedule}, {self.ranks} ranks, {self.launcher}{saving}"


def has_torchrun(command: str) -> bool:
    """Whether the module for Python was built, and there is a Python for it."""
    python = os.environ.get("STAGECRAFT_PYTHON_WITH_TORCH", "")
    return (Path(command).parent / "python/stagecraft").is_dir() and os.access(python, os.X_OK)


def any_setting(choose: random.Random) -> Setting:
    return Setting(
        schedule=choose.choice(SCHEDULES),
        ranks=choose.choice((2, 2, 2, 3, 3, 4, 5, 8)),
        launcher=choose.choice(("threads", "mpirun")),
        in_background=choose.random() < 0.5,
    )


def what_it_waits_in(process: int) -> str:
    """Of each thread: its name, state and where in the kernel it is."""
    lines = []
    for task in sorted(Path(f"/proc/{process}/task").glob("*")):
        try:
            name, state = (task / "comm").read_text().strip(), (task / "stat").read_text().rsplit(")")[-1][1]
            lines.append(f"{process}: {name} {state} {(task / 'wchan').read_text()}")
        except OSError:  # it has ended
            continue
    return "\n".join(lines) or f"{process}: has ended"


class Start:
    """One start of a run."""

    def __init__(
        self,
        command: str,
        setting: Setting,
        config: Path,
        name: str = "run",
        environment: dict[str, str] | None = None,
    ) -> None:
        words = [command, "train", str(config), "--resume"]
        if setting.launcher == "mpirun":
            words = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(setting.ranks), *words]
        if setting.launcher == "torchrun":
            logs = config.with_name("torchrun")
            logs.mkdir(exist_ok=True)
            module = Path(command).parent / "python"
            agent = [os.environ["STAGECRAFT_PYTHON_WITH_TORCH"], "-m", "campaigns.agent", str(module)]
            words = [*agent, str(setting.ranks), str(RESTARTS), str(logs), *words[1:]]
        self.setting = setting
        self.output = config.with_name(f"{name}.txt")
        self.begun = time.monotonic()
        with self.output.open("w") as output:
            self.process = subprocess.Popen(words, stdout=output, stderr=output, env=environment)

    def processes(self) -> list[int]:
        """Of the ranks; none while there are none yet."""
        if self.setting.launcher == "threads":
            return [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            return [int(pid) for pid in children.read_text().split()]
        except OSError:
            return []

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            left = "\n".join(map(what_it_waits_in, [self.process.pid, *self.processes()]))
            self.process.kill()
            raise Wrong(
                f"{self.setting}: a start hangs for {PATIENCE:.0f} s\n{left}\n{self.said()}"
            ) from None

    def said(self) -> str:
        return self.output.read_text()[-3000:]


@dataclass
class Facts:
    """What a run leaves that has to be the same whatever happened to it."""

    losses: list[tuple[int, float]]
    checkpoint: dict[str, str]

    @staticmethod
    def of(run_dir: Path) -> Facts:
        lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
        last = max((run_dir / "checkpoints").iterdir())
        return Facts(
            losses=[(line["step"], line["loss"]) for line in lines],
            checkpoint={
                f"{last.name}/{file.relative_to(last)}": hashlib.sha256(file.read_bytes()).hexdigest()
                for file in sorted(last.rglob("*.safetensors"))
            },
        )

    def difference(self, other: Facts) -> str:
        for mine, its in zip(self.losses, other.losses, strict=False):
            if mine != its:
                return f"step and loss {mine} instead of {its}"
        if len(self.losses) != len(other.losses):
            return f"{len(self.losses)} steps instead of {len(other.losses)}"
        names = sorted(self.checkpoint.keys() ^ other.checkpoint.keys())
        if names:
            return f"files of the last checkpoint: {names}"
        wrong = [name for name, its in other.checkpoint.items() if self.checkpoint[name] != its]
        return f"other bytes in {wrong}" if wrong else ""


def left_over(run_dir: Path) -> str:
    """What a run directory may not hold once its run is over."""
    checkpoints = list((run_dir / "checkpoints").iterdir())
    if len(checkpoints) > KEEP:
        return f"{len(checkpoints)} checkpoints, where {KEEP} are kept"
    known = {"checkpoints", "logs", "config.json", "plan.json", "profile.json", "metrics.jsonl"}
    known |= {"timeline.json", "summary.json", "shares", ".lock", ".owner"}
    strangers = [
        path.name
        for path in run_dir.iterdir()
        if path.name not in known and not path.name.startswith("metrics.earlier-")
    ]
    strangers += [
        f"shares/{path.name}"
        for path in (run_dir / "shares").glob("*")
        if not re.fullmatch(r"rank-\d+\.json", path.name)
    ]
    return f"files that nobody needs: {strangers}" if strangers else ""


class Whole:
    """Runs that were left alone, each made once."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.command = folder, command
        self.known: dict[tuple[str, int, int], tuple[Facts, float]] = {}

    def of(self, setting: Setting) -> tuple[Facts, float]:
        """Its facts, and the seconds it took. Ranks are threads, and have the bits of processes."""
        key = (setting.schedule, setting.ranks, setting.steps)
        if key not in self.known:
            alone = Setting(setting.schedule, setting.ranks, "threads", setting.steps)
            run_dir, config = prepared(self.folder / "whole", alone)
            start = Start(self.command, alone, config)
            if start.wait() != 0:
                raise Wrong(f"{alone}: left alone it ends with {start.process.returncode}\n{start.said()}")
            self.known[key] = (Facts.of(run_dir), time.monotonic() - start.begun)
        return self.known[key]


class BesideTheWhole:
    """A campaign of runs that are hurt, beside the same left alone."""

    def __init__(self, folder: Path, command: str, _until: float) -> None:
        self.folder, self.command = folder, command
        self.whole = Whole(folder, command)


def prepared(folder: Path, setting: Setting) -> tuple[Path, Path]:
    """An empty run directory, and the config of a run there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run_dir, config = folder / "run", folder / "run.json"
    config.write_text(json.dumps(setting.config(run_dir)))
    return run_dir, config


def compare(run_dir: Path, whole: Facts, setting: Setting) -> None:
    difference = Facts.of(run_dir).difference(whole) or left_over(run_dir)
    if difference:
        raise Wrong(f"{setting}: {difference}")


def add_to(row: Counter[str], counts: Counter[str]) -> None:
    for key, count in counts.items():
        row[key] = max(row[key], count) if key.startswith("longest") else row[key] + count


@dataclass
class Tally:
    """Trials and what happened in them, by schedule."""

    campaign: str
    begun: float = field(default_factory=time.monotonic)
    rows: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, seen: tuple[str, Counter[str]]) -> None:
        name, counts = seen
        add_to(self.rows.setdefault(name, Counter()), counts)

    def table(self) -> str:
        columns = sorted({key for row in self.rows.values() for key in row})
        total: Counter[str] = Counter()
        for row in self.rows.values():
            add_to(total, row)
        cells = [["", *columns]]
        cells += [[name, *(f"{row[c]}" for c in columns)] for name, row in sorted(self.rows.items())]
        cells.append(["all", *(f"{total[c]}" for c in columns)])
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns) + 1)]
        lines = [
            "  ".join(
                [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            )
            for row in cells
        ]
        lines.insert(1, "-" * len(lines[0]))
        took = time.monotonic() - self.begun
        return "\n".join([f"{self.campaign}: {took / 60:.1f} minutes", "", *lines])
