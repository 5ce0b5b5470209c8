#!/usr/bin/env python3
"""Failure drill: starts a run of several ranks, stops or kills rank 1 in a step, and asks whether the others
end in time.

    drill.py --how stop|kill --timeout SECONDS --run RUN_DIR [--ranks N] -- bin/stagecraft train ... --set
    comms.timeout_s=SECONDS

Passes where the whole job has ended within `timeout` and 12 s, with an exit code that says so (4 where a rank
stopped) and a message.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from parts import ranks

STEP = 5
START_UP = 60  # seconds until that step
GRACE = 12  # beyond the bound


def rank_process(number):
    """Of this session's processes."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if (
                os.getsid(int(entry)) != os.getsid(0)
                or Path(f"/proc/{entry}/comm").read_text().strip() != "stagecraft"
            ):
                continue
            if f"OMPI_COMM_WORLD_RANK={number}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(
                b"\0"
            ):
                return int(entry)
        except OSError:
            continue  # it has ended, or is not ours
    return None


def steps_made(metrics):
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--how", choices=["stop", "kill"], required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    log = arguments.run.with_suffix(".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as out:
        job = subprocess.Popen(ranks(arguments.ranks, arguments.command), stdout=out, stderr=out)
    begin = time.monotonic()
    while (
        steps_made(arguments.run / "metrics.jsonl") < STEP
        and job.poll() is None
        and time.monotonic() < begin + START_UP
    ):
        time.sleep(0.02)
    if job.poll() is not None or steps_made(arguments.run / "metrics.jsonl") < STEP:
        print(log.read_text(encoding="utf-8", errors="replace"))
        sys.exit(
            f"drill: no step {STEP} to be disturbed in"
            + ("" if job.poll() is None else f": the run ended with {job.returncode}")
        )
    victim = rank_process(1)
    if victim is None:
        sys.exit("drill: no process of rank 1")
    os.kill(victim, signal.SIGSTOP if arguments.how == "stop" else signal.SIGKILL)
    begin, bound = time.monotonic(), arguments.timeout + GRACE
    try:
        code = job.wait(bound)
    except subprocess.TimeoutExpired:
        print(log.read_text(encoding="utf-8", errors="replace")[-3000:])
        print(
            f"drill: FAILED: not over {bound:g} s after rank 1 was sent a signal to {arguments.how}",
            flush=True,
        )
        time.sleep(3600)  # so that who has the limit finds everybody's stacks
        sys.exit(1)
    took = time.monotonic() - begin
    print(log.read_text(encoding="utf-8", errors="replace")[-3000:])
    # mpirun itself sees a process that is gone, and may end the others before they speak.
    passed = code == 4 if arguments.how == "stop" else code != 0
    print(
        f"drill: {'' if passed else 'FAILED: '}rank 1 {arguments.how}: the job ended after {took:.1f} s with"
        f" exit code {code}"
    )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
