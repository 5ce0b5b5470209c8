#!/usr/bin/env python3
"""Trains a config under several schedules, stages, optimizers, learning rates and seeds, and compares the last validation losses.

    scripts/bench/convergence.py CONFIG --out FOLDER [--schedules 1f1b,pipedream,2bw] [--stages 2,4,8] [--optimizers adamw,nadam]
        [--rates 5e-4,1e-3,2e-3] [--seeds 1,2,3] [--steps N] [--runs N] [--set KEY=VALUE ...] [--table]

Only losses are used, so ranks are threads that share cores. No run clips gradients, because asynchronous schedules cannot. Stages
are cut as the planner cuts them for the first schedule, the same for all. Each run has a directory FOLDER/NAME. A run that is done
is not made again and one that was stopped goes on, so the command may be repeated until all are there: --runs says how many to make
now. The table has, for every schedule, stages and optimizer, the best learning rate by the mean over the seeds; the synchronous
schedule counts with its own best. A cell with fewer runs than the grid says so.
"""

import argparse
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
# What a name on the command line means: the optimizer without its rate.
OPTIMIZERS = {
    "sgd": {"type": "SGD", "params": {"momentum": 0.9}},
    "adamw": {"type": "AdamW", "params": {"betas": [0.9, 0.99], "weight_decay": 0.1}},
    # arXiv 2505.01099: the look-ahead of Nesterov's method, with momentum 0.99, over stashed weights.
    "nadam": {"type": "NAdam", "params": {"betas": [0.99, 0.999], "weight_decay": 0.1, "decoupled_weight_decay": True}},
    "lion": {"type": "Lion", "params": {"weight_decay": 0.1}},
    "muon": {"type": "Muon", "params": {"adjust_lr_fn": "match_rms_adamw", "adam_weight_decay": 0.1}},
}
SYNCHRONOUS = "1f1b"
DIVERGED = "diverged.txt"


def grid(arguments):
    """(schedule, stages, optimizer, rate, seed) of every run; a synchronous run does not depend on its stages."""
    for schedule in arguments.schedules:
        stages = arguments.stages[:1] if schedule == SYNCHRONOUS else arguments.stages
        yield from itertools.product([schedule], stages, arguments.optimizers, arguments.rates, arguments.seeds)


def folder_of(arguments, case):
    schedule, stages, optimizer, rate, seed = case
    return arguments.out / f"{schedule}-{stages}-{optimizer}-{rate:g}-{seed}"


def base_settings(arguments):
    settings = ["comms.backend=local", "gradient_clipping=0", "profiler.repeats=1", "profiler.warmup_ms=0", "steps_per_print=0",
                "log.timeline_steps=0", "checkpoint.keep=1"]
    if arguments.steps:
        settings.append(f"train_steps={arguments.steps}")
    return settings + arguments.settings


def command(arguments, settings, *options):
    return [str(arguments.stagecraft), "train", str(arguments.config), *options,
            *itertools.chain.from_iterable(("--set", setting) for setting in settings)]


def cuts_of(arguments, stages):
    """Of the planner, asked once for each number of stages."""
    known = arguments.out / "cuts.json"
    cuts = json.loads(known.read_text()) if known.exists() else {}
    if str(stages) not in cuts:
        settings = [*base_settings(arguments), f"pipeline.schedule={SYNCHRONOUS}", f"pipeline.stages={stages}", "pipeline.cuts=[]"]
        printed = subprocess.run(command(arguments, settings, "--print-config"), check=True, capture_output=True, text=True, cwd=PROJECT)
        cuts[str(stages)] = json.loads(printed.stdout)["pipeline"]["cuts"]
        known.write_text(json.dumps(cuts) + "\n")
    return cuts[str(stages)]


def last_loss(folder):
    """The validation loss at the run's end, infinite for one that diverged; None for a run that is not done."""
    if (folder / DIVERGED).exists():
        return math.inf
    summary = folder / "summary.json"
    if not summary.exists():
        return None
    told = json.loads(summary.read_text())
    return None if told["stopped_by_signal"] else told["last_validation"]["loss"]


