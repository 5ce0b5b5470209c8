"""Captures PyTorch models and holds every layer's replay against eager, to the bit; and tries what is
refused."""

import json
import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
torchvision = pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from capture_cases import equal, equal_model, nn, numbers, refused, tokens
from forked import stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, SOURCE, STAGECRAFT
from stagecraft_capture import operators
from stagecraft_capture.capture import capture
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.folder import graph_name
from stagecraft_capture.tasks import Images, Logits


# Forks come before this process runs a backward (forked.py).
def in_a_process(*arguments, before=""):
    """`before`: a folder that Python looks into first."""
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{before}:{SOURCE}/python".strip(":")}
    return subprocess.run(
        [sys.executable, "-m", "stagecraft_capture", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_command(folder):
    model = f"{folder}/mine.py"
    with open(model, "w") as file:
        file.write(
            "from torch import nn\nbuild = lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8),"
            " nn.ReLU(), nn.Linear(8, 4))\nclass Two(nn.Linear):\n    def __init__(self):\n       "
            " super().__init__(4, 4)\n    def forward(self, x, mask):\n        return super().forward(x)"
            " * mask\n"
        )
    out = f"{folder}/mine.model"
    done = in_a_process(f"{model}:build", "--input", "1,4,4", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "output equals eager's, 4 of 4 gradients equal eager's" in done.stdout, done.stdout
    with open(f"{out}/manifest.json") as file:
        manifest = json.load(file)
    weights = safetensors.load_file(f"{out}/weights.safetensors")
    assert set(weights) == set(manifest["weights"])
    assert manifest["input"] == "f32[b,1,4,4]" and manifest["output"] == "f32[b,4]", manifest
    assert stagecraft_capture(f"{model}:build", "--input", "1,4,4", "-o", out).returncode == 0, (
        "a model folder may be replaced"
    )
    for arguments, said in (
        ([f"{model}:nope", "--input", "1"], "has no 'nope'; it has"),
        ([f"{folder}/none.py:build", "--input", "1"], "there is no such file"),
        ([f"{model}:build", "--input", "4,x"], "expected sizes of one sample"),
        ([f"{model}:build"], "give --input SIZES"),
        (
            [f"{model}:build", "--input", "3,4,4"],
            "module '1': the model fails on samples of input of float32[2, 3, 4, 4]",
        ),
        (["--hf", model, "--sequence", "8"], "cannot be read as a config"),
        ([f"{model}:Two", "--input", "4"], "forward needs 'mask': give --field mask=TYPE[SIZES]"),
        ([f"{model}:Two", "--input", "4", "--field", "mask=i65[4]"], "expected NAME=TYPE[SIZES]"),
        (
            [f"{model}:build", "--input", "1,4,4", "--loss", "entropy"],
            "expected cross_entropy, mse or FILE.py:NAME",
        ),
    ):
        failed = stagecraft_capture(*arguments, "-o", f"{folder}/x.model")
        assert failed.returncode == 2 and said in failed.stderr, failed.stderr
        assert "Traceback" not in failed.stderr and not os.path.exists(f"{folder}/x.model")
    failed = stagecraft_capture(f"{model}:build", "--input", "1,4,4", "-o", folder)
    assert failed.returncode == 2 and "stagecraft-capture did not make it" in failed.stderr, failed.stderr
    for version in ("2.1.0", "2.13.1+cpu", "2.99.0", "3.15.0"):
        os.makedirs(f"{folder}/{version}/torch-{version}.dist-info")
        with open(f"{folder}/{version}/torch-{version}.dist-info/METADATA", "w") as file:
            file.write(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        failed = in_a_process(
            f"{model}:build", "--input", "1,4,4", "-o", f"{folder}/x.model", before=f"{folder}/{version}"
        )
        said = f"stagecraft-capture: this Python has torch {version.partition('+')[0]}, expected 2."
        assert failed.returncode == 2 and failed.stderr.startswith(said) and failed.stderr.count("\n") == 1, (
            failed.stderr
        )


def train(folder, config, run, *settings):
    """Losses of a run, as they stand in metrics.jsonl."""
    with open(f"{folder}/run.json", "w") as file:
        json.dump(config, file)
    changes = [part for setting in (f"run_dir={folder}/{run}", *settings) for part in ("--set", setting)]
    done = subprocess.run(
        [STAGECRAFT, "train", f"{folder}/run.json", *changes],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with open(f"{folder}/{run}/metrics.jsonl") as file:
        return [json.loads(line)["loss"] for line in file]


def test_training(folder):
    """A captured model's pipelined runs equal the run of one stage."""
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
            ),
            file,
        )
    done = stagecraft_capture(
        "--hf",
        f"{folder}/llama.json",
        "--sequence",
        "16",
        "--untie",
        "--fields",
        "",
        "-o",
        f"{folder}/llama.model",
    )
    assert done.returncode == 0, done.stderr
    with open(f"{folder}/mine.py", "w") as file:
        file.write(
            "from torch import nn\nbuild = lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1),"
            " nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 8, 3), nn.MaxPool2d(2),"
            " nn.Flatten(), nn.Linear(1352, 10))\n"
        )
    done = stagecraft_capture(f"{folder}/mine.py:build", "--input", "1,28,28", "-o", f"{folder}/mine.model")
    assert done.returncode == 0, done.stderr
    text = {"type": "text", "path": f"{SOURCE}/test/data/text/shakespeare.txt", "sequence": 16}
    images = {"type": "idx", "path": f"{SOURCE}/test/data/fashion"}
    for name, data, loss in (("llama", text, "token_cross_entropy"), ("mine", images, "cross_entropy")):
        config = {
            "model": {"family": "captured", "path": f"{folder}/{name}.model"},
            "data": data,
            "loss": {"type": loss},
            "optimizer": {"type": "AdamW"},
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 4,
            "train_steps": 4,
            **MEASURED_ONCE,
            "threads_per_rank": 1,
        }
        one = train(folder, config, name + "_one", "pipeline.stages=1")
        assert len(one) == 5 and one[3] < one[0], one  # and a validation
        split = train(folder, config, name + "_split", "pipeline.stages=2", "pipeline.schedule=zb_h1")
        again = train(
            folder,
            config,
            name + "_again",
            "pipeline.stages=2",
            "activation_checkpointing.recompute=all",
        )
        assert one == split == again, (one, split, again)
        print(f"{name}: losses of 1 stage, of zb_h1 on 2 and of 1f1b with recomputation are equal: {one}")


def sequential():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(16, 16),
        nn.GELU(),
        nn.LayerNorm(16),
        nn.Linear(16, 4),
    )


def test_models():
    torch.manual_seed(0)
    equal("sequential, with dropout", sequential(), numbers(8, name="input"), 3)
    equal(
        "dropout of nearly all",
        nn.Sequential(nn.Linear(8, 256), nn.Dropout(0.999), nn.Linear(256, 4)),
        numbers(8, name="input"),
        2,
    )
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    equal("batch norm", convolutions, numbers(3, 8, 8, name="input"), 3)
    # Networks for images, llama, gpt2 and bert: eager_loop_test.py, whose captures are checked alike. The
    # latter two with dropout: test_keep and capture_fields_test.py.


class Attention(nn.Module):
    """As nanoGPT writes it."""

    def __init__(self, width, heads):
        super().__init__()
        self.c_attn, self.c_proj = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.attn_dropout, self.resid_dropout, self.heads = nn.Dropout(0.1), nn.Dropout(0.1), heads
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(c, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / (c // self.heads) ** 0.5)
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")).softmax(dim=-1)
        y = (self.attn_dropout(scores) @ v).transpose(1, 2).contiguous().view(b, t, c)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(width, bias=False),
            Attention(width, heads),
            nn.LayerNorm(width),
        )
        self.mlp = nn.ModuleDict(
            dict(
                c_fc=nn.Linear(width, 4 * width),
                gelu=nn.GELU(),
                c_proj=nn.Linear(4 * width, width),
                dropout=nn.Dropout(0.1),
            )
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        mlp = self.mlp
        return x + mlp.dropout(mlp.c_proj(mlp.gelu(mlp.c_fc(self.ln_2(x)))))


class HandWritten(nn.Module):
    """A GPT as nanoGPT's."""

    def __init__(self, width=32, heads=4, layers=2):
        super().__init__()
        blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(96, width),
                wpe=nn.Embedding(16, width),
                drop=nn.Dropout(0.1),
                h=blocks,
                ln_f=nn.LayerNorm(width),
            )
        )
        self.lm_head = nn.Linear(width, 96, bias=False)

    def forward(self, input_ids):
        positions = torch.arange(0, input_ids.size(1), dtype=torch.long, device=input_ids.device)
        x = self.transformer.drop(self.transformer.wte(input_ids) + self.transformer.wpe(positions))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def test_own_models():
    """Modules as people write them."""
    torch.manual_seed(0)
    layers = equal("a GPT by hand", HandWritten(), tokens(96), 7)
    assert (
        len({graph_name(layer.graph) for layer in layers if layer.name.startswith("transformer.h.")}) == 2
    ), [layer.name for layer in layers]

    def encoder(**how):
        return nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, **how)

    stack = nn.Sequential(
        nn.Linear(8, 16),
        encoder(),
        encoder(norm_first=True, activation="gelu"),
        nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False),
        nn.Linear(16, 4),
    )
    equal("encoders of torch.nn", stack, numbers(12, 8, name="input"), 7)
    nested = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True))),
        nn.Sequential(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), nn.MaxPool2d(2)),
        nn.Flatten(),
        nn.Sequential(nn.Sequential(nn.Linear(32, 10))),
    )
    equal("nested sequentials", nested, numbers(3, 8, 8, name="input"), 4)


