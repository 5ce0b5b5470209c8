#!/usr/bin/env python3
"""Runs a command and prints the most memory that was used on each card meanwhile, as the driver counts it.

watch_memory.py -- COMMAND...
"""

import subprocess
import sys
import time

SAMPLE = 0.2  # seconds


def used():
    """MiB of each card; [] without the driver's tool."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
        return [int(line) for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def main():
    before = most = used()
    if not before:
        print("no nvidia-smi: the card's used memory is not known", flush=True)
    job = subprocess.Popen(sys.argv[sys.argv.index("--") + 1 :])
    while job.poll() is None:
        most = [max(pair) for pair in zip(most, used())] or most
        time.sleep(SAMPLE)
    for card, (first, highest) in enumerate(zip(before, most)):
        print(
            f"card {card}: {first} MiB used before, {highest} MiB at most: {highest - first} MiB by the run",
            flush=True,
        )
    sys.exit(job.returncode)


if __name__ == "__main__":
    main()
