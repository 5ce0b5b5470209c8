"""Ranks are stopped for a while and continued (SIGSTOP, SIGCONT), over and over: one is late here,
another one there. The run has to end in one start, with the bits of a run that was left alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter

from .trial import BesideTheWhole, Start, Wrong, any_setting, compare, prepared

LONGEST = 0.3  # seconds of one pause


class Campaign(BesideTheWhole):
    def trial(self, seed: int) -> tuple[str, Counter[str]]:
        choose = random.Random(seed)
        setting = any_setting(choose)
        setting.launcher = "mpirun"
        facts, _ = self.whole.of(setting)
        run_dir, config = prepared(self.folder / "hurt", setting)
        start = Start(self.command, setting, config)
        seen = Counter(runs=1)
        while start.process.poll() is None:
            time.sleep(choose.uniform(0, 0.1))
            if time.monotonic() - start.begun > 60:  # no more of it, it has to end
                break
            victims = start.processes()
            if not victims:
                continue
            victim = choose.choice(victims)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGSTOP)
                time.sleep(choose.uniform(0, LONGEST))
                os.kill(victim, signal.SIGCONT)
                seen["pauses"] += 1
        code = start.wait()
        if code != 0:
            raise Wrong(f"{setting}: it ends with {code}\n{start.said()}")
        compare(run_dir, facts, setting)
        return setting.schedule, seen
