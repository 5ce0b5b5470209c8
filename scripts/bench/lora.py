#!/usr/bin/env python3
"""What LoRA saves beside training all weights: a Llama of 8 blocks, 512 wide, captured by both ways, in runs
that take turns on this machine.

    scripts/python scripts/bench/lora.py [--stages 2] [--schedule 1f1b] [--steps 6] [--pairs 5]

Micro-batches of 4 x 128 tokens, 8 of them per step, AdamW; adapters of rank 8 on q_proj and v_proj. Printed:
the median time of a step of either (without each run's first), the median of the pairs' ratios with their
spread, the ranks' largest peak memory as it was proved, and the bytes of the last checkpoint. Needs
scripts/setup.sh --models.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from measuring import ROOT, Table, describe_machine, run, spread

MODULES = """
import peft, torch, transformers

def full():
    torch.manual_seed(0)
    return Logits(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=1024, max_position_embeddings=128, tie_word_embeddings=False)))

def lora():
    settings = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return Logits(peft.get_peft_model(full().model, settings))

class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits

def loss(output, batch):
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), batch["targets"].flatten())
"""


def config(arguments, folder, which):
    return {
        "model": {"family": "captured", "path": f"{folder}/{which}.model"},
        "data": {"type": "synthetic", "task": "tokens", "shape": [128], "classes": 1024},
        "optimizer": {"type": "AdamW"},
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": arguments.steps,
        "threads_per_rank": 1,
        "pipeline": {"schedule": arguments.schedule, "stages": arguments.stages},
        "run_dir": f"{folder}/{which}",
    }


def step_ms(folder, which):
    """The median of a run's steps, all but its first."""
    run("rm", "-rf", f"{folder}/{which}")
    run(ROOT / "build/stagecraft", "train", f"{folder}/{which}.json")
    records = map(json.loads, Path(f"{folder}/{which}/metrics.jsonl").read_text().splitlines())
    return statistics.median([record["step_ms"] for record in records if "step_ms" in record][1:])


def peak_mib(folder, which):
    plan = json.loads(Path(f"{folder}/{which}/summary.json").read_text())
    return max(rank["peak_bytes"] for rank in plan["memory"]) / 2**20


def checkpoint_mib(folder, which):
    newest = max(Path(f"{folder}/{which}/checkpoints").iterdir())
    return sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) / 2**20


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="stagecraft-lora-") as folder:
        Path(f"{folder}/mine.py").write_text(MODULES)
        for which in ("full", "lora"):
            run(
                *(ROOT / "build/stagecraft-capture", f"{folder}/mine.py:{which}", "--sequence", 128),
                *("--vocabulary", 1024, "--field", "targets=i64[128]<1024"),
                *("--loss", f"{folder}/mine.py:loss", "-o", f"{folder}/{which}.model"),
            )
            Path(f"{folder}/{which}.json").write_text(json.dumps(config(arguments, folder, which)))
        found = {"full": [], "lora": []}
        for pair in range(arguments.pairs):
            for which in ("full", "lora") if pair % 2 == 0 else ("lora", "full"):
                found[which].append(step_ms(folder, which))
        table = Table("<weights", "step ms", "peak MiB", "checkpoint MiB")
        for which, times in found.items():
            table.row(
                which,
                f"{statistics.median(times):.1f}",
                f"{peak_mib(folder, which):.1f}",
                f"{checkpoint_mib(folder, which):.1f}",
            )
        ratios = [lora / full for lora, full in zip(found["lora"], found["full"])]
        print(f"lora/full: {statistics.median(ratios):.3f}, spread {spread(ratios):.3f}, {len(ratios)} pairs")


if __name__ == "__main__":
    main()
