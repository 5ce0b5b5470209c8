"""What planning a captured model needs: its multiply-adds, captures without weights, profiles by graph, and
estimates."""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="scripts/setup.sh --models installs it")
pytest.importorskip("safetensors", reason="scripts/setup.sh --models installs it")
pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from forked import stagecraft_capture
from places import ENVIRONMENT, SOURCE, STAGECRAFT
from stagecraft_capture.small_twin import small_config

TEXT = {"type": "text", "path": f"{SOURCE}/test/data/text/shakespeare.txt", "sequence": 16}

OUR_GPT = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        parts = [p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, 2)]
        y = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.project(y.transpose(1, 2).flatten(2))

class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.expand = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)

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
"""

CONVOLUTIONS = """
from torch import nn
build = lambda: nn.Sequential(
    nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2),
    nn.ConvTranspose2d(4, 6, 2, stride=2), nn.Flatten(), nn.Linear(96, 3))
"""


def said(done, code=0):
    assert done.returncode == code, f"{done.args}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def run(*command, code=0):
    return said(
        subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT, check=False
        ),
        code,
    )


def capture(*arguments, code=0):
    return said(stagecraft_capture(*arguments), code)


def write(path, contents):
    Path(path).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return path


def read(path):
    return json.loads(Path(path).read_text())


def config_of(model, **others):
    return {
        "model": model,
        "data": TEXT,
        "loss": {"type": "token_cross_entropy"},
        "optimizer": {"type": "AdamW"},
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "train_steps": 4,
        "threads_per_rank": 1,
        **others,
    }


def counted(folder, name, model):
    """Multiply-adds of one sample's forward, from what a run says of its rate."""
    run(
        STAGECRAFT,
        "train",
        write(f"{folder}/run.json", config_of(model)),
        "--set",
        f"run_dir={folder}/{name}",
    )
    summary = read(f"{folder}/{name}/summary.json")
    return round(summary["flops_per_second"] / summary["samples_per_second"] / 6, 3)


def test_multiply_adds(folder):
    capture(
        write(f"{folder}/gpt.py", OUR_GPT) + ":build",
        "--sequence",
        16,
        "--vocabulary",
        256,
        "-o",
        f"{folder}/gpt.model",
    )
    ours = counted(folder, "ours", {"family": "gpt", "blocks": 2, "width": 32, "heads": 4})
    captured = counted(folder, "captured", {"family": "captured", "path": f"{folder}/gpt.model"})
    assert ours == captured == 2 * (12 * 16 * 32 * 32 + 2 * 16 * 16 * 32) + 16 * 32 * 256, (
        ours,
        captured,
    )
    capture(
        write(f"{folder}/conv.py", CONVOLUTIONS) + ":build",
        "--input",
        "2,9,9",
        "-o",
        f"{folder}/conv.model",
    )
    manifest = read(f"{folder}/conv.model/manifest.json")
    found = [
        read(f"{folder}/conv.model/graphs/{layer['graph']}.json")["multiply_adds"]
        for layer in manifest["layers"]
    ]
    assert found == [4 * 4 * 4 * 2 * 9, 4 * 2 * 2 * 2 * 9, 2 * 2 * 4 * 6 * 4, 4 * 4 * 6 * 3], found
    print(f"multiply-adds of a GPT: {ours} in our layers and captured; of convolutions: {found}")


LLAMA = dict(
    model_type="llama",
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)


def test_no_weights(folder):
    """The same graphs as with weights; no run, but a profile and a plan."""
    config = write(f"{folder}/llama.json", LLAMA)
    said = capture("--hf", config, "--sequence", 16, "-o", f"{folder}/with.model")
    assert "captured in" in said and "15 layers, 5 graphs" in said, said
    assert (
        said.count("model.layers.0") == 2
        and "... 5 more of these 2, to model.layers.5.mlp" in said
        and "model.layers.3" not in said
    ), said
    said = capture("--hf", config, "--sequence", 16, "--no-weights", "-o", f"{folder}/without.model")
    assert (
        "the same config with 2 layers and small sizes, which has the same operators:\nchecked with" in said
    ), said
    assert "output equals eager's, loss equals eager's, 21 of 21 gradients equal eager's" in said, said
    ours, theirs = (
        read(f"{folder}/with.model/manifest.json"),
        read(f"{folder}/without.model/manifest.json"),
    )
    assert [layer["graph"] for layer in ours["layers"]] == [layer["graph"] for layer in theirs["layers"]]
    assert (
        ours["weights"] == theirs["weights"]
        and theirs["weights_stored"] is False
        and "weights_stored" not in ours
    )
    assert theirs["checked"]["of"] == "the same config with 2 layers and small sizes", theirs["checked"]
    assert not os.path.exists(f"{folder}/without.model/weights.safetensors")
    assert os.path.getsize(f"{folder}/without.model/constants.safetensors") < 20_000

    run_json = write(
        f"{folder}/run.json", config_of({"family": "captured", "path": f"{folder}/without.model"})
    )
    refused = run(STAGECRAFT, "train", run_json, "--set", f"run_dir={folder}/run", code=2)
    assert "--set model.weights=FOLDER" in refused and refused.count("\n") == 1, refused
    # Six blocks fit the caches of any machine, so that three of each kind are run.
    said = run(
        STAGECRAFT,
        "profile",
        run_json,
        "--set",
        "profiler.warmup_ms=0",
        "--repeats",
        3,
        "-o",
        f"{folder}/profile.json",
    )
    assert "6 of 15 layers were not run" in said, said


