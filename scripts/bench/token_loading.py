#!/usr/bin/env python3
"""Token files of 10 MB and 10 GB: how long a run takes to start and what memory it takes, and how fast
batches are read, beside nanoGPT's way.

    cmake --build build --target stagecraft bench_token_loading && $PYTHON scripts/bench/token_loading.py
    [--pairs 15] [--folder DIR] [--json OUT]

The small file has random tokens. The large one has holes, which the file system reads as zeros: it takes no
room, and no disk is measured.

Runs: `stagecraft train` of a tiny GPT for one step on one rank, on either file in turn, from the command to
its end; seconds, and the largest resident memory. Batches: ours come from the loader of a run
(bench_token_loading), inputs and targets of 12 x 1024 tokens, as 64-bit numbers. Theirs are made as nanoGPT's
train.py makes them: np.memmap opened for each batch, random offsets, a slice each as int64, torch.stack. Both
take turns, in pairs A B, B A. The small file is in the page cache; pages of the large one are mostly new to
it. The orders differ: ours is a permutation of samples that do not overlap, so an epoch shows each token
once; theirs draws offsets anew, so samples overlap and repeat. Only ours compares each token with the
vocabulary.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from measuring import ENVIRONMENT, ROOT, Table, describe_machine, overrides, spread, text

SIZES = {"10 MB": 10 * 10**6, "10 GB": 10 * 10**9}  # bytes, of tokens of 16 bits
VOCABULARY, SEQUENCE, BATCH = 50257, 1024, 12  # nanoGPT's for GPT-2
CONFIG = {
    "model": {"family": "gpt", "blocks": 1, "width": 16, "heads": 1},
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "loss": {"type": "token_cross_entropy"},
    "train_batch_size": 1,
    "train_micro_batch_size_per_gpu": 1,
    "train_steps": 1,
    "threads_per_rank": 1,
    "steps_per_print": 0,
    "pipeline": {"stages": 1},
    "profiler": {"repeats": 1, "warmup_ms": 0},
}


def write_files(folder):
    files = {name: folder / f"{size}.bin" for name, size in SIZES.items()}
    (small, large), (small_size, large_size) = files.values(), SIZES.values()
    np.random.default_rng(0).integers(VOCABULARY, size=small_size // 2, dtype=np.uint16).tofile(small)
    with open(large, "wb") as file:
        file.truncate(large_size)
    return files


def resident_bytes(pid):
    """The most so far, of the program that runs; 0 where it has ended. (wait4's figure begins with this
    script's own.)"""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def run_once(binary, folder, file):
    """Seconds, and the most bytes of memory that were resident."""
    data = {"type": "tokens", "path": str(file), "sequence": 64, "vocabulary": VOCABULARY}
    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, "data": data}))
    command = [str(binary), "train", str(config), *overrides(run_dir=tempfile.mkdtemp(dir=folder))]
    began, resident = time.monotonic(), 0
    with open(folder / "run.txt", "w+") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said)
        while process.poll() is None:
            resident = max(resident, resident_bytes(process.pid))
            time.sleep(0.005)
        seconds = time.monotonic() - began
        if process.returncode != 0:
            said.seek(0)
            sys.exit(f"{text(command)}\nfailed with {process.returncode}:\n{said.read()}")
    return seconds, resident


def start_runs(arguments, folder, files):
    found = {name: [] for name in files}
    for pair in range(arguments.pairs + 1):
        for name in list(files)[:: 1 if pair % 2 == 0 else -1]:
            figures = run_once(arguments.binary, folder, files[name])
            if pair > 0:  # the first one reads the program from the disk
                found[name].append(figures)
    table = Table("<file", "start s", "iqr", "resident MiB", "most")
    for name, figures in found.items():
        seconds, resident = zip(*figures)
        table.row(
            name,
            f"{statistics.median(seconds):.2f}",
            f"{100 * spread(seconds):.1f} %",
            f"{statistics.median(resident) / 2**20:.1f}",
            f"{max(resident) / 2**20:.1f}",
        )
    return found


def their_batch(path):
    data = np.memmap(path, dtype=np.uint16, mode="r")
    offsets = torch.randint(len(data) - SEQUENCE, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + SEQUENCE].astype(np.int64)) for i in offsets])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + SEQUENCE].astype(np.int64)) for i in offsets])
    return x, y


def their_turn(path, batches):
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(batches):
        their_batch(path)
    return time.perf_counter() - wall, time.process_time() - processor


class Ours:
    def __init__(self, binary, path):
        self.process = subprocess.Popen(
            [str(binary), str(path), str(SEQUENCE), str(BATCH)],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def turn(self, batches):
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit("bench_token_loading ended")
        return tuple(map(float, answer))


def read_batches(arguments, files):
    torch.set_num_threads(1)
    found, tokens = {}, arguments.batches * BATCH * SEQUENCE
    table = Table(
        "<file",
        "ours tokens/s",
        "theirs tokens/s",
        "ratio",
        "iqr",
        "least",
        "most",
        "processor ns/token: ours",
        "theirs",
    )
    for name, path in files.items():
        with Ours(arguments.bench, path) as ours:
            turns = [
                lambda ours=ours: ours.turn(arguments.batches),
                lambda path=path: their_turn(path, arguments.batches),
            ]
            pairs = []
            for pair in range(arguments.pairs + 1):
                figures = [(0.0, 0.0), (0.0, 0.0)]
                for i in (0, 1) if pair % 2 == 0 else (1, 0):
                    figures[i] = turns[i]()
                if pair > 0:
                    pairs.append(figures)
        rates = [[tokens / figures[side][0] for figures in pairs] for side in (0, 1)]
        work = [statistics.median(figures[side][1] for figures in pairs) / tokens * 1e9 for side in (0, 1)]
        ratios = [a / b for a, b in zip(*rates)]
        middle = statistics.median
        table.row(
            name,
            f"{middle(rates[0]):.3g}",
            f"{middle(rates[1]):.3g}",
            f"{middle(ratios):.2f}",
            f"{100 * spread(ratios):.1f} %",
            f"{min(ratios):.2f}",
            f"{max(ratios):.2f}",
            f"{work[0]:.2f}",
            f"{work[1]:.2f}",
        )
        found[name] = pairs
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--batches", type=int, default=400, help="of each turn")
    parser.add_argument("--folder", type=Path, help="of the files (default: one that is removed)")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("--bench", type=Path, default=ROOT / "build/bench_token_loading")
    parser.add_argument("--json", type=Path, help="write every pair's figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        files = write_files(folder)
        runs, batches = start_runs(arguments, folder, files), read_batches(arguments, files)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine, "runs": runs, "batches": batches}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
