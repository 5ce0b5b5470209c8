#!/usr/bin/env python3
"""How long a run over 2 ranks takes to the end of its first step, beyond what loading LibTorch and launching
takes.

    python3 scripts/bench/startup.py [--config CONFIG] [--rounds 9] [--json OUT]

Rounds go through these in turn, forwards and backwards; printed are medians, and the processor seconds of all
processes beside them, which say what is work and what is waiting:
  mpirun alone         2 processes that do nothing
  LibTorch loaded      2 processes of the same binary that print its version: all its libraries loaded and
  relocated proved               train --dry-run from a plan: reading, proving and showing everything
  first step           train from a plan until the line of step 1 is in metrics.jsonl; without that step's own
  time in the next column first step, no plan  the same where the model is profiled and planned first, as
  `train CONFIG` does
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import ENVIRONMENT, ROOT, Table, Workbench, describe_machine, launch, overrides, spread


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_until(command, lines=None):
    """(seconds until `lines` has one, or else the end; processor seconds until the end; ms of the step in
    it)."""
    began, work = time.monotonic(), processor_seconds()
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    step_ms = 0
    while (
        lines is not None
        and process.poll() is None
        and not (lines.exists() and lines.read_text().endswith("\n"))
    ):
        time.sleep(0.005)
    if lines is not None and lines.exists():
        seconds = time.monotonic() - began
        step_ms = json.loads(lines.read_text().splitlines()[0])["ms"]
    _, errors = process.communicate()
    if lines is None:
        seconds = time.monotonic() - began
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {process.returncode}:\n{errors.decode()}")
    return seconds, processor_seconds() - work, step_ms


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every round's figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(5)
        plan, _ = bench.plan("startup", "1f1b", stages=2)
        ranks = launch(2, bind=True)
        with_plan, lines = bench.train("planned", plan, 2, steps=1)
        run_dir = Path(folder) / "unplanned.run"
        without = [
            *ranks,
            arguments.binary,
            "train",
            bench.base,
            *overrides(run_dir=str(run_dir), train_steps=1, pipeline__schedule="1f1b"),
        ]
        kinds = {
            "mpirun alone": ([*ranks, "true"], None),
            "LibTorch loaded": ([*ranks, arguments.binary, "--version"], None),
            "proved": ([*with_plan, "--dry-run"], None),
            "first step": (with_plan, lines),
            "first step, no plan": (without, run_dir / "metrics.jsonl"),
        }
        results = {kind: [] for kind in kinds}
        for number in range(arguments.rounds):
            for kind in list(kinds) if number % 2 == 0 else list(kinds)[::-1]:
                command, metrics = kinds[kind]
                if metrics is not None:
                    shutil.rmtree(metrics.parent, ignore_errors=True)
                results[kind].append(run_until(command, metrics))
    table = Table("<until", "s", "iqr", "less the step, s", "beyond LibTorch, s", "processor s", widths=[20])
    loaded = statistics.median(seconds for seconds, _, _ in results["LibTorch loaded"])
    for kind, runs in results.items():
        net = statistics.median(seconds - ms / 1e3 for seconds, _, ms in runs)
        table.row(
            kind,
            f"{statistics.median(seconds for seconds, _, _ in runs):.2f}",
            f"{100 * spread([seconds for seconds, _, _ in runs]):.0f} %",
            f"{net:.2f}",
            f"{net - loaded:.2f}",
            f"{statistics.median(work for _, work, _ in runs):.2f}",
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"config": str(arguments.config), "machine": machine, "runs": results}, indent=2)
            + "\n"
        )


if __name__ == "__main__":
    main()
