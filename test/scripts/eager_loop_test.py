"""Three steps of four micro-batches in `stagecraft train` beside a plain loop in eager PyTorch: losses and
all weights, to the bit.

Every model runs in AdamW on one stage and on several, and in SGD on several. Models with tied weights run as
they are with one micro-batch per step, and beside a loop with a parameter for each layer that holds the
weight with several; and they go on from a checkpoint of other stages.
"""

import functools
import glob
import json
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
pytest.importorskip("torchvision", reason="scripts/setup.sh --models installs it")
transformers = pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")

from forked import isolated, stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, SOURCE, STAGECRAFT, covering
from stagecraft_capture.hugging_face import untied_copies

STEPS, MICRO_BATCHES, SAMPLES = 3, 4, 2  # of a micro-batch
torch.set_num_threads(1)

OPTIMIZERS = {
    "AdamW": (
        {"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.01}},
        lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.01, fused=True),
    ),
    "SGD": (
        {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    ),
}


def run(*command):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def capture(*arguments):
    done = stagecraft_capture(*arguments)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    print(done.stdout.splitlines()[-2])


def in_buckets(data, lengths):
    """The rows by the shortest of `lengths` that holds them, and a function that cuts micro-batches of them:
    docs/guides/data.md, written again."""
    positions = data["attention_mask"].shape[1]

    def bucket_of(mask):
        return next(i for i, length in enumerate([*lengths, positions]) if mask[length:].sum() == 0)

    buckets = [bucket_of(mask) for mask in data["attention_mask"]]
    order = sorted(range(len(buckets)), key=lambda row: buckets[row])

    def cut(batch):
        return {
            name: rows[:, : [*lengths, positions][max(map(bucket_of, batch["attention_mask"]))]].contiguous()
            for name, rows in batch.items()
        }

    return {name: rows[order] for name, rows in data.items()}, cut


def sum_of_copies(gradients):
    """Of a tied weight, one of each layer that holds it: the last layer's first, as autograd adds what one
    parameter gets."""
    return functools.reduce(torch.add, gradients[::-1])


def eager(
    module,
    loss_of,
    data,
    make_optimizer,
    weight=lambda micro_batch, batch: 1 / len(batch),
    micro_batches=MICRO_BATCHES,
    holders=(),
    lengths=(),
):
    """Losses of each step, and the weights in the end. `holders`: names of parameters that are copies of one,
    in the order of their layers."""
    data, cut = in_buckets(data, lengths) if lengths else (data, lambda batch: batch)
    module.train()
    optimizer, losses = make_optimizer(module.parameters()), []
    rows = [
        cut({name: array[i : i + SAMPLES] for name, array in data.items()})
        for i in range(0, STEPS * micro_batches * SAMPLES, SAMPLES)
    ]
    copies = [module.get_parameter(name) for name in holders]
    for step in range(STEPS):
        batch, total = rows[step * micro_batches : (step + 1) * micro_batches], 0.0
        optimizer.zero_grad()
        for micro_batch in batch:
            loss, share = loss_of(module, micro_batch), weight(micro_batch, batch)
            (loss * share).backward()
            total += float(loss.detach().double() * share)
        if copies:
            gradient = sum_of_copies([copy.grad for copy in copies])
            for copy in copies:
                copy.grad = gradient.clone()
        optimizer.step()
        losses.append(total)
    return losses, {name: tensor.detach() for name, tensor in module.state_dict().items()}


def newest_checkpoint(run_dir):
    """Its files with tensors."""
    return glob.glob(
        f"{glob.escape(max(glob.glob(f'{glob.escape(run_dir)}/checkpoints/step-*')))}/*.safetensors"
    )


def weights_of(run_dir):
    """Parameters and buffers of the newest checkpoint."""
    tensors = {}
    for file in newest_checkpoint(run_dir):
        for key, tensor in safetensors.load_file(file).items():
            kind, _, name = key.partition("/")
            if kind in ("parameter", "buffer"):
                tensors[name] = tensor
    return tensors


def exported(run_dir):
    """The weights as `stagecraft export` gives them. Once per model: a command of the engine takes longer to
    start than these runs to train."""
    run(STAGECRAFT, "export", run_dir, "-o", f"{run_dir}.export")
    return safetensors.load_file(f"{run_dir}.export/model.safetensors")


def ours(
    folder, model, optimizer, name, inputs, micro_batches=MICRO_BATCHES, then=None, buckets=(), **changed
):
    """The same of a run. `then`: its last step is made by another session, with these settings."""
    config = {
        "model": {"family": "captured", "path": model},
        "data": {
            "type": "arrays",
            "path": f"{folder}/data.safetensors",
            "inputs": inputs,
            "shuffle": False,
            "buckets": list(buckets),
        },
        "optimizer": optimizer,
        "train_batch_size": micro_batches * SAMPLES,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": STEPS,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 1},
        **MEASURED_ONCE,
        "run_dir": f"{folder}/{name}",
        **changed,
    }
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(config, file)
    if then:
        run(STAGECRAFT, "train", f"{folder}/{name}.json", "--set", f"train_steps={STEPS - 1}")
        run(
            STAGECRAFT,
            "train",
            f"{folder}/{name}.json",
            "--resume",
            *(word for setting in then for word in ("--set", setting)),
        )
    else:
        run(STAGECRAFT, "train", f"{folder}/{name}.json")
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        losses = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    return losses[:STEPS], weights_of(f"{folder}/{name}")


def compare(name, expected, found):
    losses, weights = expected
    differing = [n for n in found[1] if not torch.equal(weights[n], found[1][n])]
    print(
        f"{name}: losses {found[0]} against {losses}; {len(found[1]) - len(differing)} of {len(found[1])}"
        f" tensors equal {differing[:3]}"
    )
    assert set(found[1]) <= set(weights) and not differing, name
    assert found[0] == losses, name


def tokens(vocabulary, sequence, **more):
    generator = torch.Generator().manual_seed(5)
    count = STEPS * MICRO_BATCHES * SAMPLES
    return {"input_ids": torch.randint(vocabulary, (count, sequence), generator=generator), **more}


def config_of(folder, config):
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    return f"{folder}/config.json"


def causal(folder, sequence, config, holders=()):
    """A language model of transformers, with an untied head, or a tied one whose `holders` are named."""
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        "--sequence",
        sequence,
        "-o",
        f"{folder}/model",
    )
    data = tokens(config["vocab_size"], sequence)

    def loss_of(module, batch):
        return module(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False).loss

    def build():
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))

    if holders:
        check_tied(folder, build, loss_of, data, holders)
        return
    check(
        folder,
        apart(build, ["lm_head.weight"]),
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_h1", "stages": 3}],
    )


