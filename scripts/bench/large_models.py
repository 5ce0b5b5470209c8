#!/usr/bin/env python3
"""Plans of large models from folders captured on meta, for 8, 64 and 512 H100.

    PYTHON=scripts/python
    $PYTHON scripts/bench/large_models.py [--models gpt2-xl llama-3-8b ...] [--devices 8 64 512] -o FOLDER

Captures each model in bfloat16 without weights, calculates its profile from its graphs (`profile --estimate`)
at the stated rates, and plans it under the stated schedules on machines of eight behind NVSwitch, 400 Gb/s
between them, 80 GiB each. Captures that FOLDER has are used again. Printed: a table in Markdown. FOLDER gets
each plan and its picture, and for 8 devices its explanation. Needs scripts/setup.sh --models.
"""

import argparse
import json
import subprocess
from pathlib import Path

from measuring import ROOT

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MODELS = {  # the shape, and the command's sizes of a sample
    "gpt2-xl": (
        {
            "model_type": "gpt2",
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 1600,
            "n_layer": 48,
            "n_head": 25,
        },
        ["--sequence", "1024"],
    ),
    "llama-3-8b": (
        {
            **LLAMA,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
        ["--sequence", "4096"],
    ),
    "llama-3-70b": (
        {
            **LLAMA,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
        },
        ["--sequence", "4096"],
    ),
    "t5-11b": (
        {
            "model_type": "t5",
            "vocab_size": 32128,
            "d_model": 1024,
            "d_kv": 128,
            "d_ff": 65536,
            "num_layers": 24,
            "num_heads": 128,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        ["--sequence", "512", "--target-sequence", "512"],
    ),
}
MICRO_BATCHES = {8: 64, 64: 256, 512: 1024}  # per step
SAMPLES = {"gpt2-xl": 1, "llama-3-8b": 1, "llama-3-70b": 1, "t5-11b": 2}  # of a micro-batch


def cluster(devices):
    machines = (
        [{"count": devices // 8, "link": {"latency_ms": 0.01, "bytes_per_second": 50e9}}]
        if devices > 8
        else []
    )
    return {
        "name": f"{devices} H100",
        "levels": [{"count": 8, "link": {"latency_ms": 0.005, "bytes_per_second": 450e9}}, *machines],
        "memory_bytes": 80 * 2**30,
        "memory_reserve_bytes": 4 * 2**30,
    }


def write(path, contents):
    path.write_text(json.dumps(contents))
    return path


def run(*command, code=0):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT, check=False)
    if code is not None and done.returncode != code:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done


def profile(arguments, model, folder):
    config, sizes = MODELS[model]
    captured = folder / f"{model}.model"
    if not captured.exists():
        run(
            "scripts/stagecraft-capture",
            "--hf",
            write(folder / f"{model}.json", config),
            *sizes,
            "--dtype",
            "bfloat16",
            "--no-weights",
            "-o",
            captured,
        )
    fields = {"fields": [{"name": "labels", "from": "targets"}]} if config["model_type"] == "t5" else {}
    data = {"type": "text", "path": str(ROOT / "test/data/text/shakespeare.txt"), "sequence": int(sizes[1])}
    file = write(
        folder / f"{model}.run.json",
        {
            "model": {"family": "captured", "path": str(captured), **fields},
            "data": data,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW"},
            "train_batch_size": SAMPLES[model],
            "train_micro_batch_size_per_gpu": SAMPLES[model],
            "train_steps": 1,
        },
    )
    out = folder / f"{model}.profile.json"
    run(
        arguments.binary,
        "profile",
        file,
        "--estimate",
        "--tflops",
        arguments.tflops,
        "--memory-gbps",
        arguments.memory_gbps,
        "-o",
        out,
    )
    return out


def planned(arguments, model, devices, schedule, given, folder):
    """One row of the table."""
    name = folder / f"{model}.{devices}.{schedule}"
    file = write(folder / f"h100-{devices}.json", cluster(devices))
    inputs = [
        "--profile",
        given,
        "--cluster",
        file,
        "--micro-batches",
        MICRO_BATCHES[devices],
        "--micro-batch-size",
        SAMPLES[model],
        "--schedule",
        schedule,
        "--recompute",
        "auto",
    ]
    done = run(arguments.binary, "plan", *inputs, "-o", f"{name}.plan.json", "--json", code=None)
    row = [model, str(devices), f"`{schedule}`"]
    if done.returncode != 0:
        return [*row, done.stderr.strip().splitlines()[0].removeprefix("stagecraft: "), "", "", "", ""]
    found = json.loads(done.stdout)
    plan = found["plan"]
    predicted = plan["predicted"]
    run(arguments.binary, "simulate", f"{name}.plan.json", "--svg", f"{name}.svg")
    if devices == min(MICRO_BATCHES):  # it plans again and again, for minutes on many devices
        Path(f"{name}.txt").write_text(run(arguments.binary, "explain", *inputs).stdout)
    step = predicted["step_ms"]
    samples = MICRO_BATCHES[devices] * SAMPLES[model] / step * 1e3
    return [
        *row,
        f"{len(plan['stages'])} {'stage' if len(plan['stages']) == 1 else 'stages'}, {found['placement']}",
        f"{step:,.0f}",
        f"{samples:,.0f}",
        f"{100 * predicted['bubble']:.1f} %",
        f"{max(predicted['memory_bytes']) / 2**30:.1f}",
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--devices", nargs="+", type=int, choices=MICRO_BATCHES, default=list(MICRO_BATCHES))
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "zb_v"])
    parser.add_argument(
        "--tflops", type=float, default=400, help="of matrix products, as an H100 reaches them in bfloat16"
    )
    parser.add_argument("--memory-gbps", type=float, default=3000)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/stagecraft")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    folder = arguments.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print("| model | devices | schedule | plan | step ms | samples/s | bubble | GiB on the fullest |")
    print("|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        given = profile(arguments, model, folder)
        for devices in arguments.devices:
            for schedule in arguments.schedules:
                print(
                    "| " + " | ".join(planned(arguments, model, devices, schedule, given, folder)) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
