#!/usr/bin/env python3
"""Three steps of four micro-batches in `stagecraft train` beside a plain loop in eager PyTorch: losses and all weights, to the bit.

    eager_loop_test.py SOURCE_DIR STAGECRAFT MODEL...

MODEL: a key of MODELS. Exits with 77 where transformers, torchvision or safetensors is missing. Every model runs in AdamW and in SGD, on one
stage and on several.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

try:
    import safetensors.torch
    import torch
    import torchvision
    import transformers
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

SOURCE, STAGECRAFT, ASKED = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
sys.path.insert(0, f"{SOURCE}/python")
from stagecraft_capture.hugging_face import untied_copies

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}/python", "OMP_NUM_THREADS": "1"}
STEPS, MICRO_BATCHES, SAMPLES = 3, 4, 2  # of a micro-batch
torch.set_num_threads(1)

OPTIMIZERS = {
    "AdamW": ({"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.01}}, lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.01, fused=True)),
    "SGD": ({"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True)),
}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def capture(*arguments):
    print(run(sys.executable, "-m", "stagecraft_capture", *arguments).splitlines()[-2])


def batches(data):
    """Of each step its micro-batches."""
    rows = [{name: array[i : i + SAMPLES] for name, array in data.items()} for i in range(0, STEPS * MICRO_BATCHES * SAMPLES, SAMPLES)]
    return [rows[step * MICRO_BATCHES : (step + 1) * MICRO_BATCHES] for step in range(STEPS)]


def equal_shares(micro_batch, batch):
    return 1 / MICRO_BATCHES


def eager(module, loss_of, data, make_optimizer, weight=equal_shares):
    """Losses of each step, and the weights in the end."""
    module.train()
    optimizer, losses = make_optimizer(module.parameters()), []
    for batch in batches(data):
        total = 0.0
        optimizer.zero_grad()
        for micro_batch in batch:
            loss, share = loss_of(module, micro_batch), weight(micro_batch, batch)
            (loss * share).backward()
            total += float(loss.detach().double() * share)
        optimizer.step()
        losses.append(total)
    return losses, {name: tensor.detach() for name, tensor in module.state_dict().items()}


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


def eager_mixed(full, mixed, loss_of, data, make_optimizer, weight=equal_shares):
    """The same in mixed precision, as it is written by hand."""
    masters = {name: p.detach().clone().requires_grad_() for name, p in full.named_parameters()}
    module = mixed.narrow(full).train()
    optimizer, losses, scale = make_optimizer(list(masters.values())), [], 2.0**mixed.scale
    for batch in batches(data):
        total = 0.0
        for micro_batch in batch:
            loss, share = loss_of(module, micro_batch), weight(micro_batch, batch)
            (loss * share * scale).backward()
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    before, here = masters[name].grad, parameter.grad.float()
                    masters[name].grad = here if before is None else before + here
                    parameter.grad = None
            total += float(loss.detach().double() * share)
        for master in masters.values():
            master.grad = None if master.grad is None else master.grad / scale
        if all(m.grad is None or m.grad.isfinite().all() for m in masters.values()):
            optimizer.step()
        else:
            print(f"a step of loss scale {scale:g} is left out")
            scale /= 2
        optimizer.zero_grad()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(masters[name])
        losses.append(total)
    assert optimizer.state, "no step was made"
    of_parameter = {id(parameter): masters[name] for name, parameter in module.named_parameters()}  # which may have two names
    return losses, {name: of_parameter.get(id(tensor), tensor).detach() for name, tensor in module.state_dict(keep_vars=True).items()}


def ours(folder, model, optimizer, name, inputs, **changed):
    """The same of a run."""
    config = {
        "model": {"family": "captured", "path": model},
        "data": {"type": "arrays", "path": f"{folder}/data.safetensors", "inputs": inputs, "shuffle": False},
        "optimizer": optimizer,
        "train_batch_size": MICRO_BATCHES * SAMPLES,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": STEPS,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 1},
        "run_dir": f"{folder}/{name}",
        **changed,
    }
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(config, file)
    run(STAGECRAFT, "train", f"{folder}/{name}.json")
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        losses = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    run(STAGECRAFT, "export", f"{folder}/{name}", "-o", f"{folder}/{name}.export")
    return losses[:STEPS], safetensors.torch.load_file(f"{folder}/{name}.export/model.safetensors")


def refused_in_other_precision(folder, mixed):
    """Runs of the captured model that ask for another precision than it was captured in."""
    with open(f"{folder}/AdamW_1.json") as file:
        config = json.load(file)
    other = {"bf16": {"enabled": True}} if mixed is None else {}
    said = "the run computes in bfloat16, and no layer does" if mixed is None else "was captured in other types"
    with open(f"{folder}/other.json", "w") as file:
        json.dump({**{key: value for key, value in config.items() if key not in ("bf16", "fp16")}, **other, "run_dir": f"{folder}/other"}, file)
    done = subprocess.run([STAGECRAFT, "train", f"{folder}/other.json"], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def compare(name, expected, found):
    losses, weights = expected
    differing = [n for n in found[1] if not torch.equal(weights[n], found[1][n])]
    print(f"{name}: losses {found[0]} against {losses}; {len(found[1]) - len(differing)} of {len(found[1])} tensors equal {differing[:3]}")
    assert set(found[1]) <= set(weights) and not differing, name
    assert found[0] == losses, name


def tokens(vocabulary, sequence, **more):
    generator = torch.Generator().manual_seed(5)
    count = STEPS * MICRO_BATCHES * SAMPLES
    return {"input_ids": torch.randint(vocabulary, (count, sequence), generator=generator), **more}


def in_precision(mixed, build, full=lambda path, part: False):
    """The Mixed of a model's settings, or None. `build` makes a module of a type; modules that `full` is true of stay float32."""

    def narrow(module):
        made = build(getattr(torch, mixed["dtype"]))
        for path, part in made.named_modules():
            if full(path, part):
                part.float()
        made.load_state_dict(module.state_dict())
        return made

    return mixed and Mixed(narrow=narrow, **mixed)


