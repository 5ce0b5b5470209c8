#!/usr/bin/env python3
"""How far `plan`'s step times are from what `train` then measures: profile, plan and train, in turns.

    python3 scripts/bench/prediction.py [CONFIG ...] [--rounds 5] [--seconds 15] [--json OUT]

Each round takes every config once (default: the quickstart GPT and the Fashion-MNIST convnet, whose data scripts/fetch_data.sh
fetches): `profile` and `train` over 2 ranks under mpirun, one right after the other, because a machine's speed wanders over minutes.
A round's error is predicted over measured - 1; the run's figure is the median of its steps. Printed: the median over rounds, the
smallest and the largest. Needs idle cores, as many as ranks.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ["configs/quickstart_gpt.json", "configs/fashion_convnet.json"]
RANKS = ["mpirun", "-np", "2"]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run(*command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout}{done.stderr}")


def predicted_and_measured(binary, config, seconds, folder):
    """Milliseconds a step."""
    profile, plan, run_dir = (folder / name for name in ("profile.json", "plan.json", "run"))
    run(*RANKS, binary, "profile", config, "--links", "-o", profile)
    run(binary, "plan", config, "--profile", profile, "-o", plan)
    predicted = json.loads(plan.read_text())["predicted"]["step_ms"]
    steps = max(20, round(1e3 * seconds / predicted))
    overrides = [f"run_dir={run_dir}", f"train_steps={steps}", "validation.every_steps=0", "checkpoint.every_steps=0"]
    run(*RANKS, binary, "train", config, "--plan", plan, *(word for value in overrides for word in ("--set", value)))
    return predicted, json.loads((run_dir / "summary.json").read_text())["step_time"]["median_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("configs", nargs="*", default=CONFIGS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15, help="of training a round (default: %(default)s)")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--json", type=Path, help="write every round's figures there")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds", flush=True)
    results = {config: [] for config in arguments.configs}
    for _ in range(arguments.rounds):
        for config, pairs in results.items():
            with tempfile.TemporaryDirectory() as name:
                pairs.append(predicted_and_measured(arguments.binary, config, arguments.seconds, Path(name)))
            predicted, measured = pairs[-1]
            print(f"  {config}: predicted {predicted:.1f} ms, measured {measured:.1f} ms, {100 * (predicted / measured - 1):+.1f} %", flush=True)
    print(f"\n{'config':<32}{'predicted ms':>13}{'measured ms':>13}{'error':>9}{'smallest':>10}{'largest':>9}")
    for config, pairs in results.items():
        errors = [100 * (p / m - 1) for p, m in pairs]
        print(f"{config:<32}{statistics.median(p for p, _ in pairs):>13.1f}{statistics.median(m for _, m in pairs):>13.1f}"
              f"{statistics.median(errors):>+7.1f} %{min(errors):>+8.1f} %{max(errors):>+7.1f} %")
    if arguments.json:
        arguments.json.write_text(json.dumps({c: [{"predicted_ms": p, "measured_ms": m} for p, m in pairs] for c, pairs in results.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
