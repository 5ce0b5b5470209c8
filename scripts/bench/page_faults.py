#!/usr/bin/env python3
"""Page faults per step: whether activations are given back to the kernel and faulted in again every step.

    scripts/python scripts/bench/page_faults.py [--config CONFIG]

Minor faults of a whole run over one rank with 6 steps less those of one with 2, over 4: start-up cancels out.
Rows: Stagecraft as it is, Stagecraft with transparent huge pages for malloc (glibc's own switch), and
PyTorch's plain loop over the same micro-batches with glibc's defaults. Counts do not depend on what else the
machine does.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import ENVIRONMENT, ROOT, Table, Workbench, overrides, run

FEW, MANY = 2, 6


def faults(command, more=None):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
    subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**ENVIRONMENT, **(more or {})},
        capture_output=True,
        check=True,
    )
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt - before


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(3, ranks=1, links=False)
        plan, _ = bench.plan("alone", "1f1b", ranks=1, stages=1)
        weights = folder / "weights"
        run(
            arguments.binary,
            "train",
            bench.base,
            "--plan",
            plan,
            *overrides(run_dir=str(weights), train_steps=1, checkpoint__at_start=True, checkpoint__keep=0),
        )

        def ours(steps, tag):
            return bench.train(f"{tag}{steps}", plan, 1, steps=steps)[0]

        def theirs(steps, _):
            return [
                sys.executable,
                "scripts/bench/pipelining.py",
                weights,
                "--schedule",
                "plain",
                "--steps",
                steps,
                "--batches",
                FEW,
            ]

        rows = {
            "Stagecraft": (ours, {}),
            "Stagecraft, GLIBC_TUNABLES=glibc.malloc.hugetlb=1": (
                ours,
                {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
            ),
            "PyTorch, plain loop": (theirs, {}),
        }
        table = Table("<process", "faults per step", "MiB per step", widths=[50])
        for tag, (what, (command, more)) in enumerate(rows.items()):
            few, many = (faults(command(steps, f"{tag}-"), more) for steps in (FEW, MANY))
            a_step = (many - few) / (MANY - FEW)
            table.row(what, f"{a_step:.0f}", f"{a_step * os.sysconf('SC_PAGE_SIZE') / 2**20:.1f}")


if __name__ == "__main__":
    main()
