#!/usr/bin/env python3
"""Trains a Stagecraft run again in Python PyTorch, from the same weights on the same batches, and compares
the losses.

    build/stagecraft train CONFIG --set checkpoint.at_start=true --set run_dir=RUN_DIR ...
    python scripts/pytorch_reference.py RUN_DIR [--steps N] [--tolerance 1e-5] [--json OUT]

Reads RUN_DIR/config.json, the initial weights in RUN_DIR/checkpoints/step-00000000 and the losses in
RUN_DIR/metrics.jsonl. Whole mini-batches go through autograd and torch.optim at once: no pipeline, no
micro-batches, nothing of Stagecraft's code. For mlp, gpt and convnet without dropout (a convnet in one
micro-batch: batch norm is over micro-batches), synchronous schedules. Exit code 1 when a loss differs by more
than the tolerance, relative to 1.
"""

import argparse
import json
import math
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from pytorch_data import mini_batches, open_data
from pytorch_models import convnet_layers, gpt_layers, mlp_layers

DTYPES = {"F32": torch.float32, "F64": torch.float64}


def refuse(what):
    raise SystemExit(f"pytorch_reference.py: {what}")


def read_safetensors(path):
    """The tensors of a safetensors file by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        flat = torch.frombuffer(bytearray(data[begin:end]) or bytearray(1), dtype=DTYPES[entry["dtype"]])
        tensors[name] = flat[: math.prod(entry["shape"])].reshape(entry["shape"])
    return tensors


def build_layers(config, data, checkpoint):
    """(name, layer) with the checkpoint's weights; every parameter must be in its layer's file, and nothing
    else."""
    model = config["model"]
    if model.get("dropout", 0) or model.get("attention_dropout", 0):
        refuse("the model has dropout, whose masks are Stagecraft's own")
    if model["family"] == "mlp":
        layers = mlp_layers(data.shape, data.classes, model["hidden"])
    elif model["family"] == "convnet":
        layers = convnet_layers(data.shape, data.classes, model["groups"], model["classifier"])
    elif model["family"] == "gpt":
        layers = gpt_layers(
            data.classes,
            data.shape[0],
            model["blocks"],
            model["width"],
            model["heads"],
            model["feed_forward"],
        )
    else:
        refuse(f"family {model['family']} is not built here; use mlp, gpt or convnet")
    for name, layer in layers:
        if not list(layer.parameters()):
            continue
        tensors = read_safetensors(checkpoint / f"{name}.safetensors")
        weights = {
            key.removeprefix("parameter/"): t for key, t in tensors.items() if key.startswith("parameter/")
        }
        layer.to(next(iter(weights.values())).dtype).load_state_dict(
            {**dict(layer.named_buffers()), **weights}, strict=True
        )
    return layers


def build_model(config, data, checkpoint):
    return nn.Sequential(*(layer for _, layer in build_layers(config, data, checkpoint)))


def cross_entropy(logits, targets, reduction="mean"):
    """Of samples or of their tokens: whatever the logits have before the classes."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)


def build_optimizer(config, model, **options):
    kinds = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
    return kinds[config["optimizer"]["type"]](model.parameters(), **config["optimizer"]["params"], **options)


def learning_rate(config, step, total):
    """DeepSpeed's formulas."""
    base = config["optimizer"]["params"]["lr"]
    scheduler = config["scheduler"]
    if scheduler["type"] == "constant":
        return base
    if scheduler["type"] != "WarmupCosineLR":
        refuse(f"scheduler {scheduler['type']} is not known here; use constant or WarmupCosineLR")
    given = scheduler["params"]
    warmup = max(2, given["warmup_num_steps"])
    total = given["total_num_steps"] or total
    if step < warmup:
        return base * (
            given["warmup_min_ratio"]
            + (1 - given["warmup_min_ratio"]) * math.log(step + 1) / math.log(warmup)
        )
    progress = min(1.0, (step - warmup + 1) / max(1, total - warmup))
    return base * (
        given["cos_min_ratio"] + (1 - given["cos_min_ratio"]) * 0.5 * (1 + math.cos(math.pi * progress))
    )


def reference_losses(config, checkpoint, steps, total_steps):
    if config["loss"]["type"] not in ("cross_entropy", "token_cross_entropy"):
        refuse(f"loss {config['loss']['type']} is not computed here")
    data = open_data(config["data"])
    model = build_model(config, data, checkpoint)
    optimizer = build_optimizer(config, model)
    dtype = next(model.parameters()).dtype
    losses = []
    for step, (inputs, targets) in zip(range(steps), mini_batches(data, config)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, total_steps)
        optimizer.zero_grad()
        logits = model(inputs.to(dtype) if inputs.is_floating_point() else inputs)
        loss = cross_entropy(logits, targets, config["loss"]["reduction"])
        loss.backward()
        if config["gradient_clipping"]:
            nn.utils.clip_grad_norm_(model.parameters(), config["gradient_clipping"])
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, help="compare the first so many (default: all of the run)")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the losses (default 1e-5)")
    parser.add_argument("--json", type=Path, help="write both losses per step there")
    arguments = parser.parse_args()
    for needed in ("config.json", "metrics.jsonl", "checkpoints/step-00000000"):
        if not (arguments.run_dir / needed).exists():
            refuse(
                f"{arguments.run_dir / needed} is missing; train with --set checkpoint.at_start=true and keep"
                " all checkpoints (checkpoint.keep=0)"
            )
    torch.set_num_threads(1)
    config = json.loads((arguments.run_dir / "config.json").read_text())
    if any(config.get(key, {}).get("enabled", False) for key in ("bf16", "fp16")):
        refuse(
            f"{arguments.run_dir} is of a run in mixed precision, whose losses PyTorch would round otherwise;"
            " train it in float32"
        )
    lines = [json.loads(line) for line in (arguments.run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if not line.get("validation", False)]
    steps = min(arguments.steps or len(trained), len(trained))
    total = config.get("train_steps") or len(trained)
    ours = [line["loss"] for line in trained[:steps]]
    theirs = reference_losses(config, arguments.run_dir / "checkpoints/step-00000000", steps, total)
    differences = [abs(a - b) / max(1, abs(b)) for a, b in zip(ours, theirs)]
    if arguments.json:
        arguments.json.write_text(json.dumps({"stagecraft": ours, "pytorch": theirs}, indent=2) + "\n")
    worst = max(range(steps), key=differences.__getitem__)
    print(
        f"{config['model']['family']}, {steps} steps: losses {theirs[0]:.4f} -> {theirs[-1]:.4f}; largest"
        f" difference {differences[worst]:.2e} at step {worst} (allowed {arguments.tolerance:.0e})"
    )
    if not differences[worst] <= arguments.tolerance:  # NaN differs
        print(f"DIFFERENT: step {worst} is {ours[worst]!r} in Stagecraft and {theirs[worst]!r} in PyTorch")
        sys.exit(1)


if __name__ == "__main__":
    main()