def packed(folder, config):
    """Documents packed into rows: attention within each, as transformers has it where positions begin again,
    and no token predicted from another document's. The rows are of a token file with separators."""
    data = tokens(config["vocab_size"], 16)
    separator = 3
    data["input_ids"][::SAMPLES, 7] = separator  # transformers masks where a micro-batch has one
    data["input_ids"].to(torch.uint16).numpy().tofile(f"{folder}/tokens.bin")
    begins = torch.zeros_like(data["input_ids"], dtype=torch.bool)
    begins[:, 1:] = data["input_ids"][:, :-1] == separator
    data["labels"] = data["input_ids"].where(~begins, -100)
    places = torch.arange(16).expand_as(begins)
    data["position_ids"] = places - (places * begins).cummax(1).values
    capture(
        *("--hf", config_of(folder, config), "--sequence", 16),
        *("--fields", "labels,position_ids", "-o", f"{folder}/model"),
    )

    def loss_of(module, batch):
        return module(**batch, use_cache=False).loss

    def build():
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))

    def counted(batch):
        return int((batch["labels"][:, 1:] != -100).sum())

    def weight(micro_batch, batch):
        return counted(micro_batch) / sum(map(counted, batch))

    source = {
        "type": "tokens",
        "path": f"{folder}/tokens.bin",
        "sequence": 16,
        "vocabulary": 64,
        "documents": "separated",
        "separator": separator,
        "shuffle": False,
    }
    check(
        folder,
        apart(build, ["lm_head.weight"]),
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "zb_v", "stages": 2}],
        weight,
        source={"data": source},
    )


