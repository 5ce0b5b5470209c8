#!/usr/bin/env python3
"""LoRA beside full fine-tuning, and beside PEFT's own loop.

    scripts/python scripts/bench/lora.py llama   # a captured Llama of 8 x 512: step, memory, checkpoint
    scripts/python scripts/bench/lora.py gpt2    # GPT-2 of 124 million: losses and adapters beside PEFT's

Needs peft (scripts/setup.sh --models) and a build in build/. Writes into --folder. Runs take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import peft
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers

from measuring import ROOT, describe_machine, run

SEQUENCE, SAMPLES, VOCABULARY = 128, 2, 2048
ROUNDS, STEPS = 3, 4


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=SEQUENCE,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def adapted(model: torch.nn.Module, targets: list[str], **more: Any) -> torch.nn.Module:
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM", **more)
    return Logits(peft.get_peft_model(model, config))


def full_llama() -> torch.nn.Module:
    return Logits(llama())


def lora_llama() -> torch.nn.Module:
    return adapted(llama(), ["q_proj", "v_proj"])


def late_llama() -> torch.nn.Module:
    """Adapters in the last half of the layers."""
    return adapted(llama(), ["q_proj", "v_proj"], layers_to_transform=[4, 5, 6, 7])


def lora_gpt2() -> torch.nn.Module:
    return adapted(gpt2(), ["c_attn"], fan_in_fan_out=True)


def capture(folder: str, name: str, vocabulary: int) -> str:
    out = f"{folder}/{name}.model"
    if not os.path.exists(out):
        fields = ["--field", f"labels=i64[{SEQUENCE}]<{vocabulary}", "--loss", f"{__file__}:loss"]
        sizes = ["--sequence", SEQUENCE, "--vocabulary", vocabulary]
        print(run(ROOT / "build/stagecraft-capture", f"{__file__}:{name}", *sizes, *fields, "-o", out))
    return out


def data(folder: str, vocabulary: int, rows: int) -> str:
    path = f"{folder}/data-{vocabulary}.safetensors"
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(vocabulary, (rows, SEQUENCE + 1), generator=generator)
    arrays = {"input_ids": tokens[:, :-1].contiguous(), "labels": tokens[:, 1:].contiguous()}
    safetensors.torch.save_file(arrays, path)
    return path


def train(folder: str, name: str, arrays: str, stages: int, steps: int, batch: int) -> dict[str, Any]:
    config = {
        "model": {"family": "captured", "path": f"{folder}/{name}.model"},
        "data": {"type": "arrays", "path": arrays, "inputs": "input_ids", "shuffle": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0003, "weight_decay": 0.0}},
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": steps,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": stages},
        "profiler": {"repeats": 1, "warmup_ms": 0},
        "run_dir": f"{folder}/{name}.run",
    }
    path = f"{folder}/{name}.json"
    Path(path).write_text(json.dumps(config))
    run("rm", "-rf", config["run_dir"])
    run(ROOT / "build/stagecraft", "train", path)
    lines = [json.loads(line) for line in Path(f"{folder}/{name}.run/metrics.jsonl").read_text().splitlines()]
    summary = json.loads(Path(f"{folder}/{name}.run/summary.json").read_text())
    checkpoints = Path(f"{folder}/{name}.run/checkpoints").glob("*/*")
    return {
        "lines": [line for line in lines if "loss" in line],
        "summary": summary,
        "checkpoint": sum(file.stat().st_size for file in checkpoints),
    }


def step_ms(made: dict[str, Any]) -> float:
    """Of a run's steps but the first."""
    return statistics.median(line["ms"] for line in made["lines"][1:])


def measure_llama(folder: str, stages_of_runs: list[int]) -> None:
    names = ["full_llama", "lora_llama", "late_llama"]
    for name in names:
        capture(folder, name, VOCABULARY)
    arrays = data(folder, VOCABULARY, 8 * (STEPS + 1))
    for stages in stages_of_runs:
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):  # interleaved
            for name in names:
                made = train(folder, name, arrays, stages, STEPS, 8)
                times[name].append(step_ms(made))
                peak = max(made["summary"]["peak_bytes"]) / 2**20
                print(
                    f"{stages} stages, {name}: {times[name][-1]:.0f} ms, {peak:.1f} MiB at most on a rank,"
                    f" checkpoints of {made['checkpoint'] / 2**20:.1f} MiB",
                    flush=True,
                )
        base = statistics.median(times["full_llama"])
        for name in names:
            spread = f"{min(times[name]):.0f} to {max(times[name]):.0f}"
            of_full = statistics.median(times[name]) / base
            print(f"{stages} stages, {name}: {spread} ms, {of_full:.2f} of full fine-tuning", flush=True)


def measure_gpt2(folder: str, steps: int) -> None:
    vocabulary = 50257
    capture(folder, "lora_gpt2", vocabulary)
    arrays = data(folder, vocabulary, 4 * steps)
    made = train(folder, "lora_gpt2", arrays, 2, steps, 4)
    losses = [line["loss"] for line in made["lines"]]
    print(f"ours: {step_ms(made):.0f} ms per step, checkpoint of {made['checkpoint']} bytes", flush=True)

    torch.set_num_threads(1)
    module, rows = lora_gpt2(), safetensors.torch.load_file(arrays)
    module.train()
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0003, weight_decay=0.0, fused=True)
    theirs, times = [], []
    for step in range(steps):
        begin, total = time.monotonic(), 0.0
        optimizer.zero_grad()
        for at in range(4 * step, 4 * step + 4, SAMPLES):
            batch = {name: array[at : at + SAMPLES].clone() for name, array in rows.items()}
            part = loss(module(batch["input_ids"]), batch)
            (part * (SAMPLES / 4)).backward()
            total += float(part.detach().double() * (SAMPLES / 4))
        optimizer.step()
        theirs.append(total)
        times.append(time.monotonic() - begin)
    print(f"PEFT's loop: {statistics.median(times) * 1e3:.0f} ms per step on one core")
    print(f"losses equal: {losses == theirs} ({losses[0]} to {losses[-1]}, {len(losses)} steps)")
    out = f"{folder}/gpt2.adapters"
    run("rm", "-rf", out)
    run(ROOT / "build/stagecraft", "export", f"{folder}/lora_gpt2.run", "--adapters", "-o", out)
    module.model.save_pretrained(f"{folder}/gpt2.saved")
    saved = safetensors.torch.load_file(f"{folder}/gpt2.saved/adapter_model.safetensors")
    exported = safetensors.torch.load_file(f"{out}/adapter_model.safetensors")
    equal = sum(torch.equal(exported[name], tensor) for name, tensor in saved.items())
    print(f"adapters: {equal} of {len(saved)} tensors equal those that PEFT saved, of {len(exported)}")
    loaded = peft.PeftModel.from_pretrained(gpt2(), out).eval()
    with torch.no_grad():
        ids = rows["input_ids"][:1]
        same = torch.equal(loaded(input_ids=ids).logits, module.model.eval()(input_ids=ids).logits)
    print(f"PeftModel.from_pretrained: logits equal {same}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["llama", "gpt2"])
    parser.add_argument("--folder", default="/tmp/lora-measured")
    parser.add_argument("--steps", type=int, default=50, help="with gpt2")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2], help="with llama")
    arguments = parser.parse_args()
    describe_machine()
    os.makedirs(arguments.folder, exist_ok=True)
    if arguments.what == "llama":
        measure_llama(arguments.folder, arguments.stages)
    else:
        measure_gpt2(arguments.folder, arguments.steps)


if __name__ == "__main__":
    main()
