#!/usr/bin/env python3
"""A step through Python beside one of `stagecraft train`: the GPT of configs/bench_gpt.json in transformers,
captured once, on two threads, the same plan, the same batches.

    PYTHONPATH=build/python ~/.cache/stagecraft/venv-torch-2.15.0/bin/python scripts/bench/python_step.py
    --rounds 8

Both take turns, which of them begins alternating: in a round each makes --steps steps, of which the median
counts, the first two left out. Printed: the medians over rounds, and the median of the rounds' ratios with
the least and the largest. The loop in Python reads a loss when the next step was handed over; `--at-once`:
before that, so that ranks wait for Python. `--norm`: with the gradient's norm, which ends each step together;
without it ranks begin a step while another one still ends the one before.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import stagecraft as sc
from measuring import ROOT, describe_machine, run

SAMPLES, LENGTH, CLASSES = 32, 128, 512


def model():
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=CLASSES,
            n_positions=LENGTH,
            n_embd=256,
            n_layer=8,
            n_head=8,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            tie_word_embeddings=False,
        )
    )


def tokens(steps):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, CLASSES, (steps * SAMPLES, LENGTH), generator=generator)


def by_command(folder, step, steps):
    """Seconds of each step, as the run's metrics have them."""
    config = step.config
    config["data"] = {
        "type": "arrays",
        "path": f"{folder}/data.safetensors",
        "inputs": "input_ids",
        "shuffle": False,
    }
    config.update(train_steps=steps, run_dir=f"{folder}/run-{time.monotonic_ns()}", steps_per_print=0)
    for key in ("gradient_accumulation_steps", "profiler"):
        config.pop(key)
    Path(folder, "run.json").write_text(json.dumps(config), encoding="utf-8")
    run(ROOT / "build/stagecraft", "train", f"{folder}/run.json")
    lines = Path(config["run_dir"], "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [line["ms"] / 1e3 for line in found if not line.get("validation")]


def by_python(step, batches, at_once):
    """Seconds from one loss to the next."""
    read, before = [time.perf_counter()], None
    for batch in batches:
        said = step(batch)
        if at_once:
            before = said
        if before is not None:
            _ = before.loss
            read.append(time.perf_counter())
        before = said
    return [end - begin for begin, end in itertools.pairwise(read)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="of a turn (default: %(default)s)")
    parser.add_argument("--norm", action="store_true", help="with the gradient's norm")
    parser.add_argument("--at-once", action="store_true", help="read each loss before the next step")
    arguments = parser.parse_args()
    describe_machine()
    whole = tokens(arguments.steps)
    batches = [{"input_ids": part, "labels": part} for part in whole.split(SAMPLES)]
    step = sc.pipeline(
        model(),
        batches[0],
        optimizer=sc.AdamW(lr=1e-3),
        stages=2,
        schedule="1f1b",
        micro_batches=8,
        threads_per_rank=1,
        config={"gradient_norm": arguments.norm},
    )
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        save_file({"input_ids": whole, "labels": whole.clone()}, f"{folder}/data.safetensors")
        for number in range(arguments.rounds):
            turns = [
                lambda: ours.append(statistics.median(by_python(step, batches, arguments.at_once)[2:])),
                lambda: theirs.append(statistics.median(by_command(folder, step, arguments.steps)[2:])),
            ]
            for turn in turns if number % 2 else turns[::-1]:
                turn()
            print(f"round {number + 1}: {1e3 * ours[-1]:.1f} ms and {1e3 * theirs[-1]:.1f} ms", flush=True)
    ratios = [mine / other for mine, other in zip(ours, theirs)]
    print(
        f"Python {1e3 * statistics.median(ours):.1f} ms per step, the command"
        f" {1e3 * statistics.median(theirs):.1f} ms: {statistics.median(ratios):.3f}"
        f" ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