def apart(build, names):
    """The same module in which these weights are parameters of their own."""

    def built(*dtype):
        module = build(*dtype)
        for name in names:
            path, _, leaf = name.rpartition(".")
            setattr(
                module.get_submodule(path),
                leaf,
                torch.nn.Parameter(module.get_parameter(name).detach().clone()),
            )
        return module

    return built


def units(batch):
    return int((batch["labels"] != -100).sum())


def padded(types, whole=False):
    """Samples of unequal lengths with chosen labels; unless `whole`, of one micro-batch none counts."""
    generator = torch.Generator().manual_seed(6)
    data = tokens(64, 16)
    count = data["input_ids"].shape[0]
    lengths = torch.randint(3, 16, (count, 1), generator=generator)
    data["attention_mask"] = (torch.arange(16) < lengths).long()
    chosen = torch.rand((count, 16), generator=generator) < 0.3
    data["labels"] = data["input_ids"].where(chosen & data["attention_mask"].bool(), -100)
    if not whole:
        data["labels"][SAMPLES : 2 * SAMPLES] = -100
    data["token_type_ids"] = (torch.arange(16) >= lengths // 2).long() % types
    return data


def two_texts():
    """Texts of unequal lengths, and their translations."""
    generator = torch.Generator().manual_seed(8)
    data = tokens(64, 12)
    count = data["input_ids"].shape[0]
    data["attention_mask"] = (torch.arange(12) < torch.randint(4, 13, (count, 1), generator=generator)).long()
    data["labels"] = torch.randint(64, (count, 10), generator=generator)
    data["labels"][torch.arange(10) >= torch.randint(5, 11, (count, 1), generator=generator)] = -100
    return data


def masked(folder, config, holders=(), lengths=()):
    """Fields of the batch on every stage, and micro-batches that weigh by their labels, as transformers'
    num_items_in_batch has it. `lengths`: to which samples are cut."""
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        *(["--lengths", ",".join(map(str, lengths))] if lengths else []),
        "--sequence",
        16,
        "--fields",
        "labels,attention_mask,token_type_ids",
        "-o",
        f"{folder}/model",
    )
    data = padded(config["type_vocab_size"], whole=bool(holders))

    def loss_of(module, batch):
        return module(**batch).loss if units(batch) else sum(p.sum() for p in module.parameters()) * 0

    def build():
        return transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.for_model(**config))

    def weight(micro_batch, batch):
        return units(micro_batch) / sum(map(units, batch))

    if holders:
        check_tied(folder, build, loss_of, data, holders, weight)
        return
    head = [
        "lm_head.decoder.weight" if config["model_type"] == "roberta" else "cls.predictions.decoder.weight"
    ]
    check(
        folder,
        apart(build, head),
        loss_of,
        data,
        [{"schedule": "1f1b", "stages": 1}, {"schedule": "1f1b", "stages": 3, "recompute": "all"}],
        weight,
        lengths=lengths,
    )