def test_no_twin(folder):
    """A model of one's own has none in small."""
    said = capture(
        write(f"{folder}/gpt.py", OUR_GPT) + ":build",
        "--sequence",
        16,
        "--vocabulary",
        256,
        "--no-weights",
        "-o",
        f"{folder}/gpt.model",
    )
    assert "NOT checked" in said and read(f"{folder}/gpt.model/manifest.json")["checked"] is None, said


def test_small_twins():
    """An encoder and a decoder may each have their own names of sizes."""
    t5 = small_config(
        {
            "num_layers": 24,
            "num_decoder_layers": 12,
            "num_heads": 128,
            "d_model": 1024,
            "d_kv": 128,
            "d_ff": 65536,
            "vocab_size": 32128,
        }
    )
    assert t5 == {
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 192,
        "vocab_size": 256,
    }, t5
    bart = small_config(
        {
            "encoder_layers": 12,
            "decoder_layers": 6,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
        }
    )
    assert set(bart.values()) == {2, 4, 192}, bart


def test_estimate(folder):
    """Of the config and the profile that test_no_weights() wrote."""
    run_json = f"{folder}/run.json"
    estimate = f"{folder}/estimate.json"
    said = run(
        STAGECRAFT, "profile", run_json, "--estimate", "--tflops", 1, "--memory-gbps", 100, "-o", estimate
    )
    assert "not measured. Times are estimates, multiply-adds and bytes at 1 TFLOP/s and 100 GB/s" in said, (
        said
    )
    profile = read(f"{folder}/profile.json")
    for theirs, ours in zip(
        profile["measurements"][0]["layers"], read(estimate)["measurements"][0]["layers"]
    ):
        for key, value in theirs.items():  # the rest is time
            if "transient" not in key and (key.endswith("_bytes") or isinstance(value, bool)):
                assert ours.get(key) == value, (ours["name"], key, value, ours.get(key))
    own_loss = f"{folder}/own_loss.json"
    write(own_loss, {key: value for key, value in read(run_json).items() if key != "loss"})
    for verb in (
        ["--repeats", 3, "--set", "profiler.warmup_ms=0"],
        ["--estimate", "--tflops", 1, "--memory-gbps", 100],
    ):
        run(STAGECRAFT, "profile", own_loss, *verb, "-o", f"{folder}/{len(verb)}.json")
    measured, thought = (read(f"{folder}/{n}.json")["measurements"][0] for n in (4, 5))
    assert measured["fields"] == thought["fields"] and measured["layers"][-1]["fields"] == thought["layers"][
        -1
    ]["fields"] == ["labels"]
    cluster = write(
        f"{folder}/cluster.json",
        {
            "levels": [{"count": 4, "link": {"latency_ms": 0.01, "bytes_per_second": 1e10}}],
            "memory_bytes": 2**26,
        },
    )
    said = run(
        STAGECRAFT,
        "plan",
        "--profile",
        estimate,
        "--cluster",
        cluster,
        "--micro-batches",
        8,
        "-o",
        f"{folder}/plan.json",
    )
    assert "Times are estimates, not measured" in said, said
    for arguments, wrong in (
        (["--estimate"], "--tflops N --memory-gbps N"),
        (["--tflops", 3], "give --estimate too"),
        (["--estimate", "--tflops", 1, "--memory-gbps", 1, "--repeats", 3], "measures nothing"),
    ):
        assert wrong in run(STAGECRAFT, "profile", run_json, *arguments, code=2)
    built_in = write(f"{folder}/gpt.json", config_of({"family": "gpt", "blocks": 1, "width": 8, "heads": 1}))
    assert "only captured models can be estimated" in run(
        STAGECRAFT, "profile", built_in, "--estimate", "--tflops", 1, "--memory-gbps", 1, code=2
    )
