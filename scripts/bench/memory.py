#!/usr/bin/env python3
"""Peak memory per rank, measured beside proved, for every schedule, with and without recomputation.

    python3 scripts/bench/memory.py [--config CONFIG] [--ranks 2] [--schedules all] [--recompute none all]
    [--json OUT]

Each row is a short run over MPI: the counting allocator's peak of requested tensor bytes on the fullest rank,
what the checker proved to be enough for it before the first step, and the least share measured/proved over
the ranks. A share above 100 % fails the command. What is counted does not depend on what else the machine
does.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import ENVIRONMENT, ROOT, SCHEDULES, STAGES_A_RANK, Table, Workbench, ranks_of


def peaks(bench, schedule, recompute, arguments):
    """(measured, proved) bytes per rank, or None where the schedule cannot be planned so."""
    stages = arguments.ranks * STAGES_A_RANK.get(schedule, 1)
    file, plan = bench.plan(
        f"{schedule}-{recompute}", schedule, ranks=arguments.ranks, stages=stages, recompute=recompute
    )
    command, metrics = bench.train(f"{schedule}-{recompute}", file, ranks_of(plan), steps=arguments.steps)
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
    summary = json.loads((metrics.parent / "summary.json").read_text())
    return summary["peak_bytes"], summary["proved_peak_bytes"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    parser.add_argument(
        "--recompute", nargs="+", choices=["none", "all", "all_but_last"], default=["none", "all"]
    )
    parser.add_argument("--steps", type=int, default=3, help="of each run")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every rank's figures there")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(3, ranks=arguments.ranks, links=False)
        table = Table("<schedule", "<recompute", "proved MiB", "measured MiB", "least share", widths=[18, 12])
        for schedule in arguments.schedules:
            for recompute in arguments.recompute:
                measured, proved = peaks(bench, schedule, recompute, arguments)
                shares = [m / p for m, p in zip(measured, proved)]
                fullest = proved.index(max(proved))
                table.row(
                    schedule,
                    recompute,
                    f"{proved[fullest] / 2**20:.2f}",
                    f"{measured[fullest] / 2**20:.2f}",
                    f"{100 * min(shares):.2f} %",
                )
                results.append(
                    {
                        "schedule": schedule,
                        "recompute": recompute,
                        "measured_bytes": measured,
                        "proved_bytes": proved,
                    }
                )
    shares = [m / p for one in results for m, p in zip(one["measured_bytes"], one["proved_bytes"])]
    print(
        f"{len(results)} runs, {len(shares)} ranks: measured {100 * min(shares):.2f} to"
        f" {100 * max(shares):.2f} % of proved"
    )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"config": str(arguments.config), "ranks": arguments.ranks, "runs": results}, indent=2)
            + "\n"
        )
    sys.exit(1 if max(shares) > 1 else 0)


if __name__ == "__main__":
    main()
