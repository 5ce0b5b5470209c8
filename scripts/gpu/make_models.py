#!/usr/bin/env python3
"""Captured models of the bundle, small, and configs that train them, into OUT/captured: what the part
`captured` trains on the CPU and on the GPU.

    make_models.py OUT

Needs what scripts/setup.sh --models brings.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEQUENCE, VOCABULARY = 64, 96
TEXT = {
    "type": "synthetic",
    "task": "tokens",
    "samples": 64,
    "validation_samples": 0,
    "shape": [SEQUENCE],
    "classes": VOCABULARY,
}
IMAGES = {**TEXT, "task": "classification", "classes": 10}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": SEQUENCE,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": SEQUENCE,
}
MODULES = {
    "convolutional": (f"{ROOT}/scripts/gpu/modules.py:convolutional", [3, 64, 64]),
    "vit": (f"{ROOT}/scripts/gpu/modules.py:vision", [3, 32, 32]),
    "recurrent": (f"{ROOT}/scripts/gpu/modules.py:Recurrent", [8, 10]),
}


def capture(*words):
    subprocess.run([ROOT / "scripts/stagecraft-capture", *words], check=True, stdout=subprocess.DEVNULL)


def main():
    out = Path(sys.argv[1]) / "captured"
    out.mkdir(parents=True, exist_ok=True)

    def configure(name, data):
        config = {
            "model": {"family": "captured", "path": f"captured/{name}.model"},
            "data": data,
            "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
            "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 4,
            "train_steps": 4,
            "steps_per_print": 0,
            "threads_per_rank": 1,
            "pipeline": {"schedule": "1f1b", "stages": 1},
        }
        (out / f"{name}.json").write_text(json.dumps(config, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        for name, config in {"llama": LLAMA, "gpt2": GPT2}.items():
            file = Path(folder) / f"{name}.json"
            file.write_text(json.dumps(config))
            capture("--hf", file, "--sequence", str(SEQUENCE), "-o", out / f"{name}.model")
            configure(name, TEXT)
    for name, (module, sizes) in MODULES.items():
        capture(
            module,
            "--input",
            ",".join(map(str, sizes)),
            "--loss",
            "cross_entropy",
            "-o",
            out / f"{name}.model",
        )
        configure(name, {**IMAGES, "shape": sizes})


if __name__ == "__main__":
    main()