def count_steps(layers, part, operator):
    return sum(step[0] == operator for layer in layers for step in layer.graph[part]["steps"])


def test_keep():
    """What is made again changes no bit and saves what it says; nothing random and no product is made
    again."""
    torch.manual_seed(0)
    gpt2 = transformers.GPT2Config(
        vocab_size=96,
        n_positions=32,
        n_embd=32,
        n_layer=1,
        n_head=4,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(288, 10),
    )
    for name, module, batch, least_saved in (
        ("gpt2", Logits(transformers.GPT2LMHeadModel(gpt2)), tokens(96), 0.3),
        ("batch norm", convolutions, numbers(3, 8, 8, name="input"), 0.2),
    ):
        plain = capture(module, batch, budget=0.0).layers
        cheap = equal(f"{name}, all that is cheap made again", module, batch, 2, budget=10.0)
        kept, kept_all = sum(layer.kept for layer in cheap), sum(layer.kept_all for layer in cheap)
        print(f"{name}: keeps {kept} of {kept_all} bytes per sample")
        assert all(layer.kept == layer.kept_all for layer in plain) and kept_all == sum(
            layer.kept for layer in plain
        ), name
        assert kept <= (1 - least_saved) * kept_all, (name, kept, kept_all)
        for operator in (
            "aten::mm",
            "aten::addmm",
            "aten::bmm",
            "aten::convolution",
            "stagecraft::dropout",
            "aten::_softmax",
        ):
            assert count_steps(cheap, "backward_input", operator) == count_steps(
                plain, "backward_input", operator
            ), (name, operator)


