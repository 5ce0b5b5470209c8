"""Captures a PyTorch model, profiles and plans it, and splits the model where docs/guides/pytorch.md says:
PyTorch's own pipeline() must take the split and make the plan's stages."""

import json
import re
import subprocess

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors", reason="scripts/setup.sh --models installs it")

from torch.distributed.pipelining import pipeline

from forked import stagecraft_capture
from places import ENVIRONMENT, SOURCE, STAGECRAFT
from torch_model import convnet

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
        env=ENVIRONMENT,
    )


def snippet():
    with open(f"{SOURCE}/docs/guides/pytorch.md") as page:
        return re.search(r"```python\n(import json\n.*?)```", page.read(), re.DOTALL)[1]


def test_split(scratch):
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
