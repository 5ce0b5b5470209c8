"""All ranks of a start are stopped (SIGSTOP) at a random moment, the run is started again beside it, as
on another machine that has locks of its own, and the first start wakes up at another random moment, or
when the second one is through. One of the two has to end with the line that says who took over. The run
has to end with the bits of one that was left alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from .trial import PATIENCE, BesideTheWhole, Setting, Start, Wrong, any_setting, compare, prepared

MOST_WAKES = 4  # of one run
TAKEN = ": was taken over by start "


class Campaign(BesideTheWhole):
    def __init__(self, folder: Path, command: str, until: float) -> None:
        super().__init__(folder, command, until)
        self.locks = Path(command).parent / "test/faults/libfree_locks.so"
        if not self.locks.exists():
            raise SystemExit(f"{self.locks} is not there: build free_locks")

    def start(self, setting: Setting, config: Path, number: int) -> Start:
        environment = {**os.environ, "LD_PRELOAD": str(self.locks)}
        return Start(self.command, setting, config, f"start-{number}", environment)

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        setting = any_setting(choose)
        facts, seconds = self.whole.of(setting)
        run_dir, config = prepared(self.folder / "hurt", setting)
        seen = Counter(runs=1, starts=1)
        current = self.start(setting, config, 0)
        for number in range(1, 1 + choose.randint(1, MOST_WAKES)):
            # Some in the start, some in a checkpoint, some just behind the end.
            time.sleep(choose.uniform(0, 1.1 * seconds))
            stopped = current.processes()
            if not stopped or current.process.poll() is not None:
                continue
            send(stopped, signal.SIGSTOP)
            second = self.start(setting, config, number)
            seen["starts"] += 1
            time.sleep(choose.uniform(0, 2 * seconds))
            send(stopped, signal.SIGCONT)
            current = left_of(current, second, setting, seen)
        current.wait()
        last = self.start(setting, config, 99)
        if last.wait() != 0:
            raise Wrong(
                f"{setting}: nobody stops it, and it ends with {last.process.returncode}\n{last.said()}"
            )
        compare(run_dir, facts, setting)
        return setting.schedule, seen


def send(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, what)


def left_of(first: Start, second: Start, setting: Setting, seen: Counter[str]) -> Start:
    """The one that goes on, or the second one where both have ended."""
    begun = time.monotonic()
    while first.process.poll() is None and second.process.poll() is None:
        if time.monotonic() - begun > PATIENCE:
            first.process.kill()
            second.process.kill()
            raise Wrong(f"{setting}: two starts go on beside each other\n{first.said()}\n{second.said()}")
        time.sleep(0.02)
    ended, other = (first, second) if first.process.poll() is not None else (second, first)
    if ended.process.returncode == 0:  # it was through, so the other one has nothing to do
        if other.wait() == 0:
            seen["both had ended"] += 1
            return second
        ended, other = other, ended
    if TAKEN not in ended.said():
        raise Wrong(f"{setting}: it ends with {ended.process.returncode}, and says not why\n{ended.said()}")
    seen["taken over"] += 1
    return other
