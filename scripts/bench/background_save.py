"""What saving costs a run: without checkpoints, with some that steps wait for, with some in the background.

    scripts/bench/background_save.py [BUILD] [--rounds 3]

All three in turn, each round; a step is the time between two lines of metrics.jsonl."""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

EVERY, STEPS = 20, 101
KINDS = {
    "no checkpoints": {"every_steps": 0},
    "waited for": {"every_steps": EVERY},
    "in the background": {"every_steps": EVERY, "in_background": True},
}


def run(build: Path, kind: str) -> tuple[float, float, float]:
    """Milliseconds: mean step, median step far from a save, median step behind a boundary with a save."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.json"
        config.write_text(
            json.dumps(
                {
                    "model": {"family": "mlp", "hidden": [2048, 2048, 2048]},
                    "data": {"type": "synthetic", "samples": 512, "validation_samples": 0}
                    | {"shape": [256], "classes": 10},
                    "loss": {"type": "cross_entropy"},
                    "optimizer": {"type": "AdamW", "params": {"lr": 0.0001}},
                    "train_batch_size": 64,
                    "train_micro_batch_size_per_gpu": 16,
                    "train_steps": STEPS,
                    "threads_per_rank": 1,
                    "pipeline": {"cuts": [3]},
                    "checkpoint": KINDS[kind],
                    "steps_per_print": 0,
                    "run_dir": f"{folder}/run",
                }
            )
        )
        subprocess.run([build / "stagecraft", "train", config], check=True, capture_output=True)
        lines = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    times = [line["unix_time"] for line in lines]
    steps = {line["step"]: 1e3 * (b - a) for line, a, b in zip(lines[1:], times, times[1:], strict=False)}
    behind = [ms for step, ms in steps.items() if step > 2 and step % EVERY == 1]
    between = [ms for step, ms in steps.items() if step > 2 and step % EVERY > EVERY / 2]
    return statistics.mean(steps.values()), statistics.median(between), statistics.median(behind)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?", type=Path, default=Path("build"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':<20}{'mean step':>12}{'far from one':>14}{'first behind one':>18}")
    for _ in range(options.rounds):
        for kind in KINDS:
            mean, between, behind = run(options.build.absolute(), kind)
            print(f"{kind:<20}{mean:>9.1f} ms{between:>11.1f} ms{behind:>15.1f} ms", flush=True)


main()
