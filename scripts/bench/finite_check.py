#!/usr/bin/env python3
"""What looking for numbers that are not finite costs per step: this build beside one without the check.

    python3 scripts/bench/finite_check.py --before BINARY [--schedules 1f1b pipedream 2bw] [--pairs 15]
    [--json OUT]

BINARY is a `stagecraft` of the commit before the check, built alike. Both train configs/bench_gpt.json with
the same plan and take turns of a few steps (in between a side is stopped), in pairs A B, B A, so that both
see the same machine. `norm` rows agree on the gradient's norm, which tells by itself; the others look at each
stage's gradients before its step, which is the work that is new. Printed: this build over the other one,
minus 1, of the wall time per step and of the ranks' processor time, each as the median over pairs with the
quarters beside it. The second is what to read where something else runs on the machine.

What the look itself takes, in the processor's time within a step: `bench_finite_check`
(test/bench/finite_check), for which no machine need be idle.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, ranks_of


def processor_seconds(side):
    """Of all threads of a side so far."""
    total = 0
    for pid in side.members():
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text().split()[0])
    return total / 1e9


def turn(side, steps):
    """Median wall milliseconds of a step, and processor milliseconds per step of the whole turn."""
    before, made = processor_seconds(side), len(side.records())
    wall = statistics.median(side.take(steps))
    return wall, (processor_seconds(side) - before) / (len(side.records()) - made) * 1e3


def ratios(sides, pairs, steps):
    """[this build over the other - 1] of wall and of processor time, pair by pair."""
    for side in sides:
        side.take(1, drop=3)
    found = []
    for pair in range(pairs):
        figures = [None, None]
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            figures[i] = turn(sides[i], steps)
        found.append([after / before - 1 for before, after in zip(*figures)])
    return zip(*found)


def quarters(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{100 * middle:+.2f} % ({100 * low:+.2f} .. {100 * high:+.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="a `stagecraft` without the check")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument(
        "--schedules", nargs="+", default=["1f1b", "pipedream", "2bw"], help="(default: 1f1b pipedream 2bw)"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="of a turn (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    machine = describe_machine()
    rows = [(schedule, False) for schedule in arguments.schedules]
    if "1f1b" in arguments.schedules:
        rows.append(("1f1b", True))
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(20, ranks=arguments.ranks, links=False)
        table = Table(
            "<schedule", "wall time per step, median (quarters)", "processor time", widths=[18, 37, 30]
        )
        for schedule, norm in rows:
            plan, content = bench.plan(
                schedule, schedule, ranks=arguments.ranks, cuts=bench.even_cuts(arguments.ranks)
            )
            words = f"{schedule}{', norm' if norm else ''}"
            with contextlib.ExitStack() as stack:
                sides = []
                for side, binary in (("before", arguments.before), ("after", arguments.binary)):
                    bench.binary = binary
                    command, lines = bench.train(
                        f"{words}.{side}", plan, ranks_of(content), gradient_norm=norm
                    )
                    sides.append(stack.enter_context(Turns(command, lines, folder / f"{words}.{side}.log")))
                wall, processor = ratios(sides, arguments.pairs, arguments.steps)
                bench.binary = arguments.binary
            table.row(words, quarters(wall), quarters(processor))
            results.append({"schedule": schedule, "norm": norm, "wall": wall, "processor": processor})
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
