#!/usr/bin/env python3
"""Captures a PyTorch model, profiles and plans it, and splits the model where docs/guides/pytorch.md says:
PyTorch's own pipeline() must take the split and make the plan's stages.

    pytorch_split_test.py SOURCE_DIR STAGECRAFT          exits with 77 where safetensors is missing
"""

import json
import os
import re
import subprocess
import sys
import tempfile

import uncollected  # noqa: F401  # before PyTorch

try:
    import safetensors.torch
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)
import torch
from torch.distributed.pipelining import pipeline

from forked import stagecraft_capture
from torch_model import convnet

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path.insert(0, f"{SOURCE}/python")
RUN = {
    "model": {"family": "captured", "path": "mine.model"},
    "data": {"type": "synthetic", "samples": 64, "shape": [1, 28, 28], "classes": 10},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW"},
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 1,
    "threads_per_rank": 1,
    "profiler": {"repeats": 2, "warmup_ms": 0},
}


def run(*command):
    subprocess.run(
        list(map(str, command)),
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def snippet():
    with open(f"{SOURCE}/docs/guides/pytorch.md") as page:
        return re.search(r"```python\n(import json\n.*?)```", page.read(), re.DOTALL)[1]


def main():
    done = stagecraft_capture(
        f"{SOURCE}/test/scripts/torch_model.py:convnet", "--input", "1,28,28", "-o", "mine.model"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open("run.json", "w") as file:
        json.dump(RUN, file)
    run(STAGECRAFT, "profile", "run.json", "-o", "profile.json")
    run(
        STAGECRAFT,
        "plan",
        "--profile",
        "profile.json",
        "--cluster",
        f"{SOURCE}/configs/clusters/one-machine-4-pcie.json",
        "--micro-batch-size",
        4,
        "--micro-batches",
        4,
        "--stages",
        3,
        "-o",
        "plan.json",
    )
    said = {}
    exec(snippet(), said)
    with open("plan.json") as plan, open("mine.model/manifest.json") as manifest:
        stages, layers = json.load(plan)["stages"], json.load(manifest)["layers"]
    pipe = pipeline(convnet(), mb_args=(torch.randn(4, 1, 28, 28),), split_spec=said["split_spec"])
    assert pipe.num_stages == len(stages) == 3
    for i, stage in enumerate(stages):
        made = {name for name, _ in pipe.get_stage_module(i).named_parameters()}
        wanted = {
            name
            for layer in layers[stage["first_layer"] : stage["last_layer"]]
            for name in layer["parameters"]
        }
        assert made == wanted and wanted, (i, made, wanted)
    print(f"split before {', '.join(said['split_spec'])}: the stages have the plan's parameters")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