def causal(folder, sequence, config, mixed=None):
    """A language model of transformers, with an untied head."""
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)

    def build(dtype=torch.float32):
        module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config), dtype=dtype)
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())
        return module

    mixed = in_precision(mixed, build)
    capture("--hf", f"{folder}/config.json", "--untie", "--sequence", sequence, *(mixed.arguments() if mixed else []), "-o", f"{folder}/model")
    data = tokens(config["vocab_size"], sequence)
    loss_of = lambda module, batch: module(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False).loss
    check(folder, build, loss_of, data, [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 3}], mixed=mixed)
    refused_in_other_precision(folder, mixed)


def masked(folder, config, mixed=None):
    """Fields of the batch on every stage, and micro-batches that weigh by their labels, as transformers' num_items_in_batch has it."""
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)

    def build(dtype=torch.float32):
        module = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.for_model(**config), dtype=dtype)
        head = module.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        return module

    mixed = in_precision(mixed, build)
    fields = ["--fields", "labels,attention_mask,token_type_ids", *(mixed.arguments() if mixed else [])]
    capture("--hf", f"{folder}/config.json", "--untie", "--sequence", 16, *fields, "-o", f"{folder}/model")
    generator = torch.Generator().manual_seed(6)
    data = tokens(64, 16)
    count = data["input_ids"].shape[0]
    lengths = torch.randint(3, 16, (count, 1), generator=generator)
    data["attention_mask"] = (torch.arange(16) < lengths).long()
    chosen = torch.rand((count, 16), generator=generator) < 0.3
    data["labels"] = data["input_ids"].where(chosen & data["attention_mask"].bool(), -100)
    data["labels"][SAMPLES : 2 * SAMPLES] = -100  # a micro-batch in which nothing counts
    data["token_type_ids"] = (torch.arange(16) >= lengths // 2).long() % config["type_vocab_size"]
    units = lambda batch: int((batch["labels"] != -100).sum())

    def loss_of(module, batch):
        return module(**batch).loss if units(batch) else sum(p.sum() for p in module.parameters()) * 0

    weight = lambda micro_batch, batch: units(micro_batch) / sum(map(units, batch))
    check(folder, build, loss_of, data, [{"schedule": "1f1b", "stages": 1}, {"schedule": "1f1b", "stages": 3, "recompute": "all"}], weight, mixed=mixed)


def translation(folder, config, mixed=None):
    """A text and its translation: what the encoder makes goes through all layers of the decoder."""
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)

    def build(dtype=torch.float32):
        module = transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model(**config), dtype=dtype)
        untied_copies(module)
        return module

    # transformers keeps these in float32 beside float16.
    half = mixed and mixed["dtype"] == "float16"
    mixed = in_precision(mixed, build, lambda path, part: half and path.endswith(".wo"))
    fields = ["--fields", "labels,attention_mask", *(mixed.arguments() if mixed else [])]
    capture("--hf", f"{folder}/config.json", "--untie", "--sequence", 12, "--target-sequence", 10, *fields, "-o", f"{folder}/model")
    generator = torch.Generator().manual_seed(8)
    data = tokens(64, 12)
    count = data["input_ids"].shape[0]
    data["attention_mask"] = (torch.arange(12) < torch.randint(4, 13, (count, 1), generator=generator)).long()
    data["labels"] = torch.randint(64, (count, 10), generator=generator)
    data["labels"][torch.arange(10) >= torch.randint(5, 11, (count, 1), generator=generator)] = -100
    units = lambda batch: int((batch["labels"] != -100).sum())

    weight = lambda micro_batch, batch: units(micro_batch) / sum(map(units, batch))
    loss_of = lambda module, batch: module(**batch, use_cache=False).loss
    pipelines = [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 4}, {"schedule": "1f1b", "stages": 3, "recompute": "all"}]
    check(folder, build, loss_of, data, pipelines, weight, mixed=mixed)


