#!/usr/bin/env python3
"""As eager_loop_test.py: training in mixed precision beside the loop that is written by hand for it, and a
model of recurrent layers."""

import json
import subprocess
from dataclasses import dataclass

import pytest

from eager_loop_test import (
    BERT,
    ENVIRONMENT,
    GPT2,
    LLAMA,
    MICRO_BATCHES,
    ONE_BLOCK,
    ONE_LAYER,
    OPTIMIZERS,
    SAMPLES,
    STAGECRAFT,
    STEPS,
    T5,
    TORCHVISION,
    apart,
    capture,
    compare,
    config_of,
    eager,
    exported,
    in_pairs,
    isolated,
    ours,
    padded,
    safetensors,
    sum_of_copies,
    tokens,
    torch,
    transformers,
    tried,
    two_texts,
    units,
    untied_copies,
)


def batches(data):
    """Of each step its micro-batches."""
    rows = [
        {name: array[i : i + SAMPLES] for name, array in data.items()}
        for i in range(0, STEPS * MICRO_BATCHES * SAMPLES, SAMPLES)
    ]
    return [rows[step * MICRO_BATCHES : (step + 1) * MICRO_BATCHES] for step in range(STEPS)]


def equal_shares(micro_batch, batch):
    return 1 / MICRO_BATCHES


@dataclass
class Mixed:
    """Training in mixed precision: a module in a narrow type, and float32 weights that steps update."""

    dtype: str
    narrow: object  # from the module in float32 to an equal one in the narrow type
    scale: int = 0  # the loss is multiplied by two to this power, and by half as much after each overflow
    full: str = ""  # --full

    def config(self):
        if self.dtype == "bfloat16":
            return {"bf16": {"enabled": True}}
        return {"fp16": {"enabled": True, "initial_scale_power": self.scale, "hysteresis": 1}}

    def arguments(self):
        return ["--dtype", self.dtype, *(["--full", self.full] if self.full else [])]


def eager_mixed(full, mixed, loss_of, data, make_optimizer, weight=equal_shares, holders=()):
    """The same in mixed precision, as it is written by hand. `holders`: names of the narrow module's copies
    of one weight of `full`, in the order of their layers."""
    masters = {name: p.detach().clone().requires_grad_() for name, p in full.named_parameters()}
    names = {id(p): name for name, p in full.named_parameters()}

    def master_of(name):
        return masters[names[id(full.get_parameter(name))]]  # which may have several names

    module = mixed.narrow(full).train()
    optimizer, losses, scale = make_optimizer(list(masters.values())), [], 2.0**mixed.scale
    for batch in batches(data):
        total, sums = 0.0, {}
        for micro_batch in batch:
            loss, share = loss_of(module, micro_batch), weight(micro_batch, batch)
            (loss * share * scale).backward()
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    here = parameter.grad.float()
                    sums[name] = sums[name] + here if name in sums else here
                    parameter.grad = None
            total += float(loss.detach().double() * share)
        if holders:
            sums[holders[0]] = sum_of_copies([sums.pop(name) for name in holders])
        for name, gradient in sums.items():
            master_of(name).grad = gradient / scale
        if all(gradient.isfinite().all() for gradient in sums.values()):
            optimizer.step()
        else:
            print(f"a step of loss scale {scale:g} is left out")
            scale /= 2
        optimizer.zero_grad()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(master_of(name))
        losses.append(total)
    assert optimizer.state, "no step was made"
    of_parameter = {id(parameter): master_of(name) for name, parameter in module.named_parameters()}
    return losses, {
        name: of_parameter.get(id(tensor), tensor).detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
    }


