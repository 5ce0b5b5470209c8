"""A rank is killed (SIGKILL) at a random moment, the run is started again, and again. It has to end with
the bits of a run that was left alone, and leave nothing behind. What starts it again is this script, or
torchrun's agent."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter

from .trial import BesideTheWhole, Start, Wrong, any_setting, compare, has_torchrun, prepared

MOST_KILLS = 6  # of one run


class Campaign(BesideTheWhole):
    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        setting = any_setting(choose)
        if choose.random() < 0.25 and has_torchrun(self.command):
            setting.launcher, setting.ranks = "torchrun", min(setting.ranks, 4)
        facts, seconds = self.whole.of(setting)
        run_dir, config = prepared(self.folder / "hurt", setting)
        seen = Counter(runs=1)
        for _ in range(choose.randint(1, MOST_KILLS)):
            start = Start(self.command, setting, config)
            if setting.launcher == "torchrun":  # it imports torch first
                while not start.processes() and start.process.poll() is None:
                    time.sleep(0.05)
            # Some in the start, some in a checkpoint, some just behind the end.
            time.sleep(choose.uniform(0, 1.1 * seconds))
            for _ in range(choose.randint(1, 3) if setting.launcher == "torchrun" else 1):
                kill_one(start, choose, seen)
                if setting.launcher == "torchrun":  # which starts them again
                    time.sleep(choose.uniform(0, 0.5 + 1.1 * seconds))
            code = start.wait()
            seen["starts"] += 1
            seen[f"by {setting.launcher}"] += 1
            if code == 0:
                break
        while True:
            start = Start(self.command, setting, config)
            seen["starts"] += 1
            if start.wait() == 0:
                break
            seen["starts that failed by themselves"] += 1
            if seen["starts that failed by themselves"] > 2:
                raise Wrong(f"{setting}: nobody kills it, and it does not end\n{start.said()}")
        compare(run_dir, facts, setting)
        return setting.schedule, seen


def kill_one(start: Start, choose: random.Random, seen: Counter[str]) -> None:
    victims = start.processes()
    if victims and start.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(choose.choice(victims), signal.SIGKILL)
            seen["kills"] += 1