def translation(folder, config, holders=()):
    """A text and its translation: what the encoder makes goes through all layers of the decoder."""
    capture(
        "--hf",
        config_of(folder, config),
        *([] if holders else ["--untie"]),
        "--sequence",
        12,
        "--target-sequence",
        10,
        "--fields",
        "labels,attention_mask",
        "-o",
        f"{folder}/model",
    )
    data = two_texts()

    def build():
        return transformers.AutoModelForSeq2SeqLM.from_config(transformers.AutoConfig.for_model(**config))

    def weight(micro_batch, batch):
        return units(micro_batch) / sum(map(units, batch))

    def loss_of(module, batch):
        return module(**batch, use_cache=False).loss

    if holders:
        check_tied(folder, build, loss_of, data, holders, weight)
        return
    pipelines = [
        {"schedule": "1f1b", "stages": 1},
        {"schedule": "zb_h1", "stages": 4},
        {"schedule": "1f1b", "stages": 3, "recompute": "all"},
    ]

    def untied():
        module = build()
        untied_copies(module)
        return module

    check(folder, untied, loss_of, data, pipelines, weight)


def images(folder, source, size, pipelines=({"schedule": "1f1b", "stages": 2},)):
    """A classifier, which `build` in `source` makes."""
    with open(f"{folder}/classifier.py", "w") as file:
        file.write(source)
    capture(
        f"{folder}/classifier.py:build",
        "--input",
        f"3,{size},{size}",
        "--loss",
        "cross_entropy",
        "-o",
        f"{folder}/model",
    )
    generator = torch.Generator().manual_seed(7)
    count = STEPS * MICRO_BATCHES * SAMPLES
    data = {
        "inputs": torch.randn((count, 3, size, size), generator=generator),
        "targets": torch.randint(10, (count,), generator=generator),
    }

    def loss_of(module, batch):
        return torch.nn.functional.cross_entropy(module(batch["inputs"]), batch["targets"])

    names = {}
    exec(source, names)
    check(folder, names["build"], loss_of, data, [{"schedule": "1f1b", "stages": 1}, *pipelines])


def unet(folder):
    """What bypasses stages goes directly, on ranks in a line and in a V, or is relayed."""
    straight, relayed = (
        {"schedule": "1f1b", "stages": 6, "cuts": [2, 3, 4, 5, 6]},
        {"schedule": "zb_h1", "stages": 5, "cuts": [2, 4, 5, 6], "skips": "relay"},
    )
    with open(f"{SOURCE}/docs/pictures/unet.py") as file:
        source = file.read()
    images(
        folder,
        source,
        16,
        [straight, relayed, {"schedule": "zb_v", "stages": 4, "cuts": [2, 4, 6], "recompute": "all"}],
    )
    for stages, expected in ((6, [(0, 5, 16384), (1, 4, 8192)]), (5, []), (4, [(0, 3, 16384)])):
        with open(f"{folder}/AdamW_{stages}/plan.json") as file:
            costs = json.load(file)["costs"]
        skips = [(skip["from"], skip["to"], skip["bytes"]) for skip in costs.get("skips", [])]
        print(
            f"{stages} stages: bytes to the next stage"
            f" {[stage.get('output_bytes', 0) for stage in costs['stages']]}, directly {skips}"
        )
        assert skips == expected, skips


