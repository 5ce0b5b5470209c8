#!/usr/bin/env python3
"""How near a step comes to the least time its schedule allows: the bound over the measured step.

    python3 scripts/bench/bound.py [--schedules fill_drain 1f1b zb_h1 pipedream 2bw] [--rounds 9] [--json OUT]

The bound is made of the layers' compute times, measured alone while both ranks are busy (`mpirun -np 2
stagecraft profile`), with transfers that take no time: for a synchronous schedule the makespan that `plan`
simulates for the very plan that runs, optimizer step included; for an asynchronous one, which has no flush,
the work of a step on two cores that never wait: all layers' compute and optimizer steps over 2. Each round
profiles, then gives every schedule its turn of a few steps (in between it is stopped), and profiles again: a
round's bound is made from the mean of both, because a machine's speed wanders. Printed: medians over rounds,
the median share, its interquartile range, the smallest and the largest. Ranks are bound to cores of their
own. Needs idle cores.

On a machine whose cores are not equally fast all the time, even a perfect engine stays below 1: whenever one
core is slow, the other waits. Column `replayed` takes that out: a last run keeps its timeline, and its
computing actions, each as long as it took there, are put as close as order and dependencies allow
(replay.py). That time over the recorded one is what transfers and everything between actions leave.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, Table, Turns, Workbench, describe_machine, ranks_of, run, spread
from replay import replayed_ms

ASYNCHRONOUS = ("pipedream", "2bw")


def work_ms(profile, micro_batches):
    """Compute and optimizer milliseconds of one step, over all layers."""
    layers = profile["measurements"][0]["layers"]
    passes = sum(
        layer[part]["median_ms"]
        for layer in layers
        for part in ("forward", "backward_input", "backward_weight")
    )
    return micro_batches * passes + sum(layer["step"]["median_ms"] for layer in layers)


def bounds(bench, schedules, cuts, repeats):
    """Milliseconds by schedule, from a profile made now."""
    profile = bench.profile(repeats, links=False)
    found = {}
    for schedule in schedules:
        if schedule in ASYNCHRONOUS:
            found[schedule] = work_ms(profile, bench.micro_batches) / 2
        else:
            found[schedule] = bench.plan(f"{schedule}.bound", schedule, cuts=cuts, free_links=True)[1][
                "predicted"
            ]["step_ms"]
    return found


def replayed_share(bench, schedule, plan, ranks, steps):
    command, lines = bench.train(f"{schedule}.recorded", plan, ranks, steps=steps + 2, timeline_steps=steps)
    run(*command)
    ideal, recorded = replayed_ms(lines.parent / "timeline.json")
    return ideal / recorded


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--schedules", nargs="+", default=["fill_drain", "1f1b", "zb_h1", "pipedream", "2bw"])
    parser.add_argument("--config", type=Path, default=ROOT / "configs/bench_gpt.json")
    parser.add_argument(
        "--cuts",
        type=lambda t: [int(n) for n in t.split(",")],
        help="default: the planner's, from the first profile",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="behind each turn's median; one more is dropped")
    parser.add_argument("--repeats", type=int, default=15, help="of a profile")
    parser.add_argument("--recorded", type=int, default=8, help="steps behind `replayed`")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every round's figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    results = {schedule: [] for schedule in arguments.schedules}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bench = Workbench(arguments.binary, arguments.config, folder)
        bench.profile(arguments.repeats)
        cuts = arguments.cuts or [
            stage["first_layer"] for stage in bench.plan("cut", "1f1b", stages=2)[1]["stages"][1:]
        ]
        turns, plans = {}, {}
        for schedule in arguments.schedules:
            file, plan = bench.plan(schedule, schedule, cuts=cuts)
            plans[schedule] = file, ranks_of(plan)
            command, lines = bench.train(schedule, *plans[schedule])
            turns[schedule] = stack.enter_context(Turns(command, lines, bench.folder / f"{schedule}.txt"))
            turns[schedule].take(1, drop=2)
        before = bounds(bench, arguments.schedules, cuts, arguments.repeats)
        for number in range(arguments.rounds):
            order = arguments.schedules if number % 2 == 0 else arguments.schedules[::-1]
            measured = {
                schedule: statistics.median(turns[schedule].take(arguments.steps)) for schedule in order
            }
            after = bounds(bench, arguments.schedules, cuts, arguments.repeats)
            for schedule in arguments.schedules:
                results[schedule].append(
                    {"bound_ms": (before[schedule] + after[schedule]) / 2, "measured_ms": measured[schedule]}
                )
            before = after
        # With no other run beside them: each is started anew.
        replayed = {
            schedule: replayed_share(bench, schedule, *plans[schedule], arguments.recorded)
            for schedule in arguments.schedules
        }
    print(f"{arguments.config.name}, cut at {','.join(map(str, cuts))}, {arguments.rounds} rounds")
    table = Table(
        "<schedule", "bound ms", "measured ms", "share", "iqr", "least", "most", "replayed", widths=[12]
    )
    for schedule, rounds in results.items():
        shares = [one["bound_ms"] / one["measured_ms"] for one in rounds]
        table.row(
            schedule,
            f"{statistics.median(one['bound_ms'] for one in rounds):.1f}",
            f"{statistics.median(one['measured_ms'] for one in rounds):.1f}",
            f"{statistics.median(shares):.3f}",
            f"{100 * spread(shares):.1f} %",
            f"{min(shares):.3f}",
            f"{max(shares):.3f}",
            f"{replayed[schedule]:.4f}",
        )
    if arguments.json:
        figures = {
            "config": str(arguments.config),
            "cuts": cuts,
            "machine": machine,
            "schedules": results,
            "replayed": replayed,
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
