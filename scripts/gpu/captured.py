"""Captured models on the GPU beside the CPU: the same weights and data, a few steps, losses.

captured.py OUT     trains each config of captured/ there on both, in the bundle's folder
"""

import json
import math
import subprocess
import sys
from pathlib import Path

MOST = 2e-4  # of a loss, relative: kernels add in orders of their own


def losses(config, name, device, out, *more):
    run = out / f"{config.stem}.{name}"
    settings = [f"device={device}", f"run_dir={run}", *more]
    command = ["bin/stagecraft", "train", str(config)]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def main():
    out, failed = Path(sys.argv[1]), 0
    for config in sorted(Path("captured").glob("*.json")):
        try:
            there, again = (
                losses(config, name, "cuda", out, "cuda.deterministic=true", f"cuda.graphs={graphs}")
                for name, graphs in (("launched", "false"), ("recorded", "true"))
            )
            here = losses(config, "cpu", "cpu", out)
            apart = max(abs(a - b) / max(1, abs(a)) for a, b in zip(here, there, strict=True))
            good = apart <= MOST and all(map(math.isfinite, there)) and again == there
            print(
                f"{config.stem}: {len(there)} steps, losses from {there[0]:.4f} to {there[-1]:.4f}, at most"
                f" {apart:.1e} from the CPU's; with recordings"
                f" {'the same bits' if again == there else again}",
                flush=True,
            )
        except (OSError, RuntimeError, ValueError) as error:
            good = False
            print(f"{config.stem}: {error}", flush=True)
        failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