class StochasticDepth(nn.Module):
    """As transformers draw it, and as torchvision does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        if self.training:
            keep = torch.rand((y.shape[0], 1)) + 0.8
            y = y.div(0.8) * keep.floor_()
        return torchvision.ops.stochastic_depth(self.b(x + y), 0.3, "row", self.training) + x


class Variational(nn.Module):
    """An encoder of means and deviations, and a decoder of what is drawn with them."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x):
        mean, deviation = self.encode(x).chunk(2, -1)
        if self.training:
            mean = mean + torch.randn_like(mean) * (0.5 * deviation).exp() + 0.1 * torch.randn(mean.shape)
        return self.decode(mean)


class ByWeights(nn.Module):
    """Gradients of weights that read weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.weight, self.scale = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x):
        return (
            nn.functional.linear(self.first(x), nn.functional.softplus(self.weight) * self.scale.exp())
            + (self.weight * self.scale)[0]
        )


def test_noise_and_weights():
    torch.manual_seed(0)
    layers = equal(
        "stochastic depth", nn.Sequential(nn.Linear(8, 8), StochasticDepth()), numbers(8, name="input"), 2
    )
    drawn = [
        step
        for layer in layers
        for step in layer.graph["forward"]["steps"]
        if step[0] in ("stagecraft::uniform", "stagecraft::bernoulli")
    ]
    assert [step[0] for step in drawn] == ["stagecraft::uniform", "stagecraft::bernoulli"], drawn
    assert drawn[0][2] != drawn[1][2][1:], "streams differ"
    assert not any(
        "::bernoulli" in step[0] or "::uniform" in step[0]
        for layer in layers
        for step in layer.graph["evaluate"]["steps"]
    )
    layers = equal("a variational autoencoder", Variational(), numbers(8), 2)
    drawn = [
        step[2]
        for layer in layers
        for step in layer.graph["forward"]["steps"]
        if step[0] == "stagecraft::normal"
    ]
    assert len(drawn) == 2 and drawn[0] != drawn[1], drawn
    equal(
        "gradients that read weights",
        nn.Sequential(nn.Linear(8, 8), ByWeights(), nn.Linear(8, 4)),
        numbers(8, name="input"),
        3,
    )
    in_place = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.SiLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2, inplace=True),
        nn.Linear(8, 4),
    )
    equal("dropout in place behind a view", in_place, numbers(3, 8, 8, name="input"), 2)
    convnext = transformers.ConvNextConfig(
        num_stages=2, hidden_sizes=[8, 16], depths=[1, 1], drop_path_rate=0.2, image_size=32, num_labels=10
    )
    equal(
        "convnext of transformers",
        Images(transformers.ConvNextForImageClassification(convnext)),
        numbers(3, 32, 32, name="pixel_values"),
        5,
    )


def test_cuts():
    """By paths, of a model of transformers; and by size, of a model that is quicker to capture."""
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    llama = Logits(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=2)))

    def named(module, batch, choice):
        return [layer.name.removeprefix("wrapped.") for layer in capture(module, batch, choice=choice).layers]

    def names(choice):
        return named(llama, tokens(96), choice)

    def by_size(choice):
        return named(sequential(), numbers(8, name="input"), choice)

    assert names("model.layers.*,lm_head") == [
        "model.embed_tokens",
        "model.layers.0",
        "model.layers.1",
        "model.norm",
        "lm_head",
    ]
    assert len(by_size("narrow:3")) == 3
    for cut, choice, said in (
        (names, "model.layer.*", "no module has such a path; near ones are model.layers."),
        (names, "narrow:x", "expected a number of layers"),
        (by_size, "narrow:9999", "can be cut into"),
    ):
        with pytest.raises(CaptureError) as error:
            cut(choice)
        assert said in str(error.value)


def test_operator_list():
    """The tool's list of operators is the engine's."""
    with open(f"{SOURCE}/models/captured/operators/operators.cpp") as file:
        listed = re.findall(r'Operator\{"aten::([^"]+)"', file.read())
    assert listed and set(listed) == operators.NAMES, set(listed) ^ operators.NAMES


class Channels(nn.Module):
    """Its gradient has channels first in memory, its values have them last."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm, self.mix = (
            nn.Parameter(torch.ones(24)),
            nn.LayerNorm(24),
            nn.Conv1d(24, 24, 1, groups=4),
        )

    def forward(self, x):
        return self.norm(self.mix((x * self.scale).permute(0, 2, 1)).permute(0, 2, 1))


