#!/usr/bin/env python3
"""One GPT step over 2 ranks: Stagecraft beside torch.distributed.pipelining (gloo), same shapes, on this machine, in turns.

    ~/.cache/stagecraft/venv-torch-2.11.0/bin/python scripts/bench/compare_pipelining.py [--rounds 5] [--bind] [--json OUT]

Each round runs theirs and then ours (the next round ours and then theirs) on configs/bench_gpt.json, for every schedule asked
for. A run's figure is the median step time without its first third; a round's ratio is ours over theirs, so what slows the
machine for a while slows both. Printed: the median over rounds, and the smallest and largest ratio. Below 1 Stagecraft is faster.
Runs need idle cores: the load average is printed, and above 0.5 it warns.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCHEDULES = {"1f1b": "1f1b", "gpipe": "fill_drain"}  # theirs: ours


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(command):
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")


def steady_median(step_ms):
    return statistics.median(step_ms[len(step_ms) // 3:])


def theirs(schedule, arguments, folder):
    out = folder / "theirs.json"
    run([sys.executable, "scripts/bench/pipelining.py", arguments.config, "--schedule", schedule, "--steps",
         str(arguments.steps), "--json", str(out), *(["--bind"] if arguments.bind else [])])
    return steady_median(json.loads(out.read_text())["step_ms"])


def ours(schedule, arguments, folder):
    run_dir = folder / "ours"
    shutil.rmtree(run_dir, ignore_errors=True)
    overrides = [f"run_dir={run_dir}", f"train_steps={arguments.steps}", "log.timeline_steps=0"]
    if schedule == "plain":
        launcher = []
        overrides += ["pipeline.stages=1", "pipeline.cuts=[]"]
    else:
        launcher = ["mpirun", "-np", "2", "--bind-to", "core" if arguments.bind else "none"]
        overrides += [f"pipeline.schedule={SCHEDULES[schedule]}"]
    flags = [word for override in overrides for word in ("--set", override)]
    run([*launcher, str(arguments.binary), "train", arguments.config, *flags])
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return steady_median([line["ms"] for line in lines if not line.get("validation", False)][1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "gpipe", "plain"], choices=["1f1b", "gpipe", "plain"])
    parser.add_argument("--config", default="configs/bench_gpt.json")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--bind", action="store_true", help="each rank on a core of its own, theirs and ours "
                        "(default: the scheduler places both)")
    parser.add_argument("--json", type=Path, help="write every run's figure there")
    arguments = parser.parse_args()
    arguments.config = str(Path(arguments.config).resolve())
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load average {load:.2f}; {arguments.rounds} rounds of {arguments.steps} steps")
    if load > 0.5:
        print("WARNING: something else is running; the ratio is fairer than the times, but neither is worth much")
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'schedule':<10}{'theirs ms':>11}{'ours ms':>10}{'ratio':>8}{'smallest':>10}{'largest':>9}")
        for schedule in arguments.schedules:
            pairs = []
            for round_number in range(arguments.rounds):
                sides = [theirs, ours] if round_number % 2 == 0 else [ours, theirs]
                figures = {side.__name__: side(schedule, arguments, folder) for side in sides}
                pairs.append((figures["theirs"], figures["ours"]))
            ratios = [b / a for a, b in pairs]
            print(f"{schedule:<10}{statistics.median(a for a, _ in pairs):>11.1f}"
                  f"{statistics.median(b for _, b in pairs):>10.1f}{statistics.median(ratios):>8.3f}"
                  f"{min(ratios):>10.3f}{max(ratios):>9.3f}", flush=True)
            results[schedule] = [{"theirs_ms": a, "ours_ms": b} for a, b in pairs]
    if arguments.json:
        arguments.json.write_text(json.dumps({"config": arguments.config, "load_average": load, "rounds": results},
                                             indent=2) + "\n")


if __name__ == "__main__":
    main()
