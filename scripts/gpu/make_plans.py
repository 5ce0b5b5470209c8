#!/usr/bin/env python3
"""Configs and plans of the bundle, so that no run there profiles: into OUT/configs and OUT/plans.

    make_plans.py BINARY OUT

Configs lose what the plans decide. Small models are profiled here, on the CPU; other plans say which layers
make which stage, and have no costs: the part `predicted` profiles GPT-2 small where it runs.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))
from measuring import Workbench, read_json  # noqa: E402

CONFIGS = ["bench_gpt", "bench_vgg", "gpt2_small", "gpt2_medium"]
ON_CPU = {"device": "cpu", "profiler": {"warmup_ms": 0}}


def layers_of(config):
    """Of a GPT: embedding, two per block, norm and head."""
    return 2 * config["model"]["blocks"] + 3


def without_costs(config, stages, replicas=1, schedule="1f1b", micro_batch=None, micro_batches=None):
    layers, micro_batch = layers_of(config), micro_batch or config["train_micro_batch_size_per_gpu"]
    bounds = [0, *(1 + 2 * (config["model"]["blocks"] * s // stages) for s in range(1, stages)), layers]
    return {
        "dtype": "bfloat16" if config.get("bf16", {}).get("enabled") else "float32",
        "stages": [
            {
                "first_layer": bounds[s],
                "last_layer": bounds[s + 1],
                "ranks": list(range(s * replicas, (s + 1) * replicas)),
            }
            for s in range(stages)
        ],
        "schedule": {"name": schedule},
        "micro_batches": micro_batches or config["train_batch_size"] // micro_batch,
        "micro_batch_size": micro_batch,
    }


def main():
    binary, out = sys.argv[1], Path(sys.argv[2])
    plans = out / "plans"
    for folder in (plans, out / "configs"):
        folder.mkdir(parents=True, exist_ok=True)
    configs = {name: read_json(ROOT / f"configs/{name}.json") for name in CONFIGS}
    for name, config in configs.items():
        config.pop("pipeline")
        config["run_dir"] = f"runs/{name}"
        (out / f"configs/{name}.json").write_text(json.dumps(config, indent=2) + "\n")

    def write(name, plan):
        (plans / f"{name}.json").write_text(json.dumps(plan) + "\n")

    gpt, medium = configs["bench_gpt"], configs["gpt2_medium"]
    measured = {"bench_gpt": [1, 2, 4], "bench_vgg": [1]}
    for name, counts in measured.items():
        bench = Workbench(
            binary, out / f"configs/{name}.json", out / f"profile_{name}", settings=ON_CPU, bind=False
        )
        bench.profile(repeats=1, ranks=1, links=False)
        for stages in counts:
            write(f"{name}.{stages}", bench.plan(str(stages), "1f1b", ranks=stages, stages=stages)[1])
        subprocess.run(["rm", "-rf", out / f"profile_{name}"], check=True)
    for stages in (1, 2, 4):
        write(f"gpt2_small.{stages}", without_costs(configs["gpt2_small"], stages))
        write(f"bench_gpt_bf16.{stages}", without_costs({**gpt, "bf16": {"enabled": True}}, stages))
    write("bench_gpt_narrow.1", without_costs(gpt, 1))
    write("bench_gpt.replicas_2", without_costs(gpt, 1, replicas=2))
    write("bench_gpt.fill_drain_300", without_costs(gpt, 2, schedule="fill_drain", micro_batches=300))
    for stages in (1, 2):
        write(f"gpt2_medium.{stages}", without_costs(medium, stages))
    for stages, replicas in ((4, 1), (8, 1), (16, 1), (2, 2), (2, 4), (4, 2), (8, 2)):
        name = f"gpt2_medium.{stages}" + (f"x{replicas}" if replicas > 1 else "")
        write(name, without_costs(medium, stages, replicas, micro_batch=1))


if __name__ == "__main__":
    main()
