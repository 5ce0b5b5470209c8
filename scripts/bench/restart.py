"""How long a run stands still when one of its ranks is killed under torchrun: from SIGKILL to the next
finished step, and what of it is the start of Python and torch, which is nobody's here.

    scripts/bench/restart.py BUILD [--ranks 4] [--kills 3]

Run it with the Python beside LibTorch. BUILD has python/stagecraft."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run_json(folder: Path, ranks: int) -> Path:
    path = folder / "run.json"
    path.write_text(
        json.dumps(
            {
                "model": {"family": "mlp", "hidden": [64] * 2 * ranks},
                "data": {
                    "type": "synthetic",
                    "samples": 256,
                    "validation_samples": 0,
                    "shape": [8],
                    "classes": 4,
                },
                "loss": {"type": "cross_entropy"},
                "train_batch_size": 16,
                "train_micro_batch_size_per_gpu": 4,
                "train_steps": 1_000_000_000,
                "threads_per_rank": 1,
                "steps_per_print": 0,
                "pipeline": {"schedule": "1f1b", "stages": ranks},
                "checkpoint": {"every_steps": 20},
                "run_dir": str(folder / "run"),
            }
        )
    )
    return path


def children(of: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{of}/task/{of}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Run:
    def __init__(self, folder: Path, build: Path, ranks: int) -> None:
        self.metrics = folder / "run" / "metrics.jsonl"
        self.ranks = ranks
        # As torchrun's users have it: modules are compiled once.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {
            "PYTHONPATH": str(build / "python"),
            "PYTHONPYCACHEPREFIX": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        self.environment = environment
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
        ]
        words = ["--max-restarts=100", "-m", "stagecraft", "train", str(run_json(folder, ranks)), "--resume"]
        self.torchrun = subprocess.Popen(
            [*torchrun, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def steps(self) -> tuple[int, float]:
        """Lines of the file, and when it was written last."""
        try:
            return self.metrics.read_bytes().count(b"\n"), self.metrics.stat().st_mtime
        except FileNotFoundError:
            return 0, 0.0

    def kill_one(self) -> dict[str, float]:
        before = [pid for pid in children(self.torchrun.pid) if alive(pid)]
        begin, now = time.time(), time.monotonic()
        os.kill(before[1 % len(before)], signal.SIGKILL)
        took = {}
        while any(map(alive, before)):
            time.sleep(0.005)
        took["all ended"] = time.monotonic() - now
        while len(set(children(self.torchrun.pid)) - set(before)) < self.ranks:
            time.sleep(0.005)
        took["started"] = time.monotonic() - now
        # The file is cut back to the checkpoint, then grows.
        left = self.steps()[0]
        while True:
            lines, _ = self.steps()
            if lines < left:
                left = lines
                took.setdefault("prepared", time.monotonic() - now)
            elif lines > left:
                took["next step"] = time.time() - begin
                return took
            time.sleep(0.005)

    def imports(self) -> float:
        """The same number of Pythons that import torch, at once."""
        begin = time.monotonic()
        pythons = [
            subprocess.Popen([sys.executable, "-c", "import torch"], env=self.environment)
            for _ in range(self.ranks)
        ]
        for python in pythons:
            python.wait()
        return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), given.build.absolute(), given.ranks)
        try:
            seen = []
            for _ in range(given.kills):
                while run.steps()[0] < 30 or run.torchrun.poll() is not None:
                    time.sleep(0.05)
                time.sleep(1)
                seen.append(run.kill_one())
                print("  ".join(f"{what} {seconds:.2f} s" for what, seconds in seen[-1].items()), flush=True)
        finally:
            run.torchrun.terminate()
            run.torchrun.wait()
        start = run.imports()
        middle = statistics.median(each["next step"] for each in seen)
        print(f"import torch in {given.ranks} processes at once: {start:.2f} s")
        print(f"from SIGKILL to the next step: {middle:.2f} s, {middle - start:.2f} s beside that import")


if __name__ == "__main__":
    main()
