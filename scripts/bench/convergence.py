#!/usr/bin/env python3
"""Trains a config under several schedules, stages, optimizers, learning rates and seeds, and compares the
last validation losses.

    scripts/bench/convergence.py CONFIG --out FOLDER [--schedules 1f1b,pipedream,2bw] [--stages 2,4,8]
    [--optimizers adamw,muon+ahead]
        [--rates 5e-4,1e-3,2e-3] [--seeds 1,2,3] [--steps N] [--runs N] [--set KEY=VALUE ...] [--table]
        [--curves PREFIX]

An optimizer is a name of OPTIMIZERS, with remedies against staleness behind a +: ahead
(optimizer.staleness.look_ahead of 1), discount (its discount_steps: a quarter of the run), sync
(pipeline.synchronous_steps: an eighth of the run) and many (micro-batches so small that an update has four
per stage). A synchronous schedule takes it without them.

Only losses are used, so ranks are threads that share cores. No run clips gradients, because asynchronous
schedules cannot. Stages are cut as the planner cuts them for the first schedule, the same for all. Each run
has a directory FOLDER/NAME. A run that is done is not made again and one that was stopped goes on, so the
command may be repeated until all are there: --runs says how many to make now. The table has, for every
schedule, stages and optimizer, the best learning rate by the mean over the seeds; the synchronous schedule
counts with its own best. A cell with fewer runs than the grid says so.

--curves draws PREFIX-steps.svg and PREFIX-time.svg: the training loss of every row with the most stages, at
its best rate, against steps, and against the time that they take by the simulator on so many devices as there
are stages. For these times a profile per micro-batch size is measured once, FOLDER/profile-SIZE.json; steps
of pipeline.synchronous_steps take as long as the synchronous schedule's.
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
from typing import Any

from curves import draw, losses_of

PROJECT = Path(__file__).resolve().parents[2]
# What a name on the command line means: the optimizer without its rate.
OPTIMIZERS: dict[str, Any] = {
    "sgd": {"type": "SGD", "params": {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}},
    "adamw": {"type": "AdamW", "params": {"betas": [0.9, 0.99], "weight_decay": 0.1}},
    # arXiv 2505.01099: the look-ahead of Nesterov's method, with momentum 0.99, over stashed weights.
    "nadam": {
        "type": "NAdam",
        "params": {"betas": [0.99, 0.999], "weight_decay": 0.1, "decoupled_weight_decay": True},
    },
    "lion": {"type": "Lion", "params": {"weight_decay": 0.1}},
    "muon": {
        "type": "Muon",
        "params": {"adjust_lr_fn": "match_rms_adamw", "adam_betas": [0.9, 0.99], "adam_weight_decay": 0.1},
    },
}
REMEDIES = ("ahead", "discount", "sync", "many")
MICRO_BATCHES_PER_STAGE = 4  # with the remedy "many"
# its links; the devices are as fast as the profiled one
CLUSTER = PROJECT / "configs/clusters/one-machine-8-h100.json"
SYNCHRONOUS = "1f1b"
DIVERGED = "diverged.txt"


def grid(arguments):
    """(schedule, stages, optimizer, rate, seed) of every run; a synchronous run does not depend on its
    stages."""
    for schedule in arguments.schedules:
        synchronous = schedule == SYNCHRONOUS
        stages = arguments.stages[:1] if synchronous else arguments.stages
        optimizers = dict.fromkeys(
            name.split("+")[0] if synchronous else name for name in arguments.optimizers
        )
        yield from itertools.product([schedule], stages, optimizers, arguments.rates, arguments.seeds)


def synchronous_steps(arguments, optimizer):
    return steps_of(arguments) // 8 if "sync" in optimizer.split("+") else 0


def steps_of(arguments):
    """Of a run, as the config has them where they are not given."""
    if arguments.steps is None:
        arguments.steps = printed_config(arguments)["train_steps"]
    return arguments.steps


def printed_config(arguments, *settings):
    printed = subprocess.run(
        command(arguments, [*base_settings(arguments), *settings], "--print-config"),
        check=True,
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    return json.loads(printed.stdout)


def micro_batch_settings(arguments, stages, optimizer):
    """Of the remedy "many"; none where micro-batches are small enough."""
    if "many" not in optimizer.split("+"):
        return []
    config = printed_config(arguments)
    small = max(1, config["train_batch_size"] // (MICRO_BATCHES_PER_STAGE * stages))
    return (
        [f"train_micro_batch_size_per_gpu={small}"]
        if small < config["train_micro_batch_size_per_gpu"]
        else []
    )


def settings_of(arguments, schedule, stages, optimizer, rate):
    """What is told to train of an optimizer with its remedies."""
    name, *remedies = optimizer.split("+")
    spec: dict[str, Any] = {
        **OPTIMIZERS[name],
        "params": {**OPTIMIZERS[name]["params"], "lr": rate},
        "staleness": {},
    }
    if "ahead" in remedies:
        spec["staleness"]["look_ahead"] = 1
    if "discount" in remedies:
        spec["staleness"]["discount_steps"] = steps_of(arguments) // 4
    settings = [
        f"optimizer={json.dumps(spec)}",
        f"pipeline.synchronous_steps={synchronous_steps(arguments, optimizer)}",
        *micro_batch_settings(arguments, stages, optimizer),
    ]
    return settings if schedule == SYNCHRONOUS else [*settings, "gradient_norm=false"]


def folder_of(arguments, case):
    schedule, stages, optimizer, rate, seed = case
    return arguments.out / f"{schedule}-{stages}-{optimizer}-{rate:g}-{seed}"


def base_settings(arguments):
    settings = [
        "comms.backend=local",
        "gradient_clipping=0",
        "profiler.repeats=1",
        "profiler.warmup_ms=0",
        "steps_per_print=0",
        "log.timeline_steps=0",
        "checkpoint.keep=1",
    ]
    if arguments.steps:
        settings.append(f"train_steps={arguments.steps}")
    return settings + arguments.settings


def command(arguments, settings, *options):
    return [
        str(arguments.stagecraft),
        "train",
        str(arguments.config),
        *options,
        *itertools.chain.from_iterable(("--set", setting) for setting in settings),
    ]


def cuts_of(arguments, stages):
    """Of the planner, asked once for each number of stages."""
    known = arguments.out / "cuts.json"
    cuts = json.loads(known.read_text()) if known.exists() else {}
    if str(stages) not in cuts:
        config = printed_config(
            arguments, f"pipeline.schedule={SYNCHRONOUS}", f"pipeline.stages={stages}", "pipeline.cuts=[]"
        )
        cuts[str(stages)] = config["pipeline"]["cuts"]
        known.write_text(json.dumps(cuts) + "\n")
    return cuts[str(stages)]


def last_loss(folder):
    """The validation loss at the run's end, infinite for one that diverged; None for a run that is not
    done."""
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
    settings = [
        *base_settings(arguments),
        *settings_of(arguments, schedule, stages, optimizer, rate),
        f"seed={seed}",
        f"pipeline.schedule={schedule}",
        f"pipeline.stages={stages}",
        f"pipeline.cuts={json.dumps(cuts)}",
        f"run_dir={folder}",
    ]
    run = subprocess.run(
        command(arguments, settings, "--resume"),
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    if run.returncode == 2 and "not finite" in run.stdout + run.stderr:
        (folder / DIVERGED).write_text(run.stdout + run.stderr)
    elif run.returncode != 0:
        (arguments.out / "failed.txt").write_text(run.stdout + run.stderr)
        sys.exit(
            f"convergence.py: {folder.name} ended with exit code {run.returncode}:"
            f" {run.stderr.strip() or run.stdout[-500:]}"
        )


def rows(arguments):
    """Per schedule, stages and optimizer: the best rate, its losses, and how many runs of the row are
    there."""
    by_row = {}
    for case in grid(arguments):
        by_row.setdefault(case[:3], {}).setdefault(case[3], []).append(last_loss(folder_of(arguments, case)))
    for row, by_rate in by_row.items():
        there = {rate: [loss for loss in losses if loss is not None] for rate, losses in by_rate.items()}
        complete = {
            rate: losses for rate, losses in there.items() if losses and len(losses) == len(by_rate[rate])
        }
        best = min(complete, key=lambda rate: statistics.mean(complete[rate]), default=None)
        yield (
            row,
            best,
            complete.get(best, []),
            sum(map(len, there.values())),
            sum(map(len, by_rate.values())),
        )


def table(arguments):
    lines = [
        (
            "| schedule | stages | optimizer | best rate | validation loss | lowest to highest | above the"
            " best synchronous | runs |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    all_rows = list(rows(arguments))
    synchronous = [
        statistics.mean(losses)
        for (schedule, _, _), _, losses, _, _ in all_rows
        if schedule == SYNCHRONOUS and losses
    ]
    for (schedule, stages, optimizer), best, losses, made, wanted in all_rows:
        if not losses:
            lines.append(f"| {schedule} | {stages} | {optimizer} | | | | | {made} of {wanted} |")
            continue
        mean = statistics.mean(losses)
        above = f"{mean - min(synchronous):+.3f}" if synchronous else ""
        lines.append(
            f"| {schedule} | {'any' if schedule == SYNCHRONOUS else stages} | {optimizer} | {best:g} |"
            f" {mean:.3f} | {min(losses):.3f} to {max(losses):.3f} | {above} | {made} of {wanted} |"
        )
    return "\n".join(lines)


def step_seconds(arguments, schedule, stages, optimizer):
    """Of a step in the steady state, by the simulator."""
    settings = micro_batch_settings(arguments, stages, optimizer)
    config = printed_config(arguments, *settings)
    micro_batch = config["train_micro_batch_size_per_gpu"]
    profile = arguments.out / f"profile-{micro_batch}.json"
    if not profile.exists():
        subprocess.run(
            [
                str(arguments.stagecraft),
                "profile",
                str(arguments.config),
                "--set",
                "threads_per_rank=1",
                "-o",
                str(profile),
                *itertools.chain.from_iterable(
                    ("--set", setting) for setting in [*arguments.settings, *settings]
                ),
            ],
            check=True,
            capture_output=True,
            cwd=PROJECT,
        )
    micro_batches = math.ceil(config["train_batch_size"] / micro_batch)
    printed = subprocess.run(
        [
            str(arguments.stagecraft),
            "plan",
            "--profile",
            str(profile),
            "--cluster",
            str(CLUSTER),
            "--micro-batches",
            str(micro_batches),
            "--schedule",
            schedule,
            "--stages",
            str(stages),
            "--no-replicate",
            "--json",
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=PROJECT,
    )
    return json.loads(printed.stdout)["plan"]["predicted"]["step_ms"] / 1e3


def curves(arguments):
    """(name, mean losses over the seeds by step, seconds by step) of each row that is drawn."""
    most = max(arguments.stages)
    for (schedule, stages, optimizer), best, losses, _, _ in rows(arguments):
        if best is None or not math.isfinite(losses[0]) or (schedule != SYNCHRONOUS and stages != most):
            continue
        by_seed = [
            losses_of(folder_of(arguments, (schedule, stages, optimizer, best, seed)))
            for seed in arguments.seeds
        ]
        flat = synchronous_steps(arguments, optimizer)
        step, flat_step = (step_seconds(arguments, each, most, optimizer) for each in (schedule, SYNCHRONOUS))
        times = [flat_step if at < flat else step for at in range(len(by_seed[0]))]
        yield (
            f"{schedule}, {optimizer}",
            [statistics.mean(losses) for losses in zip(*by_seed)],
            list(itertools.accumulate(times)),
        )


def draw_curves(arguments):
    lines = list(curves(arguments))
    stages = max(arguments.stages)
    for suffix, across, drawn in (
        (
            "steps",
            "optimizer steps",
            [(name, losses, range(1, len(losses) + 1)) for name, losses, _ in lines],
        ),
        ("time", f"seconds on {stages} devices, by the simulator", lines),
    ):
        path = Path(f"{arguments.curves}-{suffix}.svg")
        path.write_text(draw(drawn, across, f"Training loss, {stages} stages (mean of 20 steps)"))
        print(path)


def listed(kind):
    return lambda text: [kind(part) for part in text.split(",") if part]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument(
        "--stagecraft", type=lambda text: Path(text).resolve(), default=PROJECT / "build/stagecraft"
    )
    parser.add_argument("--schedules", type=listed(str), default=["1f1b", "pipedream", "2bw"])
    parser.add_argument("--stages", type=listed(int), default=[2, 4, 8])
    parser.add_argument("--optimizers", type=listed(str), default=["adamw", "nadam"])
    parser.add_argument("--rates", type=listed(float), default=[5e-4, 1e-3, 2e-3])
    parser.add_argument("--seeds", type=listed(int), default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="in place of the config's")
    parser.add_argument(
        "--runs", type=int, default=sys.maxsize, help="make at most so many now (default: all)"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as train's")
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="PREFIX",
        help="draw PREFIX-steps.svg and PREFIX-time.svg, and train nothing",
    )
    arguments = parser.parse_args()
    for name in arguments.optimizers:
        base, *remedies = name.split("+")
        if base not in OPTIMIZERS or not set(remedies) <= set(REMEDIES):
            parser.error(
                f"--optimizers: {name} is not known here; known are {', '.join(OPTIMIZERS)}, and behind a +"
                f" {', '.join(REMEDIES)}"
            )
    arguments.config = arguments.config.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    left = (
        []
        if arguments.table or arguments.curves
        else [case for case in grid(arguments) if last_loss(folder_of(arguments, case)) is None]
    )
    for number, case in enumerate(left[: arguments.runs], 1):
        train(arguments, case)
        folder = folder_of(arguments, case)
        print(f"{folder.name}: {last_loss(folder):.4f}   ({number} of {len(left)})", flush=True)
    print(table(arguments))
    if arguments.curves:
        draw_curves(arguments)


if __name__ == "__main__":
    main()
