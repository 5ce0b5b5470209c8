#!/usr/bin/env python3
"""PipeDream's own optimizer beside ours: plan, bottleneck and time of each, as a table in Markdown.

  git clone https://github.com/msr-fiddle/pipedream          (or any checkout)
  python3 -m venv venv && venv/bin/pip install numpy graphviz
  cmake --preset planner && ninja -C build-planner stagecraft
  scripts/bench/pipedream_optimizer.py --checkout pipedream --python venv/bin/python [--profiles
  vgg16,alexnet]

Theirs runs once a setting, ours several times right before and after it (the median is shown); times are
processor time of whole processes. Inception is given to theirs with its branches compressed by its own
graph.py, as its README asks for; ours does that itself. A run of theirs is ended after --timeout seconds.
"""

import argparse
import json
import math
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

PROFILES = ("alexnet", "vgg16", "squeezenet1_0", "gnmt", "resnet50", "inception_v3")
CLUSTERS = {  # name: machines per level, bytes/s per level, innermost first
    "4": ([4], [12e9]),
    "16": ([16], [1.25e9]),
    "4x4": ([4, 4], [12e9, 1.25e9]),
    "8x2": ([8, 2], [30e9, 3.125e9]),
}
COMPRESS = """
import sys
sys.path.insert(0, sys.argv[1])
import graph
with open(sys.argv[2]) as source, open(sys.argv[3], "w") as target:
    target.write(str(graph.Graph.from_str(source.read()).compress_branches()))
"""


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(command, timeout=None, folder=None):
    """What it printed, or None when it was ended; processor seconds."""
    begin = processor_seconds()
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=folder, check=False
        )
    except subprocess.TimeoutExpired:
        return None, processor_seconds() - begin
    if output.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{output.stderr[-2000:]}")
    return output.stdout, processor_seconds() - begin


def theirs(arguments, profile, machines, bandwidths, priced, folder):
    """Stages as devices joined by "-", the bottleneck in ms, seconds; None twice when it was ended."""
    path = arguments.data / f"{profile}.graph.txt"
    if profile == "inception_v3":
        compressed = pathlib.Path(folder) / "inception_v3.txt"
        run([arguments.python, "-c", COMPRESS, arguments.checkout, path, compressed])
        path = compressed
    command = [
        arguments.python,
        "optimizer_graph_hierarchical.py",
        "-f",
        path.resolve(),
        "-n",
        *map(str, machines),
        "-b",
        *map(str, bandwidths),
    ]
    command += ["--activation_compression_ratio", "1"] if priced else []
    output, seconds = run(command, arguments.timeout, arguments.checkout / "optimizer")
    if output is None:
        return None, None, seconds
    time = re.search(r"Time per stage in pipeline: (\S+)", output)
    assert time is not None, output
    bottleneck = float(time.group(1)) * 1e3
    # outermost first; each lists the splits of its stretches
    levels = re.split(r"Level \d+\n=+\n", output)[1:]
    spans = [
        [
            (int(a), int(b), int(m))
            for a, b, m in re.findall(r"^\((\d+), (\d+)\) \S+ (\d+)$", level, re.MULTILINE)
        ]
        for level in levels
    ]
    widths = []
    for first, last, replicas in spans[-1]:
        around = [next(m for a, b, m in outer if a <= first and last <= b) for outer in spans[:-1]]
        widths.append(math.prod([replicas, *around]))
    return "-".join(map(str, widths)), bottleneck, seconds


def ours(arguments, profile, machines, bandwidths, priced, folder):
    cluster = pathlib.Path(folder) / "cluster.json"
    cluster.write_text(
        json.dumps(
            {
                "levels": [
                    {"count": m, "link": {"latency_ms": 0, "bytes_per_second": b}}
                    for m, b in zip(machines, bandwidths)
                ]
            }
        )
    )
    command = [
        arguments.binary,
        "optimize-pipedream",
        "--json",
        "--profile",
        arguments.data / f"{profile}.graph.txt",
        "--cluster",
        cluster,
    ]
    command += ["--activation-compression-ratio", "1"] if priced else []
    output, seconds = run(command)
    plan = json.loads(output)
    return "-".join(str(stage["devices"]) for stage in plan["stages"]), plan, seconds


def compare(arguments, profile, name, priced, folder):
    machines, bandwidths = CLUSTERS[name]
    setting = (arguments, profile, machines, bandwidths, priced, folder)
    before = [ours(*setting) for _ in range(arguments.repeats)]
    their_plan, their_bottleneck, their_seconds = theirs(*setting)
    runs = before + [ours(*setting) for _ in range(arguments.repeats)]
    plan, result, _ = runs[0]
    seconds = statistics.median(r[2] for r in runs)
    if their_bottleneck is None:
        verdict, theirs_text = "-", f"ended after {their_seconds:.0f} s"
    else:
        difference = result["bottleneck_ms"] / their_bottleneck - 1
        verdict = "equal" if abs(difference) < 1e-9 else f"{difference:+.2%}"
        theirs_text = f"{their_seconds:.2f} s"
    speedup = result["one_device_ms"] / result["bottleneck_ms"]
    return (
        f"| {profile} | {name} | {'priced' if priced else 'free'} | {plan} | {their_plan or '-'} |"
        f" {result['bottleneck_ms']:.3f} | {'-' if their_bottleneck is None else f'{their_bottleneck:.3f}'} |"
        f" {verdict} | {speedup:.2f}x | {seconds * 1e3:.0f} ms | {theirs_text} |"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=pathlib.Path, required=True, help="of msr-fiddle/pipedream")
    parser.add_argument("--python", default=sys.executable, help="one that has numpy and graphviz")
    parser.add_argument("--binary", type=pathlib.Path, default=pathlib.Path("build-planner/stagecraft"))
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("test/data/pipedream"))
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--transfers", default="priced,free", help="priced, free, or both")
    parser.add_argument("--repeats", type=int, default=3, help="of ours, before theirs and again after it")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one run of theirs")
    arguments = parser.parse_args()
    print(
        "| profile | devices | transfers | our stages | theirs | our bottleneck, ms | theirs | | over one"
        " device | our time | theirs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for profile in arguments.profiles.split(","):
            for name in arguments.clusters.split(","):
                for transfers in arguments.transfers.split(","):
                    print(compare(arguments, profile, name, transfers == "priced", folder), flush=True)


if __name__ == "__main__":
    main()
