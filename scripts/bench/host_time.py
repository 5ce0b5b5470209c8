#!/usr/bin/env python3
"""What a step costs beside its arithmetic: a model of layers so small that hardly anything else is measured.

    python3 scripts/bench/host_time.py --before OTHER/build/stagecraft --pairs 12

Eight linear layers, 8 wide, with ReLU between them, on 2 ranks, 8 micro-batches of 2 samples per step; ranks
are threads, and processes under MPI. Both builds run the same plan, in turn, the first of a pair alternating.
Printed: the median of the medians of each build's runs, and of the ratios of pairs, with their least and
largest. `--fifo` runs them under a real-time policy, before all else that the machine does (needs root): the
only way to get figures from a machine that is not idle.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, Table, read_json, run

RANKS = 2


def config(schedule):
    return {
        "model": {"family": "mlp", "hidden": [8] * 7},
        "data": {
            "type": "synthetic",
            "task": "classification",
            "samples": 4096,
            "validation_samples": 0,
            "shape": [8],
            "classes": 8,
        },
        "loss": {"type": "cross_entropy"},
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "train_steps": 1,
        "threads_per_rank": 1,
        "pipeline": {"schedule": schedule, "stages": RANKS},
        "steps_per_print": 0,
        "log": {"timeline_steps": 0},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--before", type=Path, required=True, help="the other build's command")
    parser.add_argument("--after", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "zb_h1"])
    parser.add_argument("--over", nargs="+", default=["threads", "mpi"], choices=["threads", "mpi"])
    parser.add_argument("--pairs", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, help="(default: %(default)s)")
    parser.add_argument("--fifo", action="store_true", help="under the policy SCHED_FIFO")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def median_us(binary, schedule, over):
            words = ["chrt", "-f", "40"] if arguments.fifo else []
            if over == "mpi":
                words += ["mpirun", "-np", str(RANKS), "--bind-to", "none"]
            results = folder / "run"
            run("rm", "-rf", results)
            options = ["--plan", folder / f"{schedule}.plan.json"]
            options += ["--set", f"run_dir={results}", "--set", f"train_steps={arguments.steps}"]
            run(*words, binary, "train", folder / f"{schedule}.json", *options)
            return 1e3 * read_json(results / "summary.json")["step_time"]["median_ms"]

        table = Table("schedule", "over", "before us", "after us", "ratio", "least", "most", widths=[8, 8])
        for schedule in arguments.schedules:
            (folder / f"{schedule}.json").write_text(json.dumps(config(schedule)))
            first = folder / f"{schedule}.first"
            run(arguments.before, "train", folder / f"{schedule}.json", "--set", f"run_dir={first}")
            (first / "plan.json").rename(folder / f"{schedule}.plan.json")
            for over in arguments.over:
                pairs = []
                for k in range(arguments.pairs):
                    turn = [arguments.before, arguments.after]
                    times = {
                        binary: median_us(binary, schedule, over) for binary in turn[:: 1 if k % 2 else -1]
                    }
                    pairs.append([times[binary] for binary in turn])
                ratios = [after / before for before, after in pairs]
                table.row(
                    schedule,
                    over,
                    *(f"{statistics.median(column):.0f}" for column in zip(*pairs, strict=True)),
                    f"{statistics.median(ratios):.3f}",
                    f"{min(ratios):.3f}",
                    f"{max(ratios):.3f}",
                )


if __name__ == "__main__":
    main()