def test_layouts():
    """Gradients at cuts lie as eager's do: sums over them depend on it."""
    torch.manual_seed(0)
    equal(
        "gradients with another order of memory",
        nn.Sequential(Channels(), Channels(), nn.LayerNorm(24)),
        numbers(40, 24, name="input"),
        4,
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.middle = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, input_ids):
        return self.middle(self.embedding(input_ids)) @ self.embedding.weight.t()


def test_ties():
    """A weight that two layers name is one weight, under its first name, and its gradient their sum."""
    model = equal_model("tied embedding", Tied(), tokens(20), 3)
    assert [layer.tensors.names["p"] for layer in model.layers] == [
        ["embedding.weight"],
        ["middle.weight", "middle.bias"],
        ["embedding.weight"],
    ], [layer.tensors.names for layer in model.layers]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class Chooses(nn.Module):
    def forward(self, x):
        return x * x[x > 0].sum()


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("no such luck")


class Numpy(nn.Module):
    def forward(self, x):
        return x + torch.from_numpy(x.detach().numpy())


class Draws(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x + torch.empty_like(x).exponential_())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x), x


def test_refusals():
    def inside(module):
        return nn.Sequential(nn.Linear(8, 8), module, nn.Linear(8, 4))

    refused(
        "a branch on data",
        inside(Branches()),
        numbers(8, name="input"),
        "module '1', File",
        "capture_test.py",
        "(return self.layer(x) if x.sum() > 0 else x)",
        "torch.where",
    )
    refused(
        "a size of data",
        inside(Chooses()),
        numbers(8, name="input"),
        "module '1', File",
        "capture_test.py",
        "aten.index.Tensor makes a size",
        "torch.where",
    )
    refused(
        "an exception in forward",
        inside(Fails()),
        numbers(8, name="input"),
        "module '1', File",
        "capture_test.py",
        "fails in eager mode too, with input of [2, 8]: ValueError: no such luck",
    )
    refused(
        "numpy",
        inside(Numpy()),
        numbers(8, name="input"),
        "module '1', File",
        "capture_test.py",
        "torch.export cannot follow the model",
        ".numpy()",
    )
    refused("random numbers", Draws(), numbers(8), "draws random numbers", "capture_test.py")
    refused("two results", Pair(), numbers(8), "returns 2 tensors")
