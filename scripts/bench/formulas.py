#!/usr/bin/env python3
"""The grid of docs/reference/schedules.md: bubble and memory of every synchronous schedule, simulated beside
its formula.

    python3 scripts/bench/formulas.py [--ranks 4 8] [--rounds 2 4] [--times 1:1:1 2:3:1] [--stagecraft
    build/stagecraft]

For each schedule, p ranks, m = rounds * p micro-batches and F:I:W (milliseconds of a whole rank for one
micro-batch) it writes a plan with equal stages, free links and no optimizer step, and asks `stagecraft
simulate --trace --json`. Printed, in milliseconds and micro-batches' share: first (makespan less the work of
a rank: the bubble of a first step, and of every one behind which ranks meet), steady (the same of the time
from one step to the next, where nothing makes the ranks meet), kept (most on any rank from the forward to the
end of the weight gradient); each with its formula where there is one, and "!" where it does not hold. Needs
no idle machine: nothing is timed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Case:
    def __init__(self, p, m, v, times):
        self.p, self.m, self.v = p, m, v
        self.f, self.i, self.w = times
        self.work = sum(times)


def straight(p, v):
    return list(range(p)) * v


def zigzag(p, v):
    return [r if k % 2 == 0 else p - 1 - r for k in range(v) for r in range(p)]


def zero_bubble(c):
    return (c.p - 1) * (c.f + max(0, c.i - c.w)) / c.v


def fill_and_drain(c):
    return (c.p - 1) * c.work / c.v


# name, stages per rank, placement, and formulas of the first bubble, the steady one and kept (None: there is
# none).
SCHEDULES = [
    ("fill_drain", 1, straight, fill_and_drain, None, lambda c: c.m),
    ("1f1b", 1, straight, fill_and_drain, None, lambda c: min(c.m, c.p)),
    ("interleaved_1f1b", 2, straight, fill_and_drain, None, lambda c: min(c.m, c.p + (c.p - 1) / c.v)),
    ("looped_bfs", 2, straight, fill_and_drain, None, lambda c: c.m),
    ("zb_h1", 1, straight, zero_bubble, None, lambda c: c.p),
    ("zb_h2", 1, straight, None, lambda c: (c.p - 1) * max(0, c.f + c.i - 2 * c.w), lambda c: 2 * c.p - 1),
    ("interleaved_zb", 2, straight, zero_bubble, None, lambda c: c.p),
    ("zb_v", 2, zigzag, lambda c: (c.p - 1) * c.f / 2 if c.f == c.i == c.w else None, None, lambda c: c.p),
    ("v_half", 2, zigzag, None, None, lambda c: (c.p + 2) // 2),
    ("v_min", 2, zigzag, None, None, lambda c: (c.p + 4) // 3),
]


def plan_of(name, case, ranks):
    stage = {
        "forward_ms": case.f / case.v,
        "backward_input_ms": case.i / case.v,
        "backward_weight_ms": case.w / case.v,
    }
    link = {"latency_ms": 0, "bytes_per_second": 1e15}
    return {
        "stages": [{"first_layer": s, "last_layer": s + 1, "ranks": [rank]} for s, rank in enumerate(ranks)],
        "schedule": {"name": name},
        "micro_batches": case.m,
        "micro_batch_size": 1,
        "costs": {"stages": [stage] * len(ranks), "network": {"levels": [{"count": case.p, "link": link}]}},
    }


def measure(binary, plan, case, folder):
    (folder / "plan.json").write_text(json.dumps(plan))
    command = [binary, "simulate", folder / "plan.json", "--trace", folder / "trace.json", "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")
    kinds = ("forward", "backward_input", "backward_weight", "backward")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    kept = 0
    for rank in range(case.p):
        mine = [
            e
            for e in events
            if e.get("ph") == "X" and e["args"].get("rank") == rank and e["args"].get("op") in kinds
        ]
        mine.sort(key=lambda e: e["ts"])
        now = 0
        for event in mine:
            kind = event["args"]["op"]
            now += {"forward": 1, "backward_input": 0}.get(kind, -1)
            kept = max(kept, now)
    work = case.m * case.work
    step = json.loads(done.stdout)
    return round(step["makespan_ms"] - work, 6), round(step["steady_step_ms"] - work, 6), kept / case.v


def cell(value, formula, least):
    """`least`: the formula is a bound."""
    if formula is None:
        return f"{value:.4g}"
    holds = value <= formula + 1e-6 if least else abs(value - formula) < 1e-6
    return f"{value:.4g} ({formula:.4g}){'' if holds else ' !'}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, nargs="+", default=[4])
    parser.add_argument("--times", nargs="+", default=["1:1:1", "2:3:1"])
    parser.add_argument("--stagecraft", default=str(ROOT / "build" / "stagecraft"))
    arguments = parser.parse_args()
    print(
        "| schedule | p | m | v | F:I:W | first (formula) | steady (formula) | kept (bound) | step over"
        " ideal |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for times in arguments.times:
            for p in arguments.ranks:
                for rounds in arguments.rounds:
                    for name, v, place, first, steady, kept in SCHEDULES:
                        case = Case(p, rounds * p, v, [float(t) for t in times.split(":")])
                        plan = plan_of(name, case, place(p, v))
                        seen = measure(arguments.stagecraft, plan, case, Path(folder))
                        cells = [
                            cell(seen[0], first and first(case), False),
                            cell(seen[1], steady and steady(case), False),
                            cell(seen[2], kept(case) if kept is not None else None, True),
                        ]
                        ideal = 1 + seen[1] / (case.m * case.work)
                        print(
                            f"| {name} | {p} | {case.m} | {v} | {times} | {' | '.join(cells)} | {ideal:.3f} |"
                        )


if __name__ == "__main__":
    main()
