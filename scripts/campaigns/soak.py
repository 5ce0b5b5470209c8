"""One run for as long as asked. What its processes hold (memory, files, threads) and what a step takes
have to stay what they were after the first tenth."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from .trial import Setting, Start, Wrong, prepared

PERIOD = 0.5  # seconds between two looks
MORE_MEMORY = 1.10  # of the last tenth over the first
MORE_TIME = 1.5  # other work on the machine passes too


class Campaign:
    """A trial is the whole campaign: it ends when `until` has come."""

    def __init__(self, folder: Path, command: str, until: float) -> None:
        self.folder, self.command, self.until = folder, command, until

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        setting = Setting(choose.choice(("1f1b", "zb_h1", "zb_v")), 2, "mpirun", steps=10**9)
        run_dir, config = prepared(self.folder / "soak", setting)
        start = Start(self.command, setting, config)
        looks: list[dict[int, tuple[int, int, int]]] = []
        while time.monotonic() < self.until and start.process.poll() is None:
            time.sleep(PERIOD)
            if (run_dir / "metrics.jsonl").exists():
                looks.append({pid: held(pid) for pid in start.processes()})
        for pid in start.processes():
            os.kill(pid, signal.SIGUSR1)
        code = start.wait()
        if code != 75:
            raise Wrong(f"{setting}: it ends with {code}\n{start.said()}")
        judge(setting, looks)
        times = step_times(run_dir)
        if not times:
            raise Wrong(f"{setting}: it has made no step\n{start.said()}")
        tenth = max(1, len(times) // 10)
        first, last = (undisturbed(part) for part in (times[tenth : 2 * tenth], times[-tenth:]))
        if last > MORE_TIME * first:
            raise Wrong(f"{setting}: a step takes {last:.2f} ms at the end, {first:.2f} ms in the beginning")
        seen = Counter(runs=1, steps=len(times))
        seen["ppm of step time, last tenth over second"] = round(1e6 * (last / first - 1))
        return setting.schedule, seen


def undisturbed(times: list[float]) -> float:
    """What nine of ten steps take at least: a machine with other work makes steps longer, never shorter."""
    return sorted(times)[len(times) // 10]


def held(pid: int) -> tuple[int, int, int]:
    """KiB of memory, open files, threads; zeros of a process that has just ended."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        files = len(os.listdir(f"/proc/{pid}/fd"))
        return int(status["VmRSS"].split()[0]), files, int(status["Threads"])
    except (OSError, KeyError):
        return 0, 0, 0


def judge(setting: Setting, looks: list[dict[int, tuple[int, int, int]]]) -> None:
    if len(looks) < 20:
        raise Wrong(f"{setting}: {len(looks)} looks are too few, give it more --minutes")
    tenth = len(looks) // 10
    for pid in looks[tenth]:
        early = [look[pid] for look in looks[tenth : 2 * tenth] if pid in look]
        late = [look[pid] for look in looks[-tenth - 1 : -1] if pid in look]
        for index, name in enumerate(("KiB of memory", "open files", "threads")):
            first, last = (max(look[index] for look in part) for part in (early, late))
            if last > (MORE_MEMORY * first if index == 0 else first + 2):
                raise Wrong(
                    f"{setting}: process {pid} has {last} {name} at the end, {first} in the beginning"
                )


def step_times(run_dir: Path) -> list[float]:
    """Milliseconds."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [float(json.loads(line)["ms"]) for line in lines if '"loss"' in line]
