#!/usr/bin/env python3
"""Orders of Vs beside those of their authors' scheduler, at given cuts: `auto` in the memory that theirs
takes, and `zb_v`. Markdown.

  ninja -C build stagecraft
  scripts/bench/v_orders.py [--cases test/data/orders/vs.json] [--binary build/stagecraft]

A ratio is our makespan by theirs: below 1 ours is faster. Seconds are processor time of the whole `plan`.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import tempfile

MIB = 1 << 20


def plan(binary, case, schedule, folder):
    """Step in ms, and seconds; no step where nothing fits."""
    stages = 2 * case["ranks"]
    times = {part: case[f"{part}_ms"] for part in ("forward", "input", "weight")}
    times = {part: ms if isinstance(ms, list) else [ms] * stages for part, ms in times.items()}
    layers = [
        {
            "name": f"stage{s}",
            "forward": {"median_ms": times["forward"][s]},
            "backward_input": {"median_ms": times["input"][s]},
            "backward_weight": {"median_ms": times["weight"][s]},
            "step": {"median_ms": 0},
            "parameter_bytes": 0,
            "output_bytes": 4 * (s < stages - 1),
            "keeps_input": False,
            "kept_for_input_bytes": 100 * MIB,
            "kept_for_weight_bytes": 50 * MIB,
            "weight_half_keeps_input": False,
        }
        for s in range(stages)
    ]
    profile = {
        "model": "stages",
        "threads": 1,
        "optimizer": "SGD",
        "optimizer_bytes_per_parameter_byte": 0,
        "measurements": [{"micro_batch": 1, "input_bytes": 4, "targets_bytes": 4, "layers": layers}],
    }
    link = {"latency_ms": case["latency_ms"], "bytes_per_second": 1e12}
    cluster: dict[str, object] = {"name": "ranks", "levels": [{"count": case["ranks"], "link": link}]}
    if schedule == "auto":
        cluster["memory_bytes"] = int(case["cap"] * 100 * MIB + MIB)
    for name, content in (("profile", profile), ("cluster", cluster)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    command = [binary, "plan", "--profile", folder / "profile.json", "--cluster", folder / "cluster.json"]
    command += ["--schedule", schedule, "--stages", str(stages), "--virtual-stages", "2", "--no-replicate"]
    command += ["--cuts", ",".join(str(s) for s in range(1, stages))]
    command += ["--micro-batches", str(case["micro_batches"]), "-o", folder / "plan.json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if done.returncode != 0:
        return None, seconds
    return json.loads((folder / "plan.json").read_text())["predicted"]["step_ms"], seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=pathlib.Path, default=pathlib.Path("test/data/orders/vs.json"))
    parser.add_argument("--binary", default="build/stagecraft")
    args = parser.parse_args()
    print("| authors' order | ranks | micro-batches | stages | auto by theirs | s | zb_v by theirs | s |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        for case in json.loads(args.cases.read_text())["cases"]:
            columns = []
            for schedule in ("auto", "zb_v"):
                step, seconds = plan(args.binary, case, schedule, pathlib.Path(name))
                ratio = step / case["authors_ms"] if step else float("inf")
                columns += [f"{ratio:.4f}", f"{seconds:.2f}"]
                if schedule == "auto":
                    ratios.append(ratio)
                elif case["order"] != "zbv":  # theirs takes less memory than zb_v
                    columns[-2:] = ["-", "-"]
            stages = "unequal" if isinstance(case["forward_ms"], list) else "equal"
            print(
                f"| {case['order']} | {case['ranks']} | {case['micro_batches']} | {stages} |"
                f" {' | '.join(columns)} |",
                flush=True,
            )
    print(
        f"\nauto: {len(ratios)} settings, slower in {sum(r > 1.0005 for r in ratios)}, median"
        f" {statistics.median(ratios):.4f}"
    )


main()