def refused_run(folder, model, precision, said):
    """A run of a captured model that asks for another precision than it was captured in."""
    with open(f"{folder}/AdamW_1.json") as file:
        config = {key: value for key, value in json.load(file).items() if key not in ("bf16", "fp16")}
    with open(f"{folder}/other.json", "w") as file:
        json.dump(
            {
                **config,
                **precision,
                "model": {"family": "captured", "path": model},
                "run_dir": f"{folder}/other",
            },
            file,
        )
    done = subprocess.run(
        [STAGECRAFT, "train", f"{folder}/other.json"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 2 and said in done.stderr, done.stderr


def in_precision(mixed, build, full=lambda path, part: False):
    """The Mixed of a model's settings. `build` makes a module of a type; modules that `full` is true of stay
    float32."""

    def narrow(module):
        made = build(getattr(torch, mixed["dtype"]))
        for path, part in made.named_modules():
            if full(path, part):
                part.float()
        made.load_state_dict(module.state_dict())
        return made

    return Mixed(narrow=narrow, **mixed)


def causal(folder, sequence, config, mixed, holders=()):
    """A language model of transformers, with an untied head, or a tied one whose `holders` are named."""

    def build(dtype=torch.float32):
        return transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config), dtype=dtype
        )

    copies = apart(build, holders or ["lm_head.weight"])
    mixed = in_precision(mixed, copies)
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        "--sequence",
        sequence,
        *mixed.arguments(),
        "-o",
        f"{folder}/model",
    )
    data = tokens(config["vocab_size"], sequence)

    def loss_of(module, batch):
        return module(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False).loss

    if holders:
        return check(folder, build, loss_of, data, TIED, mixed=mixed, holders=holders)
    capture("--hf", config_of(folder, config), "--untie", "--sequence", sequence, "-o", f"{folder}/plain")
    check(
        folder,
        copies,
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 3}],
        mixed=mixed,
    )
    refused_run(folder, f"{folder}/model", {}, "was captured in other types")
    refused_run(
        folder, f"{folder}/plain", mixed.config(), f"the run computes in {mixed.dtype}, and no layer does"
    )
    return None


def masked(folder, config, mixed, holders=()):
    """Fields of the batch on every stage, and micro-batches that weigh by their labels, as transformers'
    num_items_in_batch has it."""

    def build(dtype=torch.float32):
        return transformers.AutoModelForMaskedLM.from_config(
            transformers.AutoConfig.for_model(**config), dtype=dtype
        )

    copies = apart(build, holders or ["cls.predictions.decoder.weight"])
    mixed = in_precision(mixed, copies)
    fields = ["--fields", "labels,attention_mask,token_type_ids", *mixed.arguments()]
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        "--sequence",
        16,
        *fields,
        "-o",
        f"{folder}/model",
    )
    data = padded(config["type_vocab_size"], whole=bool(holders))

    def loss_of(module, batch):
        return module(**batch).loss if units(batch) else sum(p.sum() for p in module.parameters()) * 0

    def weight(micro_batch, batch):
        return units(micro_batch) / sum(map(units, batch))

    if holders:
        return check(folder, build, loss_of, data, TIED, weight, mixed=mixed, holders=holders)
    check(
        folder,
        copies,
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "1f1b", "stages": 3, "recompute": "all"}],
        weight,
        mixed=mixed,
    )
    return None


def translation(folder, config, mixed, holders=()):
    """A text and its translation: what the encoder makes goes through all layers of the decoder."""

    def build(dtype=torch.float32):
        return transformers.AutoModelForSeq2SeqLM.from_config(
            transformers.AutoConfig.for_model(**config), dtype=dtype
        )

    def untied(*dtype):
        module = build(*dtype)
        untied_copies(module)
        return module

    # transformers keeps these in float32 beside float16.
    half = mixed["dtype"] == "float16"
    mixed = in_precision(
        mixed, apart(build, holders) if holders else untied, lambda path, part: half and path.endswith(".wo")
    )
    fields = ["--fields", "labels,attention_mask", *mixed.arguments()]
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        "--sequence",
        12,
        "--target-sequence",
        10,
        *fields,
        "-o",
        f"{folder}/model",
    )
    data = two_texts()

    def weight(micro_batch, batch):
        return units(micro_batch) / sum(map(units, batch))

    def loss_of(module, batch):
        return module(**batch, use_cache=False).loss

    if holders:
        return check(folder, build, loss_of, data, TIED, weight, mixed=mixed, holders=holders)
    pipelines = [
        {"schedule": "1f1b", "stages": 1},
        {"schedule": "zb_h1", "stages": 4},
        {"schedule": "1f1b", "stages": 3, "recompute": "all"},
    ]
    check(folder, untied, loss_of, data, pipelines, weight, mixed=mixed)
    return None


