#!/usr/bin/env python3
"""Two builds of the planner on the same requests: steps and processor time.

  python3 scripts/bench/plan_times.py BEFORE AFTER [--plans 200] [--seed 1]

Random chains of 10 to 60 layers on 2 to 8 devices, every schedule in turn, half of them under a cap. A plan was right before if AFTER
finds none that is faster; of those the times are compared. A line for each plan, and totals by schedule.
"""

import argparse
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

SCHEDULES = ("fill_drain", "1f1b", "zb_h1", "zb_h2", "interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "v_half", "v_min",
             "pipedream", "2bw", "auto")
REFUSED = 3


def chain(draw):
    layers = []
    for i in range(draw.randint(10, 60)):
        time = draw.lognormvariate(0, 0.5)
        layers.append({
            "name": f"l{i}",
            "forward": {"median_ms": time},
            "backward_input": {"median_ms": time * draw.uniform(0.7, 1.2)},
            "backward_weight": {"median_ms": time * draw.uniform(0.5, 1.0)},
            "parameter_bytes": int(4e6 * draw.lognormvariate(0, 1)),
            "output_bytes": int(4e6 * draw.lognormvariate(0, 0.5)),
            "kept_for_input_bytes": int(1e7 * draw.lognormvariate(0, 0.7)),
        })
    return {"optimizer_bytes_per_parameter_byte": 2, "measurements": [{"micro_batch": 1, "input_bytes": 1000000, "layers": layers}]}


def request(number, seed):
    draw = random.Random(1000 * seed + number)
    schedule = SCHEDULES[number % len(SCHEDULES)]
    profile = chain(draw)
    devices = draw.randint(2, 8)
    cluster = {"levels": [{"count": devices, "link": {"latency_ms": 0.01, "bytes_per_second": draw.choice((1e9, 25e9))}}]}
    if draw.random() < 0.5:
        layers = profile["measurements"][0]["layers"]
        standing = sum(4 * layer["parameter_bytes"] for layer in layers)
        kept = sum(layer["kept_for_input_bytes"] for layer in layers)
        cluster["memory_bytes"] = int((standing / devices + kept) * draw.uniform(1.0, 3.0))
    options = ["--schedule", schedule, "--micro-batches", str(devices * draw.randint(1, 4)), "--no-replicate"]
    if draw.random() < 0.5:
        per_rank = 2 if schedule in ("interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "v_half", "v_min") else 1
        options += ["--stages", str(devices * per_rank)]
    return schedule, profile, cluster, options


def plan(binary, options):
    """Step in ms, None where nothing fits, and seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([binary, "plan", *options, "--json"], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode not in (0, REFUSED):
        sys.exit(f"{binary} plan {' '.join(options)}: exit code {done.returncode}\n{done.stderr}")
    return (json.loads(done.stdout)["plan"]["predicted"]["step_ms"] if done.returncode == 0 else None), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    totals = {}
    with tempfile.TemporaryDirectory() as scratch:
        profile_path = pathlib.Path(scratch, "profile.json")
        cluster_path = pathlib.Path(scratch, "cluster.json")
        for number in range(args.plans):
            schedule, profile, cluster, options = request(number, args.seed)
            profile_path.write_text(json.dumps(profile))
            cluster_path.write_text(json.dumps(cluster))
            options = ["--profile", str(profile_path), "--cluster", str(cluster_path), *options]
            (old, old_seconds), (new, new_seconds) = plan(args.before, options), plan(args.after, options)
            row = totals.setdefault(schedule, {"right": 0, "before": 0.0, "after": 0.0, "faster": 0, "found": 0, "slower": 0, "lost": 0})
            if new is None and old is not None:
                kind = "lost"
            elif old is None and new is not None:
                kind = "found"
            elif old is not None and new < old * (1 - 1e-9):
                kind = "faster"
            elif old is not None and new > old * (1 + 1e-9):
                kind = "slower"
            else:
                kind = "right"
                row["before"] += old_seconds
                row["after"] += new_seconds
            row[kind] += 1
            print(f"{number} {schedule}: {kind}, {old} ms in {old_seconds:.2f} s before, {new} ms in {new_seconds:.2f} s after", flush=True)
    print("| schedule | right before | s before | s after | now faster | now found | slower | lost |\n|---|---|---|---|---|---|---|---|")
    for schedule, row in totals.items():
        print(f"| {schedule} | {row['right']} | {row['before']:.2f} | {row['after']:.2f} | {row['faster']} | {row['found']} | {row['slower']} | "
              f"{row['lost']} |")
    before, after = (sum(row[key] for row in totals.values()) for key in ("before", "after"))
    print(f"right before: {sum(row['right'] for row in totals.values())}, {before:.2f} s, after {after:.2f} s, ratio {after / before:.3f}")


if __name__ == "__main__":
    main()
