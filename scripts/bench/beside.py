#!/usr/bin/env python3
"""Two builds beside each other: what a change does to the times of the simulator, the synthesis, the planner
and a training step.

    cmake --preset release -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build stagecraft bench_simulator
    bench_synthesis python3 scripts/bench/beside.py BEFORE AFTER [--rows simulator synthesis planner train]
    [--pairs 9] [--json OUT]

BEFORE and AFTER are build folders made alike. Both are measured in pairs, A B, B A, so that they see the same
machine. A figure is processor time: of an iteration (simulator: generating, lowering, checking, preparing and
running programs), of a whole process (synthesis: `bench_synthesis`, at several memory caps; planner:
`stagecraft plan`, less what `stagecraft --version` takes), of a step (train: all ranks of
configs/bench_gpt.json). `speed` is before's time over after's, so above 1 AFTER is faster: the median over
pairs, with the quarters behind it. What the builds find must be equal too: the table of bench_synthesis
(without its times), and every plan. A difference is said and the exit code is 1. Ratios hold on a busy
machine, with a wider spread. Except for train, the planner preset does (`bench_*` and `stagecraft` of
build-planner).
"""

import argparse
import contextlib
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from finite_check import ratios
from measuring import ENVIRONMENT, ROOT, Table, Turns, Workbench, describe_machine, ranks_of
from planner_growth import FIXED, cluster, profile

SIMULATOR = (
    r"^(generate|lower|check|prepare|run)/p:(8|64)/m:64/v:1$"
    r"|^(run|lower)/p:8/m:64/v:4$"
    r"|^(run_shared|lost_time)/p:8/m:64/v:1$"
)
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
PLANS = {  # what differs from planner_growth's fixed point, and the options
    "1f1b, 128 layers": ({"layers": 128}, ("--schedule", "1f1b", "--no-replicate")),
    "1f1b, 256 layers": ({"layers": 256}, ("--schedule", "1f1b", "--no-replicate")),
    "1f1b, 256 micro-batches": (
        {"layers": 128, "micro_batches": 256},
        ("--schedule", "1f1b", "--no-replicate"),
    ),
    "pipedream, replicas": ({}, ("--schedule", "pipedream")),
    "zb_v, recomputed": (
        {"layers": 24, "devices": 4, "micro_batches": 16},
        ("--schedule", "zb_v", "--no-replicate", "--recompute", "auto"),
    ),
    "auto": ({"layers": 12, "devices": 4, "micro_batches": 12}, ("--schedule", "auto", "--no-replicate")),
    "front": (
        {"layers": 24, "devices": 4, "micro_batches": 8},
        ("--pareto", "--schedules", "1f1b,zb_h1", "--no-replicate"),
    ),
}


# glibc keeps what was freed. Whether it gives a heap's top back between two iterations, to fault it in again,
# hangs on what ran before: it doubles `prepare` of 64 ranks, which is no difference between builds.
KEEP_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000000000:glibc.malloc.mmap_threshold=1000000000"
}


def timed(*command, environment=None):
    """Processor seconds and output of a process that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=ENVIRONMENT | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def simulator(build):
    """{name: seconds}, {name: what was found}"""
    _, output = timed(
        build / "test/bench/bench_simulator",
        f"--benchmark_filter={SIMULATOR}",
        "--benchmark_format=json",
        "--benchmark_min_time=0.1",
        environment=KEEP_MEMORY,
    )
    found = json.loads(output)["benchmarks"]
    return {b["name"]: b["cpu_time"] * SECONDS[b["time_unit"]] for b in found}, {
        b["name"]: b["actions"] for b in found
    }


def synthesis(build):
    seconds, output = timed(build / "test/bench/bench_synthesis", 8, 300000)
    return {"synthesis": seconds}, {"synthesis": re.sub(r"\| [^|]* \|$", "|", output, flags=re.MULTILINE)}


def planner(build):
    times, plans = {}, {}
    nothing = min(timed(build / "stagecraft", "--version")[0] for _ in range(3))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, (difference, options) in PLANS.items():
            point = {**FIXED, **difference}
            (folder / "profile.json").write_text(json.dumps(profile(point["layers"])))
            (folder / "cluster.json").write_text(json.dumps(cluster(point["devices"])))
            seconds, plans[what] = timed(
                build / "stagecraft",
                "compare" if "--pareto" in options else "plan",
                "--json",
                "--profile",
                folder / "profile.json",
                "--cluster",
                folder / "cluster.json",
                "--micro-batches",
                point["micro_batches"],
                *options,
            )
            times[what] = seconds - nothing
    return times, plans


def quarters(values):
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f}", f"{low:.3f} .. {high:.3f}"


def beside(measure, builds, pairs, table, group):
    """Rows of one group as they are known; returns them, and whether both builds found the same."""
    times, same = [{}, {}], True
    for pair in range(pairs):
        results: list[dict[str, Any]] = [{}, {}]
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            figures, results[i] = measure(builds[i])
            for name, seconds in figures.items():
                times[i].setdefault(name, []).append(seconds)
        for name in results[0]:
            if results[0][name] != results[1].get(name):
                same = False
                print(f"NOT THE SAME: {group}, {name}", flush=True)
    rows = []
    for name, before in times[0].items():
        after = times[1][name]
        speed = [a / b for a, b in zip(before, after)]
        table.row(
            group,
            name,
            f"{statistics.median(before) * 1e3:.3g}",
            f"{statistics.median(after) * 1e3:.3g}",
            *quarters(speed),
        )
        rows.append({"group": group, "name": name, "before": before, "after": after, "speed": speed})
    if len(rows) > 1:
        table.row(
            group,
            "all, geometric mean",
            "",
            "",
            *quarters(
                [statistics.geometric_mean(row["speed"][pair] for row in rows) for pair in range(pairs)]
            ),
        )
    return rows, same


def train(builds, pairs, table):
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        bench = Workbench(builds[1] / "stagecraft", ROOT / "configs/bench_gpt.json", folder)
        bench.profile(10, links=False)
        plan, content = bench.plan("plan", "1f1b", cuts=bench.even_cuts(2))
        sides = []
        for side, build in zip(("before", "after"), builds):
            bench.binary = build / "stagecraft"
            command, lines = bench.train(side, plan, ranks_of(content))
            sides.append(stack.enter_context(Turns(command, lines, folder / f"{side}.log")))
        rows = []
        for what, changes in zip(("a step's wall time", "a step"), ratios(sides, pairs, steps=3)):
            speed = [1 / (1 + change) for change in changes]
            table.row("train", what, "", "", *quarters(speed))
            rows.append({"group": "train", "name": what, "speed": speed})
        return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=["simulator", "synthesis", "planner", "train"],
        default=["simulator", "synthesis", "planner"],
        help="(default: all but train)",
    )
    parser.add_argument("--pairs", type=int, default=9, help="at least 2 (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    builds = [arguments.before.resolve(), arguments.after.resolve()]
    machine, rows, same = describe_machine(), [], True
    table = Table("<group", "<what", "before ms", "after ms", "speed", "<quarters", widths=[9, 25])
    for group, measure in (("simulator", simulator), ("synthesis", synthesis), ("planner", planner)):
        if group in arguments.rows:
            more, alike = beside(measure, builds, arguments.pairs, table, group)
            rows, same = rows + more, same and alike
    if "train" in arguments.rows:
        rows += train(builds, arguments.pairs, table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if not same:
        sys.exit("the builds do not find the same")


if __name__ == "__main__":
    main()
