#!/usr/bin/env python3
"""How good and how fast the planner is at the size of clusters.

Makes profiles in the proportions of large GPTs and plans them on clusters of H100s under 1f1b; prints a
Markdown table: the gap to the lower bound, user CPU time, wall time and the plan. A limit of time counts wall
time, so a busy machine makes gaps larger.
  cmake --preset planner && ninja -C build-planner stagecraft
  python3 scripts/bench/planner_scale.py                            the table of docs/design/planner.md
  python3 scripts/bench/planner_scale.py --only 96x4096             its rows of that size
  python3 scripts/bench/planner_scale.py --profile LAYERS WIDTH OUT writes a profile and ends

The model has an embedding, LAYERS - 2 blocks and a head with the loss, in bf16 at one sequence of 2,048
tokens per micro-batch, on devices of 400 teraflop/s: 24 s h^2 + 4 s^2 h operations forward a block of width h
(Narayanan et al., arXiv 2104.04473, appendix), twice as many backward. Blocks are uneven: each one's time is
its own log-normal multiple (sigma 0.2; seeded), as with experts, layers that alternate or pruned ones.
Weights are 2 bytes per parameter, with 12 more of optimizer state (master copy and two moments).
"""

import argparse
import json
import math
import pathlib
import random
import resource
import subprocess
import tempfile
import time

TOKENS, VOCABULARY, FLOPS = 2048, 51200, 400e12


def profile(layers, width, uneven=0.2, seed=1):
    """A measurement of micro-batches of one sequence; bytes as bf16 has them."""
    rng = random.Random(seed)
    boundary = 2 * TOKENS * width

    def row(name, operations, parameters, kept, output, input_gradient=True):
        forward = operations / FLOPS * 1e3
        return {
            "name": name,
            "forward": {"median_ms": forward},
            "backward_input": {"median_ms": forward if input_gradient else 0.0},
            "backward_weight": {"median_ms": forward},
            "step": {"median_ms": parameters * 28 / 2e12 * 1e3},
            "parameter_bytes": 2 * parameters,
            "output_bytes": output,
            "kept_for_input_bytes": kept,
            "kept_for_weight_bytes": kept // 2,
            "keeps_input": True,
            "forward_transient_bytes": boundary,
            "backward_transient_bytes": boundary,
        }

    rows = [row("embedding", TOKENS * width, VOCABULARY * width, 0, boundary, False)]
    for i in range(layers - 2):
        operations = (24 * TOKENS * width**2 + 4 * TOKENS**2 * width) * math.exp(rng.gauss(0, uneven))
        rows.append(row(f"block{i}", operations, 12 * width**2, 14 * boundary, boundary))
    rows.append(row("head", 2 * TOKENS * width * VOCABULARY, VOCABULARY * width, 2 * TOKENS * VOCABULARY, 0))
    return {
        "model": f"gpt {layers}x{width}",
        "dtype": "bfloat16",
        "device": "made by planner_scale.py",
        "optimizer": "adamw",
        "optimizer_bytes_per_parameter_byte": 6,
        "measurements": [
            {"micro_batch": 1, "input_bytes": 8 * TOKENS, "targets_bytes": 8 * TOKENS, "layers": rows}
        ],
    }


ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTERS = {
    64: ("128-machines-8-h100.json", 8),
    1024: ("128-machines-8-h100.json", 128),
    4096: ("512-machines-8-h100.json", 512),
}

# layers, width, devices, seconds (none: counted work), further arguments, micro-batches, memory caps or not
CASES = [
    (64, 4096, 64, None, ["--no-replicate"], (64, 256), (True, False)),
    (64, 4096, 64, None, ["--replicate"], (64, 256), (True, False)),
    (96, 8192, 4096, 10, ["--replicate"], (512, 4096, 16384), (True, False)),
    (1000, 2048, 1024, 30, ["--replicate"], (1024, 4096), (True, False)),
]


def cluster(devices, capped, folder):
    """A ready cluster with so many machines, with or without its devices' memory."""
    name, machines = CLUSTERS[devices]
    text = "\n".join(
        line.split("//")[0] for line in (ROOT / "configs/clusters" / name).read_text().splitlines()
    )
    made = json.loads(text)
    made["levels"][-1]["count"] = machines
    if not capped:
        made.pop("memory_bytes"), made.pop("memory_reserve_bytes", None)
    path = folder / f"{devices}_{capped}.json"
    path.write_text(json.dumps(made))
    return path


def plan(binary, arguments):
    """(answer, user CPU seconds, wall seconds)"""
    used, begin = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    done = subprocess.run(
        [binary, "plan", *map(str, arguments), "--json"], capture_output=True, text=True, check=False
    )
    wall = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stderr}")
    return json.loads(done.stdout), used, wall


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", nargs=3, metavar=("LAYERS", "WIDTH", "OUT"))
    parser.add_argument("--only", help="LAYERSxDEVICES")
    parser.add_argument("--stagecraft", default=str(ROOT / "build-planner/stagecraft"))
    asked = parser.parse_args()
    if asked.profile:
        layers, width, out = asked.profile
        pathlib.Path(out).write_text(json.dumps(profile(int(layers), int(width)), indent=1))
        return
    print("| layers x devices | m | memory | limit s | gap | of | user s | wall s | step ms | stages |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for layers, width, devices, limit, more, counts, caps in CASES:
            if asked.only and asked.only != f"{layers}x{devices}":
                continue
            written = folder / f"{layers}.json"
            written.write_text(json.dumps(profile(layers, width)))
            for capped in caps:
                for count in counts:
                    arguments = [
                        "--profile",
                        written,
                        "--cluster",
                        cluster(devices, capped, folder),
                        "--micro-batches",
                        count,
                        "--micro-batch-size",
                        1,
                        *more,
                        *(["--time-limit", limit] if limit else []),
                    ]
                    answer, used, wall = plan(asked.stagecraft, arguments)
                    proof, best = answer["proof"], answer["plan"]
                    family = (
                        "one device per stage"
                        if more == ["--no-replicate"]
                        else "any widths"
                        if proof["whole_family"]
                        else "equal widths"
                    )
                    gap = "0, proved" if proof["optimal"] else f"{proof['gap'] * 100:.2g} %"
                    print(
                        f"| {layers} x {devices:,} | {count:,} | {'76 GiB' if capped else 'any'} |"
                        f" {limit or '-'} | {gap} | {family} | {used:.1f} | {wall:.1f} |"
                        f" {best['predicted']['step_ms']:,.0f} | {len(best['stages'])} x"
                        f" {len(best['stages'][0]['ranks'])} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
