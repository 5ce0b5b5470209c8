#!/usr/bin/env python3
"""Two builds of the planner on the same requests: steps and processor time.

  python3 scripts/bench/plan_times.py BEFORE AFTER [--plans 200] [--right N] [--schedules a,b] [--repeats 3]
  [--seed 1] [--replicate]

Random chains of 10 to 60 layers on 2 to 8 devices, every schedule in turn, half of them under a cap. A plan
was right before if AFTER finds none that is faster; of those the times are compared: user time, less what the
binary takes to start, the least of several runs that take turns. A line for each plan, then totals by
schedule, and the single plans with the highest ratios.
"""

import argparse
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

SCHEDULES = (
    "fill_drain",
    "1f1b",
    "zb_h1",
    "zb_h2",
    "interleaved_1f1b",
    "looped_bfs",
    "interleaved_zb",
    "zb_v",
    "v_half",
    "v_min",
    "pipedream",
    "2bw",
    "auto",
)
BAD_INPUT, REFUSED = 2, 3  # more stages than layers; nothing fits


def chain(draw):
    layers = []
    for i in range(draw.randint(10, 60)):
        time = draw.lognormvariate(0, 0.5)
        layers.append(
            {
                "name": f"l{i}",
                "forward": {"median_ms": time},
                "backward_input": {"median_ms": time * draw.uniform(0.7, 1.2)},
                "backward_weight": {"median_ms": time * draw.uniform(0.5, 1.0)},
                "parameter_bytes": int(4e6 * draw.lognormvariate(0, 1)),
                "output_bytes": int(4e6 * draw.lognormvariate(0, 0.5)),
                "kept_for_input_bytes": int(1e7 * draw.lognormvariate(0, 0.7)),
            }
        )
    return {
        "optimizer_bytes_per_parameter_byte": 2,
        "measurements": [{"micro_batch": 1, "input_bytes": 1000000, "layers": layers}],
    }


def request(number, seed, schedules, replicate=False):
    draw = random.Random(1000 * seed + number)
    schedule = schedules[number % len(schedules)]
    profile = chain(draw)
    devices = draw.randint(2, 8)
    cluster: dict[str, object] = {
        "levels": [
            {"count": devices, "link": {"latency_ms": 0.01, "bytes_per_second": draw.choice((1e9, 25e9))}}
        ]
    }
    if draw.random() < 0.5:
        layers = profile["measurements"][0]["layers"]
        standing = sum(4 * layer["parameter_bytes"] for layer in layers)
        kept = sum(layer["kept_for_input_bytes"] for layer in layers)
        cluster["memory_bytes"] = int((standing / devices + kept) * draw.uniform(1.0, 3.0))
    options = ["--schedule", schedule, "--micro-batches", str(devices * draw.randint(1, 4))]
    options.append("--replicate" if replicate else "--no-replicate")
    if not replicate and draw.random() < 0.5:
        per_rank = (
            2
            if schedule in ("interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "v_half", "v_min")
            else 1
        )
        options += ["--stages", str(devices * per_rank)]
    return schedule, profile, cluster, options


def plan(binary, options):
    """Step in ms, None where nothing fits, and seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([binary, "plan", *options, "--json"], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime
    if done.returncode not in (0, BAD_INPUT, REFUSED):
        sys.exit(f"{binary} plan {' '.join(options)}: exit code {done.returncode}\n{done.stderr}")
    return (
        json.loads(done.stdout)["plan"]["predicted"]["step_ms"] if done.returncode == 0 else None
    ), seconds


def start_seconds(binary):
    """User seconds to start and say the version: the least of several times."""
    least = float("inf")
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([binary, "--version"], capture_output=True, check=True)
        least = min(least, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return least


def compare(args, starts, options):
    """Steps of both, and their seconds."""
    least = [float("inf"), float("inf")]
    for repeat in range(args.repeats):
        steps = []
        for which, binary in enumerate((args.before, args.after)):
            step, seconds = plan(binary, options)
            steps.append(step)
            least[which] = min(least[which], max(seconds - starts[which], 1e-4))
        old, new = steps
        if repeat == 0 and (old is None or new is None or abs(new - old) > old * 1e-9):
            break  # not compared by time
    return steps, least


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--right", type=int, help="stop with so many plans that were right")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicate", action="store_true", help="stages may have replicas")
    args = parser.parse_args()
    totals = {}
    singles = []
    starts = [start_seconds(binary) for binary in (args.before, args.after)]
    print(f"to start: {starts[0]:.3f} s before, {starts[1]:.3f} s after, taken off")
    with tempfile.TemporaryDirectory() as scratch:
        profile_path = pathlib.Path(scratch, "profile.json")
        cluster_path = pathlib.Path(scratch, "cluster.json")
        for number in range(args.plans):
            if args.right and sum(row["right"] for row in totals.values()) >= args.right:
                break
            schedule, profile, cluster, options = request(
                number, args.seed, args.schedules.split(","), args.replicate
            )
            profile_path.write_text(json.dumps(profile))
            cluster_path.write_text(json.dumps(cluster))
            options = ["--profile", str(profile_path), "--cluster", str(cluster_path), *options]
            (old, new), (old_seconds, new_seconds) = compare(args, starts, options)
            row = totals.setdefault(
                schedule,
                {
                    "right": 0,
                    "before": 0.0,
                    "after": 0.0,
                    "faster": 0,
                    "found": 0,
                    "slower": 0,
                    "lost": 0,
                    "refused": 0,
                },
            )
            if new is None and old is not None:
                kind = "lost"
            elif old is None and new is not None:
                kind = "found"
            elif old is None:
                kind = "refused"
            elif old is not None and new < old * (1 - 1e-9):
                kind = "faster"
            elif old is not None and new > old * (1 + 1e-9):
                kind = "slower"
            else:
                kind = "right"
                row["before"] += old_seconds
                row["after"] += new_seconds
                singles.append((new_seconds / old_seconds, old_seconds, new_seconds, number, schedule))
            row[kind] += 1
            print(
                f"{number} {schedule}: {kind}, {old} ms in {old_seconds:.2f} s before, {new} ms in"
                f" {new_seconds:.2f} s after",
                flush=True,
            )
    print(
        "| schedule | right before | s before | s after | now faster | now found | slower | lost | refused"
        " |\n|---|---|---|---|---|---|---|---|---|"
    )
    for schedule, row in totals.items():
        print(
            f"| {schedule} | {row['right']} | {row['before']:.2f} | {row['after']:.2f} | {row['faster']} |"
            f" {row['found']} | {row['slower']} | {row['lost']} | {row['refused']} |"
        )
    before, after = (sum(row[key] for row in totals.values()) for key in ("before", "after"))
    counted = sorted((single for single in singles if single[1] > 0.02), reverse=True)
    print(
        f"of {len(counted)} that took more than 20 ms before, {sum(single[0] > 1.1 for single in counted)}"
        " take more than 1.1 times as long:"
    )
    for ratio, old_seconds, new_seconds, number, schedule in counted[:12]:
        print(f"  {number} {schedule}: {ratio:.2f}, {old_seconds:.3f} s before, {new_seconds:.3f} s after")
    print(
        f"right before: {sum(row['right'] for row in totals.values())}, {before:.2f} s, after {after:.2f} s,"
        f" ratio {after / before:.3f}"
    )


if __name__ == "__main__":
    main()