def images(folder, source, size, mixed):
    """A classifier, which `build` in `source` makes."""
    with open(f"{folder}/classifier.py", "w") as file:
        file.write(source)
    names = {}
    exec(source, names)
    full = mixed.get("full", "none")
    mixed = in_precision(
        mixed, lambda dtype: names["build"]().to(dtype), lambda path, part: type(part).__name__ == full
    )
    capture(
        f"{folder}/classifier.py:build",
        "--input",
        f"3,{size},{size}",
        "--loss",
        "cross_entropy",
        *mixed.arguments(),
        "-o",
        f"{folder}/model",
    )
    generator = torch.Generator().manual_seed(7)
    count = STEPS * MICRO_BATCHES * SAMPLES
    data = {
        "inputs": torch.randn((count, 3, size, size), generator=generator),
        "targets": torch.randint(10, (count,), generator=generator),
    }

    def given(batch):
        return batch["inputs"].to(getattr(torch, mixed.dtype))

    def loss_of(module, batch):
        return torch.nn.functional.cross_entropy(module(given(batch)).float(), batch["targets"])

    check(
        folder,
        names["build"],
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "1f1b", "stages": 2}],
        mixed=mixed,
    )


def recurrent(folder, source):
    """From a text of six tokens, and the six of another, to six labels. `source` has `build` and `loss`."""
    with open(f"{folder}/recurrent.py", "w") as file:
        file.write(source)
    names = {}
    exec(source, names)
    capture(
        f"{folder}/recurrent.py:build",
        "--sequence",
        12,
        "--vocabulary",
        64,
        "--field",
        "labels=i64[6]<32",
        "--loss",
        f"{folder}/recurrent.py:loss",
        "-o",
        f"{folder}/model",
    )
    data = tokens(
        64,
        12,
        labels=torch.randint(
            32, (STEPS * MICRO_BATCHES * SAMPLES, 6), generator=torch.Generator().manual_seed(9)
        ),
    )

    def loss_of(module, batch):
        return names["loss"](module(batch["input_ids"]), batch)

    check(
        folder,
        names["build"],
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 3}],
    )


def check(folder, build, loss_of, data, pipelines, *weight, mixed=None, holders=()):
    safetensors.save_file(data, f"{folder}/data.safetensors")
    inputs = next(iter(data))
    for name, tried_on in in_pairs(pipelines)[: 1 if holders else None]:
        optimizer, make = OPTIMIZERS[name]
        torch.manual_seed(0)
        expected = (
            eager_mixed(build(), mixed, loss_of, data, make, *weight, holders=holders)
            if mixed
            else eager(build(), loss_of, data, make, *weight)
        )
        for pipeline in map(dict, tried_on):
            recompute = {"activation_checkpointing": {"recompute": pipeline.pop("recompute", "none")}}
            found = ours(
                folder,
                f"{folder}/model",
                optimizer,
                f"{name}_{pipeline['stages']}",
                inputs=inputs,
                pipeline=pipeline,
                **recompute,
                **(mixed.config() if mixed else {}),
            )
            compare(f"{name}, {pipeline['schedule']} with {pipeline['stages']} stages", expected, found)
    compare("exported", expected, (found[0], exported(f"{folder}/{name}_{pipeline['stages']}")))


# PipeDream's GNMT in small: the decoder begins with the encoder's states, and all its layers read one
# attention.
TRANSLATOR = """
import torch
from torch import nn
class Translator(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.source, self.target = nn.Embedding(64, width), nn.Embedding(64, width)
        self.first = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        inputs = [width if i == 0 else 2 * width for i in range(layers)]
        self.decoder = nn.ModuleList(nn.LSTM(size, width, batch_first=True) for size in inputs)
        self.query = nn.Linear(width, width, bias=False)
        self.last = nn.GRU(2 * width, width, batch_first=True)
        self.head = nn.Linear(width, 32)
    def forward(self, x):
        memory, _ = self.first(self.source(x[:, :6]))
        for layer in self.encoder:
            made, state = layer(memory)
            memory = made + memory
        y = self.target(x[:, 6:])
        for i, layer in enumerate(self.decoder):
            y, _ = layer(y, state) if i == 0 else layer(torch.cat([y, context], -1))
            if i == 0:
                context = (self.query(y) @ memory.transpose(1, 2)).softmax(-1) @ memory
        return self.head(self.last(torch.cat([y, context], -1))[0])
def loss(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten())
build = Translator
"""