def images(folder, source, size, mixed=None):
    """A classifier, which `build` in `source` makes."""
    with open(f"{folder}/classifier.py", "w") as file:
        file.write(source)
    names = {}
    exec(source, names)
    full = mixed and mixed.get("full", "none")
    mixed = in_precision(mixed, lambda dtype: names["build"]().to(dtype), lambda path, part: type(part).__name__ == full)
    capture(f"{folder}/classifier.py:build", "--input", f"3,{size},{size}", "--loss", "cross_entropy", *(mixed.arguments() if mixed else []), "-o", f"{folder}/model")
    generator = torch.Generator().manual_seed(7)
    count = STEPS * MICRO_BATCHES * SAMPLES
    data = {"inputs": torch.randn((count, 3, size, size), generator=generator), "targets": torch.randint(10, (count,), generator=generator)}
    given = lambda batch: batch["inputs"].to(getattr(torch, mixed.dtype if mixed else "float32"))
    loss_of = lambda module, batch: torch.nn.functional.cross_entropy(module(given(batch)).float(), batch["targets"])
    check(folder, names["build"], loss_of, data, [{"schedule": "1f1b", "stages": 1}, {"schedule": "1f1b", "stages": 2}], mixed=mixed)


def recurrent(folder, source):
    """From a text of six tokens, and the six of another, to six labels. `source` has `build` and `loss`."""
    with open(f"{folder}/recurrent.py", "w") as file:
        file.write(source)
    names = {}
    exec(source, names)
    capture(f"{folder}/recurrent.py:build", "--sequence", 12, "--vocabulary", 64, "--field", "labels=i64[6]<32", "--loss", f"{folder}/recurrent.py:loss", "-o", f"{folder}/model")
    data = tokens(64, 12, labels=torch.randint(32, (STEPS * MICRO_BATCHES * SAMPLES, 6), generator=torch.Generator().manual_seed(9)))
    loss_of = lambda module, batch: names["loss"](module(batch["input_ids"]), batch)
    check(folder, names["build"], loss_of, data, [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 3}])


def check(folder, build, loss_of, data, pipelines, *weight, mixed=None):
    safetensors.torch.save_file(data, f"{folder}/data.safetensors")
    inputs = next(iter(data))
    for name, (optimizer, make) in OPTIMIZERS.items():
        torch.manual_seed(0)
        expected = eager_mixed(build(), mixed, loss_of, data, make, *weight) if mixed else eager(build(), loss_of, data, make, *weight)
        for pipeline in map(dict, pipelines):
            recompute = {"activation_checkpointing": {"recompute": pipeline.pop("recompute", "none")}}
            found = ours(folder, f"{folder}/model", optimizer, f"{name}_{pipeline['stages']}", inputs=inputs, pipeline=pipeline, **recompute, **(mixed.config() if mixed else {}))
            compare(f"{name}, {pipeline['schedule']} with {pipeline['stages']} stages", expected, found)
            shutil.rmtree(f"{folder}/{name}_{pipeline['stages']}.export")


LLAMA = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": False}
BERT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 32, "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}

# Their random numbers are not PyTorch's: dropout is off.
TORCHVISION = """
import torch, torchvision
def build():
    model = torchvision.models.{}
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout): module.p = 0.0
    return model
"""
NARROW_VGG = """
import torch
from torchvision.models.vgg import VGG, cfgs, make_layers
def build():
    model = VGG(make_layers([c if c == "M" else c // 8 for c in cfgs["D"]], batch_norm={}), init_weights=False)
    model.avgpool, model.classifier = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(64, 10)
    return model
"""

