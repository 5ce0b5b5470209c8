#!/usr/bin/env python3
"""Plans of `auto` beside those of every synchronous schedule by name, each planned by itself with its usual
budget: random chains on 4 to 16 devices. Markdown.

  ninja -C build stagecraft
  scripts/bench/auto_beside_named.py [--cases 12] [--first 0] [--replicate] [--hosts]
    [--binary build/stagecraft]

A ratio is the step of `auto` by that of the best other: never above 1. Seconds are processor time, of `auto`
and of all others together. `--hosts`: of 2 devices or more each, joined by a slower link. Exits
with 1 where a plan of `auto` is slower.
"""

import argparse
import json
import math
import pathlib
import random
import resource
import subprocess
import sys
import tempfile

SCHEDULES = (
    "fill_drain",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "interleaved_zb",
    "zb_v",
    "v_half",
    "v_min",
)
FAMILIES = ("equal blocks", "uneven", "early layers keep most")


def layer(draw, family, index, layers):
    time = kept = weights = 1.0
    if family == 0:
        time = 0.2 if index == 0 else 2.5 if index + 1 == layers else 1.0
    elif family == 1:
        time, kept, weights = (math.exp(draw.gauss(0, 0.6)) for _ in range(3))
    else:
        time = 1 + 0.5 * math.exp(draw.gauss(0, 0.5))
        kept = 4 * 0.5 ** (4 * index // layers)
        weights = 0.1 + (index / layers) ** 2
    return {
        "name": f"layer{index}",
        "forward": {"median_ms": 2 * time},
        "backward_input": {"median_ms": 2 * time * draw.choice([0.8, 1, 1.2])},
        "backward_weight": {"median_ms": 2 * time * draw.choice([0.5, 0.9, 1.1])},
        "step": {"median_ms": 0.05 * weights},
        "parameter_bytes": int(2e7 * weights),
        "output_bytes": 0 if index + 1 == layers else int(4e6 * draw.choice([1, 1, 0.5])),
        "keeps_input": index % 2 == 0,
        "kept_for_input_bytes": int(2e7 * kept),
        "kept_for_weight_bytes": int(1e7 * kept),
        "weight_half_keeps_input": False,
    }


def levels(draw, devices, hosts):
    link = {"latency_ms": 0.02, "bytes_per_second": draw.choice([2e9, 2e10])}
    if not hosts:
        return [{"count": devices, "link": link}]
    each = draw.choice([n for n in (2, 3, 4, 6, 8) if devices % n == 0 and n < devices])
    slow = {"latency_ms": 0.05, "bytes_per_second": link["bytes_per_second"] / draw.choice([4, 10, 20])}
    return [{"count": each, "link": link}, {"count": devices // each, "link": slow}]


def case(seed, folder, hosts=False):
    """Writes profile and cluster; devices, micro-batches, layers and family."""
    draw = random.Random(seed)
    devices = draw.choice([4, 4, 6, 8, 8, 12, 16])
    micro_batches = devices * draw.choice([1, 2, 3])
    layers = draw.randint(max(12, 2 * devices + 2), max(5 * devices, 30))
    family = seed % len(FAMILIES)
    measured = [layer(draw, family, index, layers) for index in range(layers)]
    profile = {
        "model": "chain",
        "threads": 1,
        "optimizer": "SGD",
        "optimizer_bytes_per_parameter_byte": 2,
        "measurements": [
            {"micro_batch": 1, "input_bytes": 4_000_000, "targets_bytes": 4, "layers": measured}
        ],
    }
    cluster = {"name": "devices", "levels": levels(draw, devices, hosts)}
    (folder / "profile.json").write_text(json.dumps(profile))
    (folder / "cluster.json").write_text(json.dumps(cluster))
    return devices, micro_batches, layers, FAMILIES[family]


def plan(binary, schedule, micro_batches, folder, replicate):
    """Step in ms and seconds taken; no step where the schedule refuses the request."""
    command = [binary, "plan", "--profile", folder / "profile.json", "--cluster", folder / "cluster.json"]
    command += ["--schedule", schedule, "--micro-batches", str(micro_batches), "-o", folder / "plan.json"]
    command.append("--replicate" if replicate else "--no-replicate")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode != 0:
        return math.inf, seconds
    return json.loads((folder / "plan.json").read_text())["predicted"]["step_ms"], seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--replicate", action="store_true", help="stages may have replicas")
    parser.add_argument("--hosts", action="store_true", help="several, joined by a slower link")
    parser.add_argument("--binary", default="build/stagecraft")
    args = parser.parse_args()
    print("| seed | chain | layers | devices | micro-batches | auto by the best | best | s | others' s |")
    print("|---|---|---|---|---|---|---|---|---|")
    slower = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for seed in range(args.first, args.first + args.cases):
            devices, micro_batches, layers, family = case(seed, folder, args.hosts)
            named = {one: plan(args.binary, one, micro_batches, folder, args.replicate) for one in SCHEDULES}
            auto, seconds = plan(args.binary, "auto", micro_batches, folder, args.replicate)
            best = min(named, key=lambda one: named[one][0])
            ratio = auto / named[best][0]
            slower += ratio > 1 + 1e-9
            print(
                f"| {seed} | {family} | {layers} | {devices} | {micro_batches} | {ratio:.4f} | {best} |"
                f" {seconds:.1f} | {sum(took for _, took in named.values()):.1f} |",
                flush=True,
            )
    print(f"\n{args.cases} cases, auto slower in {slower}")
    sys.exit(slower > 0)


main()