def train(arguments, case):
    schedule, stages, optimizer, rate, seed = case
    folder = folder_of(arguments, case)
    cuts = cuts_of(arguments, stages)
    if folder.exists() and not list(folder.glob("checkpoints/step-*")):
        shutil.rmtree(folder)  # it did not get to a checkpoint
    spec = {**OPTIMIZERS[optimizer], "params": {**OPTIMIZERS[optimizer]["params"], "lr": rate}}
    settings = [*base_settings(arguments), f"optimizer={json.dumps(spec)}", f"seed={seed}", f"pipeline.schedule={schedule}",
                f"pipeline.stages={stages}", f"pipeline.cuts={json.dumps(cuts)}", f"run_dir={folder}"]
    if schedule != SYNCHRONOUS:
        settings.append("gradient_norm=false")
    run = subprocess.run(command(arguments, settings, "--resume"), capture_output=True, text=True, cwd=PROJECT)
    if run.returncode == 2 and "not finite" in run.stdout + run.stderr:
        (folder / DIVERGED).write_text(run.stdout + run.stderr)
    elif run.returncode != 0:
        (arguments.out / "failed.txt").write_text(run.stdout + run.stderr)
        sys.exit(f"convergence.py: {folder.name} ended with exit code {run.returncode}: {run.stderr.strip() or run.stdout[-500:]}")


def rows(arguments):
    """Per schedule, stages and optimizer: the best rate, its losses, and how many runs of the row are there."""
    by_row = {}
    for case in grid(arguments):
        by_row.setdefault(case[:3], {}).setdefault(case[3], []).append(last_loss(folder_of(arguments, case)))
    for row, by_rate in by_row.items():
        there = {rate: [loss for loss in losses if loss is not None] for rate, losses in by_rate.items()}
        complete = {rate: losses for rate, losses in there.items() if losses and len(losses) == len(by_rate[rate])}
        best = min(complete, key=lambda rate: statistics.mean(complete[rate]), default=None)
        yield row, best, complete.get(best, []), sum(map(len, there.values())), sum(map(len, by_rate.values()))


def table(arguments):
    lines = ["| schedule | stages | optimizer | best rate | validation loss | lowest to highest | above the best synchronous | runs |",
             "|---|---|---|---|---|---|---|---|"]
    all_rows = list(rows(arguments))
    synchronous = [statistics.mean(losses) for (schedule, _, _), _, losses, _, _ in all_rows if schedule == SYNCHRONOUS and losses]
    for (schedule, stages, optimizer), best, losses, made, wanted in all_rows:
        if not losses:
            lines.append(f"| {schedule} | {stages} | {optimizer} | | | | | {made} of {wanted} |")
            continue
        mean = statistics.mean(losses)
        above = f"{mean - min(synchronous):+.3f}" if synchronous else ""
        lines.append(f"| {schedule} | {'any' if schedule == SYNCHRONOUS else stages} | {optimizer} | {best:g} | {mean:.3f} "
                     f"| {min(losses):.3f} to {max(losses):.3f} | {above} | {made} of {wanted} |")
    return "\n".join(lines)


def listed(kind):
    return lambda text: [kind(part) for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--stagecraft", type=lambda text: Path(text).resolve(), default=PROJECT / "build/stagecraft")
    parser.add_argument("--schedules", type=listed(str), default=["1f1b", "pipedream", "2bw"])
    parser.add_argument("--stages", type=listed(int), default=[2, 4, 8])
    parser.add_argument("--optimizers", type=listed(str), default=["adamw", "nadam"])
    parser.add_argument("--rates", type=listed(float), default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--seeds", type=listed(int), default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="in place of the config's")
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="make at most so many now (default: all)")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as train's")
    parser.add_argument("--table", action="store_true", help="train nothing")
    arguments = parser.parse_args()
    for name in arguments.optimizers:
        if name not in OPTIMIZERS:
            parser.error(f"--optimizers: {name} is not known here; known are {', '.join(OPTIMIZERS)}")
    arguments.config = arguments.config.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    left = [] if arguments.table else [case for case in grid(arguments) if last_loss(folder_of(arguments, case)) is None]
    for number, case in enumerate(left[:arguments.runs], 1):
        train(arguments, case)
        folder = folder_of(arguments, case)
        print(f"{folder.name}: {last_loss(folder):.4f}   ({number} of {len(left)})", flush=True)
    print(table(arguments))


if __name__ == "__main__":
    main()
