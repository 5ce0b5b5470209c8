#!/usr/bin/env python3
"""Our planner on PipeDream's graphs: places to cut, the plan of one row beside that of all cuts, and the bound. Markdown.

  cmake --preset planner && ninja -C build-planner stagecraft
  scripts/bench/graph_planner.py [--profiles gnmt,inception_v3] [--micro-batches 8]

Settings: one device per stage ("straight", four stages), and any replicas ("any"), on clusters of configs/clusters without their memory
cap, which the bound leaves out; 1f1b by its step, pipedream by its bottleneck. Times are processor time of the whole process.
"""

import argparse
import json
import pathlib
import re
import resource
import subprocess
import tempfile

PROFILES = ("alexnet", "vgg16", "squeezenet1_0", "gnmt", "resnet50", "inception_v3")
SETTINGS = (  # cluster, schedule, more options, as shown
    ("one-machine-4-pcie", "1f1b", ["--stages", "4", "--widths", "1,1,1,1"], "straight"),
    ("one-machine-4-pcie", "pipedream", ["--stages", "4", "--widths", "1,1,1,1"], "straight"),
    ("two-machines-4-pcie", "1f1b", [], "any"),
)


def without_memory(path, folder):
    text = re.sub(r"//.*", "", path.read_text())
    cluster = json.loads(text)
    cluster.pop("memory_bytes", None)
    cluster.pop("memory_reserve_bytes", None)
    target = folder / path.name
    target.write_text(json.dumps(cluster))
    return target


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stagecraft", type=pathlib.Path, default=root / "build-planner/stagecraft")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--micro-batches", default="8")
    arguments = parser.parse_args()
    print("| profile | nodes | places to cut | cluster | stages | schedule | one row, ms | all cuts, ms | above the bound | time |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for profile in arguments.profiles.split(","):
            for cluster, schedule, more, stages in SETTINGS:
                file = without_memory(root / f"configs/clusters/{cluster}.json", pathlib.Path(name))
                command = [arguments.stagecraft, "plan", "--json", "--profile", root / f"test/data/pipedream/{profile}.graph.txt",
                           "--cluster", file, "--schedule", schedule, "--micro-batches", arguments.micro_batches,
                           "--micro-batch-size", "1", *more]
                begin = processor_seconds()
                graph = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["graph"]
                seconds = processor_seconds() - begin
                row = f"{graph['row_ms']:.2f}" if "row_ms" in graph else "-"
                print(f"| {profile} | {graph['nodes']} | {graph['downsets']:,} | {cluster} | {stages} | {schedule} | "
                      f"{row} | {graph['value_ms']:.2f} | {graph['gap'] * 100:.1f} % | {seconds:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