T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64, "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 64, "max_position_embeddings": 64, "dropout": 0.0, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
# What each step down makes is read again by the step up across from it.
UNET = """
import torch
from torch import nn
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        step = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())
        self.down = nn.ModuleList([step(3, 8), step(8, 16), step(16, 16)])
        self.up = nn.ModuleList([step(32, 8), step(24, 8)])
        self.head = nn.Linear(8, 10)
    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        for i, layer in enumerate(self.up):
            x = nn.functional.interpolate(x, scale_factor=2, mode="nearest")
            x = layer(torch.cat([x, skips[2 - i]], 1))
        return self.head(x.mean((2, 3)))
build = UNet
"""

# PipeDream's GNMT in small: the decoder begins with the encoder's states, and all its layers read one attention.
TRANSLATOR = """
import torch
from torch import nn
class Translator(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.source, self.target = nn.Embedding(64, width), nn.Embedding(64, width)
        self.first = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.LSTM(width if i == 0 else 2 * width, width, batch_first=True) for i in range(layers))
        self.query, self.last = nn.Linear(width, width, bias=False), nn.GRU(2 * width, width, batch_first=True)
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

BF16, FP16 = {"dtype": "bfloat16"}, {"dtype": "float16", "scale": 12}
FULL_NORMS = {"full": "BatchNorm2d"}

MODELS = {
    "llama": lambda folder: causal(folder, 16, {"model_type": "llama", **LLAMA}),
    "mistral": lambda folder: causal(folder, 16, {"model_type": "mistral", "sliding_window": 8, **LLAMA}),
    "qwen2": lambda folder: causal(folder, 16, {"model_type": "qwen2", **LLAMA}),
    "qwen3": lambda folder: causal(folder, 16, {"model_type": "qwen3", "head_dim": 8, **LLAMA}),
    "gpt2": lambda folder: causal(folder, 16, {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 64, **GPT2}),
    "t5": lambda folder: translation(folder, {"model_type": "t5", **T5}),
    "bart": lambda folder: translation(folder, {"model_type": "bart", **BART}),
    "densenet": lambda folder: images(folder, TORCHVISION.format("DenseNet(growth_rate=8, block_config=(3, 3), num_init_features=16, num_classes=10)"), 64),
    "unet": lambda folder: images(folder, UNET, 16),
    "bert": lambda folder: masked(folder, {"model_type": "bert", **BERT}),
    "roberta": lambda folder: masked(folder, {"model_type": "roberta", **BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    "resnet18": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 32),
    "resnet50": lambda folder: images(folder, TORCHVISION.format("resnet50(num_classes=10, width_per_group=16)"), 32),
    "vgg16": lambda folder: images(folder, NARROW_VGG.format(False), 32),
    "vgg16_bn": lambda folder: images(folder, NARROW_VGG.format(True), 32),
    "vit": lambda folder: images(folder, TORCHVISION.format("VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10)"), 32),
    "translator": lambda folder: recurrent(folder, TRANSLATOR),
    "llama_bf16": lambda folder: causal(folder, 16, {"model_type": "llama", **LLAMA}, BF16),
    "llama_fp16": lambda folder: causal(folder, 16, {"model_type": "llama", **LLAMA}, {"dtype": "float16", "scale": 22}),
    "bert_bf16": lambda folder: masked(folder, {"model_type": "bert", **BERT}, BF16),
    "bert_fp16": lambda folder: masked(folder, {"model_type": "bert", **BERT}, FP16),
    "resnet18_bf16": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 32, BF16),
    "resnet18_bf16_full": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 32, BF16 | FULL_NORMS),
    "resnet18_fp16": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 64, FP16 | FULL_NORMS | {"scale": 6}),
    "t5_fp16": lambda folder: translation(folder, {"model_type": "t5", **T5}, FP16),
    # As large as they are:
    "gpt2_124M": lambda folder: causal(folder, 256, {"model_type": "gpt2", "vocab_size": 50257, **GPT2}),
    "resnet50_224": lambda folder: images(folder, TORCHVISION.format("resnet50()"), 224),
    "vgg16_224": lambda folder: images(folder, TORCHVISION.format("vgg16()"), 224),
    "vit_b_16": lambda folder: images(folder, TORCHVISION.format("vit_b_16()"), 224),
}

for name in ASKED:
    print(name)
    with tempfile.TemporaryDirectory() as folder:
        MODELS[name](folder)
