#!/usr/bin/env python3
"""What an action costs the host besides LibTorch's operators: instructions, counted by callgrind, so that a
busy machine does not matter.

    python3 scripts/bench/action_cost.py [--steps 20 60]

A small MLP (each layer a few microseconds) is trained on the CPU by one rank, in 32 micro-batches per step,
for two numbers of steps; their difference is steady steps alone. Printed: instructions a computing action
(load, forward, backward) and what they were spent in. Those of `stagecraft` are the engine, the layers' own
code and what is inlined from LibTorch's headers; libc's are mostly malloc and free. Needs valgrind.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from measuring import ENVIRONMENT, ROOT, Table, run

MICRO_BATCHES = 32


def config(layers):
    return {
        "model": {"family": "mlp", "hidden": [16] * layers},
        "data": {
            "type": "synthetic",
            "task": "classification",
            "samples": 4096,
            "validation_samples": 0,
            "shape": [8],
            "classes": 4,
        },
        "loss": {"type": "cross_entropy"},
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "gradient_norm": False,
        "train_batch_size": 2 * MICRO_BATCHES,
        "train_micro_batch_size_per_gpu": 2,
        "train_steps": 1,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 1},
        "steps_per_print": 0,
        "log": {"timeline_steps": 0},
    }


def instructions(binary, file, plan, folder, steps):
    """By the file they are in."""
    out = folder / f"callgrind.{steps}"
    subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            binary,
            "train",
            file,
            "--plan",
            plan,
            "--set",
            f"run_dir={folder / f'run{steps}'}",
            "--set",
            f"train_steps={steps}",
        ],
        cwd=ROOT,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    listing = subprocess.run(
        ["callgrind_annotate", "--show=Ir", "--threshold=100", out],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    counts = collections.Counter()
    for line in listing.splitlines():
        if found := re.match(r"\s*([\d,]+)\s.*\[(\S+)\]$", line):
            counts[os.path.basename(found[2])] += int(found[1].replace(",", ""))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--layers", type=int, default=4, help="hidden layers, of 16 numbers (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, nargs=2, default=[20, 60], help="(default: 20 60)")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, plan = folder / "config.json", folder / "run/plan.json"
        file.write_text(json.dumps(config(arguments.layers)))
        run(arguments.binary, "train", file, "--set", f"run_dir={folder / 'run'}", "--set", "train_steps=1")
        few, many = (instructions(arguments.binary, file, plan, folder, steps) for steps in arguments.steps)
    actions = 3 * MICRO_BATCHES * (arguments.steps[1] - arguments.steps[0])
    spent = {where: (many[where] - few[where]) / actions for where in many}
    total = sum(spent.values())
    table = Table("<in", "instructions per action", "share", widths=[28])
    for where, count in sorted(spent.items(), key=lambda item: -item[1])[:8]:
        table.row(where, f"{count:,.0f}", f"{100 * count / total:.1f} %")
    table.row("all", f"{total:,.0f}", "")


if __name__ == "__main__":
    main()
