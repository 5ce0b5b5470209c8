#!/usr/bin/env python3
"""The run of configs/gpt2_kernel.json once more as a loop of PyTorch in one process, and whether each loss is
the same.

    loop.py DATA RUN

DATA: the folder with tokens and model. RUN: the run's directory, whose learning rates are taken; its losses
are compared. The head's weight is a copy of the embedding's with a gradient of its own. Both gradients are
added once per step, as a pipeline does whose first and last stage hold the weight. Where the run multiplied
by oneDNN, the loop does, through the operator that torch.compile makes of linear layers.
"""

import json
import sys
from pathlib import Path

import numpy
import safetensors.torch
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from pytorch_data import shuffled

SEQUENCE, SAMPLES, MICRO_BATCHES, SEED = 256, 2, 4, 1
HOLDERS = ["transformer.wte.weight", "lm_head.weight"]  # of one weight


def multiply_by_onednn():
    """PyTorch's own products of float32 matrices, through oneDNN instead of the BLAS. They are so until what
    is returned is gone."""
    linear = torch.ops.mkldnn._linear_pointwise
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "mm", lambda left, right: linear(left, right.t(), None, "none", [], ""), "CPU", allow_override=True
    )
    library.impl(
        "addmm",
        lambda bias, left, right: linear(left, right.t(), bias, "none", [], ""),
        "CPU",
        allow_override=True,
    )
    return library


def begin(data):
    """The module with the weights of its capture."""
    module = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(Path(__file__).with_name("gpt2.json"))
    )
    module.load_state_dict(safetensors.torch.load_file(data / "model/weights.safetensors"), strict=False)
    module.lm_head.weight = torch.nn.Parameter(module.transformer.wte.weight.detach().clone())
    return module.train()


def add_gradients(first, last):
    """As autograd would add them for one weight: the last use first."""
    first.grad = last.grad + first.grad
    last.grad = first.grad.clone()


def main(data, run):
    data, run = Path(data), Path(run)
    records = [
        r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if not r["validation"]
    ]
    tokens = numpy.memmap(data / "train.bin", dtype=numpy.uint16, mode="r")
    sample_at = shuffled((len(tokens) - 1) // SEQUENCE, SEED, epoch=0)
    products = (
        multiply_by_onednn()
        if json.loads((run / "config.json").read_text())["matrix_products"] == "onednn"
        else None
    )
    module = begin(data)
    copies = [module.get_parameter(name) for name in HOLDERS]
    optimizer = torch.optim.AdamW(module.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    differ, at = 0, 0
    for record in records:
        optimizer.zero_grad()
        loss_of_step = 0.0
        for _ in range(MICRO_BATCHES):
            rows = [
                tokens[SEQUENCE * sample : SEQUENCE * (sample + 1)]
                for sample in map(sample_at, range(at, at + SAMPLES))
            ]
            batch = torch.from_numpy(numpy.stack(rows).astype(numpy.int64))
            at += SAMPLES
            loss = module(input_ids=batch, labels=batch).loss
            (loss / MICRO_BATCHES).backward()
            loss_of_step += float(loss.detach().double() / MICRO_BATCHES)
        add_gradients(*copies)
        optimizer.param_groups[0]["lr"] = record["learning_rate"]
        optimizer.step()
        differ += loss_of_step != record["loss"]
        print(f"step {record['step']}: {loss_of_step!r} here, {record['loss']!r} there", flush=True)
    del products
    print(f"{len(records) - differ} of {len(records)} losses equal")
    return int(differ > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