def check_tied(folder, build, loss_of, data, holders, *weight):
    """`build` makes the module as it is."""
    safetensors.save_file(data, f"{folder}/data.safetensors")
    inputs, (optimizer, make) = next(iter(data)), OPTIMIZERS["AdamW"]
    original = build()
    first = next(
        name
        for name, parameter in original.named_parameters(remove_duplicate=False)
        if parameter is original.get_parameter(holders[0])
    )
    tensors = len({id(tensor) for tensor in original.state_dict(keep_vars=True).values()})

    def compare_tied(name, expected, found):
        assert len(found[1]) == tensors and first in found[1], found[1].keys()  # the weight once
        compare(name, expected, found)

    def compared(name, expected, stages, schedule, **more):
        found = ours(
            folder,
            f"{folder}/model",
            optimizer,
            name,
            inputs=inputs,
            pipeline={"schedule": schedule, "stages": stages},
            **more,
        )
        stored = [
            key
            for file in newest_checkpoint(f"{folder}/{name}")
            for key in safetensors.load_file(file)
            if f"/{first}" in key
        ]
        assert sorted(stored) == sorted(
            ["parameter/" + first, *(f"optimizer/{first}/{state}" for state in ("exp_avg", "exp_avg_sq"))]
        ), stored
        compare_tied(name, expected, found)

    torch.manual_seed(0)
    as_it_is = eager(build(), loss_of, data, make, *weight, micro_batches=1)
    compared("one micro-batch, one stage", as_it_is, 1, "1f1b", micro_batches=1)
    compared(
        "one micro-batch, three stages, then two",
        as_it_is,
        3,
        "1f1b",
        micro_batches=1,
        then=["pipeline.stages=2"],
    )
    torch.manual_seed(0)
    copies = eager(apart(build, holders)(), loss_of, data, make, *weight, holders=holders)
    copies[1][first] = copies[1][holders[0]]
    compared("four micro-batches, one stage", copies, 1, "1f1b")
    compared("four micro-batches, three stages", copies, 3, "zb_h1")
    compared("four micro-batches, a V of four stages", copies, 4, "zb_v")
    compare_tied(
        "exported", copies, (copies[0], exported(f"{folder}/four micro-batches, a V of four stages"))
    )


def in_pairs(pipelines):
    """Each optimizer with the pipelines that it is tried on: the first one with all, the others with the
    last, which has several stages."""
    first, *others = OPTIMIZERS
    return [(first, pipelines), *((name, pipelines[-1:]) for name in others)]


def check(folder, build, loss_of, data, pipelines, *weight, lengths=(), source=None):
    """`source`: of the run's config, where its data are not the arrays of `data`."""
    safetensors.save_file(data, f"{folder}/data.safetensors")
    inputs = next(iter(data))
    for name, tried_on in in_pairs(pipelines):
        optimizer, make = OPTIMIZERS[name]
        torch.manual_seed(0)
        expected = eager(build(), loss_of, data, make, *weight, lengths=lengths)
        for pipeline in map(dict, tried_on):
            recompute = {"activation_checkpointing": {"recompute": pipeline.pop("recompute", "none")}}
            found = ours(
                folder,
                f"{folder}/model",
                optimizer,
                f"{name}_{pipeline['stages']}",
                inputs=inputs,
                pipeline=pipeline,
                buckets=[*lengths, data[inputs].shape[1]] if lengths else [],
                **recompute,
                **(source or {}),
            )
            compare(f"{name}, {pipeline['schedule']} with {pipeline['stages']} stages", expected, found)
    compare("exported", expected, (found[0], exported(f"{folder}/{name}_{pipeline['stages']}")))


LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
BERT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# where another model of its kind has two: equal blocks share a graph
ONE_BLOCK, ONE_LAYER = {"num_hidden_layers": 1}, {"num_layers": 1}
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
    layers = make_layers([c if c == "M" else c // 8 for c in cfgs["D"]], batch_norm={})
    model = VGG(layers, init_weights=False)
    model.avgpool, model.classifier = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Linear(64, 10)
    return model
"""

T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 64,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}

MODELS = {
    "llama": lambda folder: causal(folder, 16, {"model_type": "llama", **LLAMA}),
    "mistral": lambda folder: causal(
        folder, 16, {"model_type": "mistral", "sliding_window": 8, **LLAMA, **ONE_BLOCK}
    ),
    "qwen2": lambda folder: causal(folder, 16, {"model_type": "qwen2", **LLAMA, **ONE_BLOCK}),
    "qwen3": lambda folder: causal(folder, 16, {"model_type": "qwen3", "head_dim": 8, **LLAMA, **ONE_BLOCK}),
    "gpt2": lambda folder: causal(
        folder,
        16,
        {
            "model_type": "gpt2",
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "vocab_size": 64,
            **GPT2,
        },
    ),
    "packed": lambda folder: packed(folder, {"model_type": "llama", **LLAMA, **ONE_BLOCK}),
    "gpt2_tied": lambda folder: causal(
        folder,
        16,
        {
            "model_type": "gpt2",
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
            "vocab_size": 64,
            **GPT2,
        },
        ["transformer.wte.weight", "lm_head.weight"],
    ),
    "qwen3_tied": lambda folder: causal(
        folder,
        16,
        {"model_type": "qwen3", "head_dim": 8, **LLAMA, **ONE_BLOCK, "tie_word_embeddings": True},
        ["model.embed_tokens.weight", "lm_head.weight"],
    ),
    "bert_tied": lambda folder: masked(
        folder,
        {"model_type": "bert", **BERT, **ONE_BLOCK},
        ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"],
    ),
    "t5_tied": lambda folder: translation(
        folder,
        {"model_type": "t5", **T5, **ONE_LAYER},
        ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"],
    ),
    "t5": lambda folder: translation(folder, {"model_type": "t5", **T5}),
    "bart": lambda folder: translation(folder, {"model_type": "bart", **BART}),
    "densenet": lambda folder: images(
        folder,
        TORCHVISION.format(
            "DenseNet(growth_rate=8, block_config=(3, 3), num_init_features=16, num_classes=10)"
        ),
        64,
    ),
    "unet": unet,
    "bert": lambda folder: masked(folder, {"model_type": "bert", **BERT}),
    "bert_buckets": lambda folder: masked(
        folder, {"model_type": "bert", **BERT, **ONE_BLOCK}, lengths=[6, 11]
    ),
    "roberta": lambda folder: masked(
        folder, {"model_type": "roberta", **BERT, **ONE_BLOCK, "type_vocab_size": 1, "pad_token_id": 1}
    ),
    "resnet18": lambda folder: images(folder, TORCHVISION.format("resnet18(num_classes=10)"), 32),
    "resnet50": lambda folder: images(
        folder, TORCHVISION.format("resnet50(num_classes=10, width_per_group=16)"), 32
    ),
    "vgg16": lambda folder: images(folder, NARROW_VGG.format(False), 32),
    "vgg16_bn": lambda folder: images(folder, NARROW_VGG.format(True), 32),
    "vit": lambda folder: images(
        folder,
        TORCHVISION.format(
            "VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=32,"
            " mlp_dim=64, num_classes=10)"
        ),
        32,
    ),
    # As large as they are:
    "gpt2_124M": lambda folder: causal(folder, 256, {"model_type": "gpt2", "vocab_size": 50257, **GPT2}),
    "resnet50_224": lambda folder: images(folder, TORCHVISION.format("resnet50()"), 224),
    "vgg16_224": lambda folder: images(folder, TORCHVISION.format("vgg16()"), 224),
    "vit_b_16": lambda folder: images(folder, TORCHVISION.format("vit_b_16()"), 224),
}


# Decoders, encoders and both, tied and not; images with and without batch norm, attention and skips. Networks
# with residuals: narrow_resnet_fp16 of mixed_loop_test.py.
CHOSEN = [
    *("packed", "bert_buckets", "bart", "gpt2_tied", "qwen3_tied", "t5_tied"),
    *("unet", "vgg16_bn", "vit"),
]
LARGE = ["gpt2_124M", "resnet50_224", "vgg16_224", "vit_b_16"]


def tried(models, chosen, large=()):
    """Parameters of a test; the large ones are tried by hand."""
    small = covering([name for name in models if name not in large], chosen)
    marks = dict.fromkeys(large, pytest.mark.by_hand)
    return [pytest.param(models[name], id=name, marks=marks.get(name, ())) for name in [*small, *large]]


@pytest.mark.parametrize("model", tried(MODELS, CHOSEN, LARGE))
def test_model(tmp_path, model):
    isolated(model, str(tmp_path))