# The first two stages of ResNet-18, an eighth as wide: the CPU's convolutions in float16 take their time.
NARROW_RESNET = """
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, conv1x1
def build():
    down = nn.Sequential(conv1x1(8, 16, 2), nn.BatchNorm2d(16))
    stem = [nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
    stem.append(nn.MaxPool2d(3, stride=2, padding=1))
    blocks = [BasicBlock(8, 8), BasicBlock(8, 8), BasicBlock(8, 16, 2, down), BasicBlock(16, 16)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, 10))
"""

BF16, FP16 = {"dtype": "bfloat16"}, {"dtype": "float16", "scale": 12}
FULL_NORMS = {"full": "BatchNorm2d"}
TIED = [
    {"schedule": "1f1b", "stages": 1},
    {"schedule": "zb_h1", "stages": 3, "recompute": "all"},
    {"schedule": "zb_v", "stages": 4},
]
GPT2_SMALL = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 64,
    **GPT2,
}
QWEN3_SMALL = {"model_type": "qwen3", "head_dim": 8, **LLAMA, "tie_word_embeddings": True}

MODELS = {
    "translator": lambda folder: recurrent(folder, TRANSLATOR),
    "llama_bf16": lambda folder: causal(folder, 16, {"model_type": "llama", **LLAMA, **ONE_BLOCK}, BF16),
    "llama_fp16": lambda folder: causal(
        folder, 16, {"model_type": "llama", **LLAMA, **ONE_BLOCK}, {"dtype": "float16", "scale": 22}
    ),
    "bert_bf16": lambda folder: masked(folder, {"model_type": "bert", **BERT, **ONE_BLOCK}, BF16),
    "bert_fp16": lambda folder: masked(folder, {"model_type": "bert", **BERT, **ONE_BLOCK}, FP16),
    "resnet18_bf16": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 32, BF16),
    "resnet18_bf16_full": lambda folder: images(
        folder, TORCHVISION.format("resnet18(num_classes=10)"), 32, BF16 | FULL_NORMS
    ),
    "narrow_resnet_bf16": lambda folder: images(folder, NARROW_RESNET, 32, BF16),
    "narrow_resnet_fp16": lambda folder: images(folder, NARROW_RESNET, 32, FP16 | FULL_NORMS | {"scale": 6}),
    "resnet18_fp16": lambda folder: images(
        folder, TORCHVISION.format("resnet18(num_classes=10)"), 64, FP16 | FULL_NORMS | {"scale": 6}
    ),
    "t5_fp16": lambda folder: translation(folder, {"model_type": "t5", **T5}, FP16),
    "gpt2_tied_bf16": lambda folder: causal(
        folder, 16, GPT2_SMALL, BF16, ["transformer.wte.weight", "lm_head.weight"]
    ),
    "gpt2_tied_fp16": lambda folder: causal(
        folder, 16, GPT2_SMALL, FP16 | {"scale": 20}, ["transformer.wte.weight", "lm_head.weight"]
    ),
    "qwen3_tied_bf16": lambda folder: causal(
        folder, 16, QWEN3_SMALL, BF16, ["model.embed_tokens.weight", "lm_head.weight"]
    ),
    "bert_tied_bf16": lambda folder: masked(
        folder,
        {"model_type": "bert", **BERT},
        BF16,
        ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
    ),
    "bert_tied_fp16": lambda folder: masked(
        folder,
        {"model_type": "bert", **BERT},
        FP16,
        ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
    ),
    "t5_tied_bf16": lambda folder: translation(
        folder,
        {"model_type": "t5", **T5},
        BF16,
        ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"],
    ),
    "t5_tied_fp16": lambda folder: translation(
        folder,
        {"model_type": "t5", **T5, **ONE_LAYER},
        FP16,
        ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"],
    ),
}

CHOSEN = ["llama_bf16", "bert_fp16", "t5_tied_fp16", "narrow_resnet_fp16", "translator"]


@pytest.mark.parametrize("model", tried(MODELS, CHOSEN))
def test_model(tmp_path, model):
    isolated(model, str(tmp_path))
