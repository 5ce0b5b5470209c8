"""A rank is killed (SIGKILL) at a random moment, the run is started again, and again. It has to end with the
bits of a run that was left alone, and leave nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from .trial import Start, Whole, Wrong, any_setting, compare, prepared

MOST_KILLS = 6  # of one run


class Campaign:
    def __init__(self, folder: Path, command: str, until: float) -> None:
        self.folder, self.command = folder, command
        self.whole = Whole(folder, command)

    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        setting = any_setting(choose)
        facts, seconds = self.whole.of(setting)
        run_dir, config = prepared(self.folder / "hurt", setting)
        seen = Counter(runs=1)
        for _ in range(choose.randint(1, MOST_KILLS)):
            start = Start(self.command, setting, config)
            # Some in the start, some in a checkpoint, some just behind the end.
            time.sleep(choose.uniform(0, 1.1 * seconds))
            victims = start.processes()
            if victims and start.process.poll() is None:
                os.kill(choose.choice(victims), signal.SIGKILL)
                seen["kills"] += 1
            code = start.wait()
            seen["starts"] += 1
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
