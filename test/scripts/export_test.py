"""Trains captured models, exports them, loads the exports into PyTorch and transformers, and holds what those
compute against the replay of the captured layers with the run's weights, to the bit."""

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from forked import captured, stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, SOURCE, STAGECRAFT
from stagecraft_capture.replay import Replayed
from stagecraft_generate.command import program

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

MODELS = """
import torch, torchvision
from torch import nn

def resnet():
    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)  # Fashion-MNIST has one channel
    return model

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.head = nn.Linear(12, 10)
        self.never = nn.Linear(3, 3)  # no output depends on it
        self.again = self.head  # a second name
        self.register_buffer("mean", torch.full((1, 28, 28), 0.3))  # made part of a constant
        self.register_buffer("scratch", torch.full((1, 28, 28), 2.0), persistent=False)

    def forward(self, x):
        return self.head(self.body((x - self.mean) * self.scratch))

mine = Mine
"""


def sh(*command, fails=None):
    done = subprocess.run(
        [c if isinstance(c, bytes) else str(c) for c in command],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    return judged(done, fails)


def judged(done, fails):
    """What it said. `fails`: in its one line, and with exit code 2."""
    if fails is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert fails in done.stderr
        assert done.stderr.count("\n") == 1
    return done.stdout


def generate(*arguments, fails=None):
    """As `stagecraft generate` with these arguments, in a fork: the command's Python imports for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGECRAFT", STAGECRAFT)
        done = captured(["stagecraft-generate", *arguments], program)
    return judged(done, fails)


def capture(*arguments):
    done = stagecraft_capture(*arguments)
    assert done.returncode == 0, done.stderr


def train(folder, run, model, data, loss=None, **more):
    """The run's losses. No `loss`: the model's own."""
    config = {
        "model": model,
        "data": data,
        **({"loss": {"type": loss}} if loss else {}),
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 4,
        "train_steps": 3,
        **MEASURED_ONCE,
        "threads_per_rank": 1,
        "pipeline": {"stages": 2, "schedule": "zb_h1"},
        "run_dir": f"{folder}/{run}",
        **more,
    }
    with open(f"{folder}/{run}.json", "w") as file:
        json.dump(config, file)
    sh(STAGECRAFT, "train", f"{folder}/{run}.json")
    with open(f"{folder}/{run}/metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]


class Tensors:
    """Names and values of a layer as the capture had them, values of a checkpoint."""

    def __init__(self, layer, checkpoint, constants):
        self.names = {
            "p": layer["parameters"],
            "u": layer["buffers"],
            "c": layer["constants"],
            "f": layer.get("fields", []),
        }
        state = {}
        if layer["parameters"] or layer["buffers"]:
            state = safetensors.load_file(f"{checkpoint}/{layer['name']}.safetensors")
        self.values = {n: state[f"parameter/{n}"] for n in self.names["p"]} | {
            n: state[f"buffer/{n}"] for n in self.names["u"]
        }
        self.values |= {n: constants[n] for n in self.names["c"]}


def replayed(model, run, inputs):
    """The captured layers' evaluation, with the weights of the run's last checkpoint."""
    with open(f"{model}/manifest.json") as file:
        manifest = json.load(file)
    constants = (
        safetensors.load_file(f"{model}/constants.safetensors")
        if os.path.exists(f"{model}/constants.safetensors")
        else {}
    )
    checkpoint = max(os.scandir(f"{run}/checkpoints"), key=lambda entry: entry.name).path
    bundle = [inputs]
    for layer in manifest["layers"]:
        with open(f"{model}/graphs/{layer['graph']}.json") as file:
            graph = json.load(file)
        with torch.no_grad():
            bundle = Replayed(graph, Tensors(layer, checkpoint, constants)).evaluate(bundle, {})
    return bundle[0]


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a, b)


def from_pretrained(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(
        info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    ), info
    return model.eval()


TEXT = {"type": "text", "path": f"{SOURCE}/test/data/text/shakespeare.txt", "sequence": 16}
IMAGES = {"type": "idx", "path": f"{SOURCE}/test/data/fashion"}


@pytest.fixture(scope="module", autouse=True)
def models(folder):
    """The module with MODELS, a file."""
    Path(f"{folder}/models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("models")


def test_llama(folder):
    with open(f"{folder}/llama.json", "w") as file:
        json.dump(
            dict(
                model_type="llama",
                vocab_size=256,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            ),
            file,
        )
    folder_of_model = f"{folder}/llama.model"
    capture("--hf", f"{folder}/llama.json", "--sequence", "16", "--untie", "-o", folder_of_model)
    model = {"family": "captured", "path": folder_of_model}
    train(folder, "llama", model, TEXT)
    said = sh(STAGECRAFT, "export", f"{folder}/llama", "-o", f"{folder}/tuned")
    assert "21 tensors of step 3" in said and "in float32, 4 files" not in said, said
    tuned = from_pretrained(f"{folder}/tuned")
    tokens = torch.randint(256, (4, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = tuned(input_ids=tokens, use_cache=False).logits
    assert same(logits, replayed(folder_of_model, f"{folder}/llama", tokens)), (
        "the export's logits are the captured layers'"
    )
    assert not tuned.config.tie_word_embeddings

    about = json.loads(
        sh(
            STAGECRAFT,
            "export",
            f"{folder}/llama",
            "-o",
            f"{folder}/half",
            "--dtype",
            "bfloat16",
            "--shard",
            "30KB",
            "--json",
        )
    )
    assert about["dtype"] == "bfloat16" and sum("model-0000" in f["name"] for f in about["files"]) == 3, about
    with open(f"{folder}/half/model.safetensors.index.json") as file:
        assert json.load(file)["metadata"]["total_size"] == about["bytes"]
    half = from_pretrained(f"{folder}/half")
    assert half.dtype == torch.bfloat16
    for name, tensor in tuned.state_dict().items():
        assert same(half.state_dict()[name], tensor.bfloat16()), name

    # Trained on: from the export as weights of the same folder, and captured anew. Files of shards are read
    # alike.
    capture("--hf", f"{folder}/tuned", "--sequence", "16", "-o", f"{folder}/again.model")
    once = train(folder, "once", {**model, "weights": f"{folder}/tuned"}, TEXT)
    again = train(folder, "again", {"family": "captured", "path": f"{folder}/again.model"}, TEXT)
    shards = train(folder, "shards", {**model, "weights": f"{folder}/half"}, TEXT)
    assert once == again and shards != once and abs(shards[0] - once[0]) < 0.01, (once, again, shards)
    # A tied model's file has no head: it begins as a copy.
    tied = {
        n: t
        for n, t in safetensors.load_file(f"{folder}/tuned/model.safetensors").items()
        if n != "lm_head.weight"
    }
    safetensors.save_file(tied, f"{folder}/tied.safetensors")
    train(folder, "tied", {**model, "weights": f"{folder}/tied.safetensors"}, TEXT, train_steps=1)
    print(
        "llama: no key missing or unexpected, logits equal, shards of bfloat16 load, trains on from its"
        " export"
    )


def test_generate(folder):
    """What the run's model writes is what transformers writes with its export."""
    tuned = from_pretrained(f"{folder}/tuned")
    prompt = "To be or not"
    ids = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        made = tuned.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
    expected = bytes(made[0, ids.shape[1] :].tolist()).decode(errors="replace")
    greedy = ("--prompt", prompt, "--max-new-tokens", "12", "--temperature", "0")
    checkpoint = f"{folder}/llama/checkpoints/step-00000003"
    for said in (
        generate(f"{folder}/llama", *greedy, "--json"),
        sh(STAGECRAFT, "generate", checkpoint, *greedy, "--json"),  # which finds the tool and the engine
    ):
        assert json.loads(said) == {"prompt": prompt, "text": expected, "new_tokens": 12}
    assert generate(f"{folder}/llama", *greedy) == prompt + expected + "\n"
    drawn = [
        generate(
            f"{folder}/llama",
            "--prompt",
            "a",
            "--temperature",
            "2",
            "--seed",
            str(seed),
        )
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]

    sh(STAGECRAFT, "generate", f"{folder}/none", *greedy, fails="none: no such folder")
    generate(f"{folder}/llama.json", *greedy, fails="llama.json: is no folder")
    sh(
        STAGECRAFT,
        "generate",
        f"{folder}/llama",
        "--prompt",
        b"a\xff",
        fails="--prompt: is no text in UTF-8: byte 1",
    )
    generate(
        f"{folder}/llama",
        "--prompt",
        "a" * 5000,
        fails="has 5000 tokens, and the model takes",
    )
    sh(
        STAGECRAFT,
        "generate",
        f"{folder}/llama",
        "--prompt",
        "",
        fails="--prompt: expected something, found an empty text",
    )
    generate(f"{folder}/tuned", *greedy, fails="has no tokenizer beside its model")
    generate(f"{folder}/llama.model", *greedy, fails="stagecraft-generate: ")


def test_generate_by_tokenizer(folder):
    """A tokenizer beside the model travels into the export, and the text is decoded by it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source = Path(f"{folder}/worded")
    source.mkdir()
    words = ["<end>", "the", "king", "and", "queen", "said"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    config = transformers.GPT2Config(vocab_size=len(words), n_positions=16, n_embd=16, n_layer=2, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(source)
    capture("--hf", str(source), "--sequence", "8", "-o", f"{folder}/worded.model")
    data = {"type": "synthetic", "task": "tokens", "samples": 24, "shape": [8], "classes": len(words)}
    train(folder, "worded_run", {"family": "captured", "path": f"{folder}/worded.model"}, data)
    said = generate(f"{folder}/worded_run", "--prompt", "the king", "--max-new-tokens", "5")
    assert said.startswith("the king") and set(said.split()) <= set(words), said


def test_torchvision(folder, models):
    capture(f"{folder}/models.py:resnet", "--input", "1,28,28", "-o", f"{folder}/resnet.model")
    train(
        folder,
        "resnet",
        {"family": "captured", "path": f"{folder}/resnet.model"},
        IMAGES,
        "cross_entropy",
        train_steps=2,
    )
    sh(STAGECRAFT, "export", f"{folder}/resnet", "-o", f"{folder}/resnet-tuned")
    model = models.resnet()
    model.load_state_dict(safetensors.load_file(f"{folder}/resnet-tuned/model.safetensors"), strict=True)
    assert model.bn1.num_batches_tracked > 0 and model.bn1.running_mean.abs().sum() > 0
    images = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        assert same(model.eval()(images), replayed(f"{folder}/resnet.model", f"{folder}/resnet", images))
    assert os.listdir(f"{folder}/resnet-tuned").__len__() == 2, (
        "Hugging Face's files belong to its models alone"
    )
    print("resnet18: load_state_dict(strict=True), logits equal")


def test_state(folder, models):
    """Weights that no layer trains, second names, buffers of all kinds."""
    torch.manual_seed(0)  # as the capture does
    before = models.mine().state_dict()
    capture(f"{folder}/models.py:mine", "--input", "1,28,28", "-o", f"{folder}/mine.model")
    with open(f"{folder}/mine.model/manifest.json") as file:
        manifest = json.load(file)
    assert set(manifest["untrained"]) == {"mean", "never.weight", "never.bias"}, manifest["untrained"]
    model = {"family": "captured", "path": f"{folder}/mine.model"}
    train(folder, "mine", model, IMAGES, "cross_entropy")
    sh(STAGECRAFT, "export", f"{folder}/mine", "-o", f"{folder}/mine-tuned")
    after = safetensors.load_file(f"{folder}/mine-tuned/model.safetensors")
    mine = models.mine()
    mine.load_state_dict(after, strict=True)
    for name in ("mean", "never.weight", "never.bias"):
        assert same(after[name], before[name]), name
    assert not same(after["head.weight"], before["head.weight"]) and same(
        after["head.weight"], after["again.weight"]
    )
    images = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        assert same(mine.eval()(images), replayed(f"{folder}/mine.model", f"{folder}/mine", images))
    train(folder, "mine_on", {**model, "weights": f"{folder}/mine-tuned"}, IMAGES, "cross_entropy")
    safetensors.save_file(
        {**{n: t.clone() for n, t in after.items()}, "mean": after["mean"] + 1}, f"{folder}/other.safetensors"
    )
    with open(f"{folder}/mine_on.json") as file:
        config = json.load(file)
    config["model"]["weights"], config["run_dir"] = f"{folder}/other.safetensors", f"{folder}/none"
    with open(f"{folder}/none.json", "w") as file:
        json.dump(config, file)
    sh(
        STAGECRAFT,
        "train",
        f"{folder}/none.json",
        fails='tensor "mean" has other values than the capture made constants of',
    )
    print(
        "a module of one's own: load_state_dict(strict=True), untrained weights unchanged, second names,"
        " logits equal"
    )


def test_built_in(folder):
    train(folder, "mlp", {"family": "mlp", "hidden": [16]}, IMAGES, "cross_entropy")
    sh(STAGECRAFT, "export", f"{folder}/mlp", "-o", f"{folder}/mlp-out", "--dtype", "float16")
    weights = safetensors.load_file(f"{folder}/mlp-out/model.safetensors")
    assert len(weights) == 4 and all(t.dtype == torch.float16 for t in weights.values()), weights.keys()
    print(f"mlp: {', '.join(weights)}")


def test_refusals(folder):
    run = f"{folder}/llama"

    def files():
        return sorted(name for name in os.listdir(folder))

    before = files()
    sh(
        STAGECRAFT,
        "export",
        run,
        "-o",
        f"{folder}/x",
        "--step",
        "2",
        fails="has no checkpoint of step 2; it has those of 3",
    )
    sh(STAGECRAFT, "export", run, "-o", folder, fails="which no export wrote")
    sh(STAGECRAFT, "export", run, "-o", f"{folder}/x", "--shard", "many", fails="expected a size like 5GB")
    sh(STAGECRAFT, "export", run, "-o", f"{folder}/x", "--model", f"{folder}/resnet.model", fails="")
    sh(
        STAGECRAFT,
        "export",
        run,
        "-o",
        f"{folder}/x",
        "--model",
        f"{folder}/none",
        fails="give --model FOLDER",
    )
    sh(STAGECRAFT, "export", f"{folder}/llama.model", "-o", f"{folder}/x", fails="is a model folder that")
    weights = f"{run}/checkpoints/step-00000003/lm_head.safetensors"
    with open(weights, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    sh(STAGECRAFT, "export", run, "-o", f"{folder}/x", fails="lm_head.safetensors: is corrupt")
    sh(STAGECRAFT, "export", run, "-o", f"{folder}/tuned", fails="is corrupt")
    assert files() == before and os.path.exists(f"{folder}/tuned/model.safetensors"), (
        "nothing is left aside, and what was there stays"
    )
    print("refusals: one line each, nothing left aside")
