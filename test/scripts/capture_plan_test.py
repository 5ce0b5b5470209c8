#!/usr/bin/env python3
"""What planning a captured model needs: its multiply-adds, captures without weights, profiles by graph, and estimates.

    capture_plan_test.py SOURCE_DIR STAGECRAFT          exits with 77 where transformers or safetensors is missing
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), sys.argv[2]
TEXT = {"type": "text", "path": f"{SOURCE}/test/data/text/shakespeare.txt", "sequence": 16}
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}/python", "OMP_NUM_THREADS": "1"}

OUR_GPT = '''
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.project = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        parts = [p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, 2)]
        y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.project(y.transpose(1, 2).flatten(2))

class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.expand, self.project = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.project(nn.functional.gelu(self.expand(self.norm(x))))

class Embedding(nn.Module):
    def __init__(self, vocabulary, tokens, width):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)

    def forward(self, x):
        return self.token(x) + self.position(torch.arange(x.shape[1]))

def build():
    blocks = [m for _ in range(2) for m in (Attention(32, 4), FeedForward(32))]
    return nn.Sequential(Embedding(256, 16, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 256))
'''

CONVOLUTIONS = '''
from torch import nn
build = lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ConvTranspose2d(4, 6, 2, stride=2), nn.Flatten(), nn.Linear(96, 3))
'''


def run(*command, code=0):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def capture(*arguments, code=0):
    return run(sys.executable, "-m", "stagecraft_capture", *arguments, code=code)


def write(path, contents):
    with open(path, "w") as file:
        file.write(contents if isinstance(contents, str) else json.dumps(contents))
    return path


def read(path):
    with open(path) as file:
        return json.load(file)


def config_of(model, **others):
    return {"model": model, "data": TEXT, "loss": {"type": "token_cross_entropy"}, "optimizer": {"type": "AdamW"}, "train_batch_size": 4,
            "train_micro_batch_size_per_gpu": 2, "train_steps": 4, "threads_per_rank": 1, **others}


def counted(folder, name, model):
    """Multiply-adds of one sample's forward, from what a run says of its rate."""
    run(STAGECRAFT, "train", write(f"{folder}/run.json", config_of(model)), "--set", f"run_dir={folder}/{name}")
    summary = read(f"{folder}/{name}/summary.json")
    return round(summary["flops_per_second"] / summary["samples_per_second"] / 6, 3)


def test_multiply_adds():
    with tempfile.TemporaryDirectory() as folder:
        capture(write(f"{folder}/gpt.py", OUR_GPT) + ":build", "--sequence", 16, "--vocabulary", 256, "-o", f"{folder}/gpt.model")
        ours = counted(folder, "ours", {"family": "gpt", "blocks": 2, "width": 32, "heads": 4})
        captured = counted(folder, "captured", {"family": "captured", "path": f"{folder}/gpt.model"})
        assert ours == captured == 2 * (12 * 16 * 32 * 32 + 2 * 16 * 16 * 32) + 16 * 32 * 256, (ours, captured)
        capture(write(f"{folder}/conv.py", CONVOLUTIONS) + ":build", "--input", "2,9,9", "-o", f"{folder}/conv.model")
        manifest = read(f"{folder}/conv.model/manifest.json")
        found = [read(f"{folder}/conv.model/graphs/{layer['graph']}.json")["multiply_adds"] for layer in manifest["layers"]]
        assert found == [4 * 4 * 4 * 2 * 9, 4 * 2 * 2 * 2 * 9, 2 * 2 * 4 * 6 * 4, 4 * 4 * 6 * 3], found
        print(f"multiply-adds of a GPT: {ours} in our layers and captured; of convolutions: {found}")


if __name__ == "__main__":
    test_multiply_adds()
