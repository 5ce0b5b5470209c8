#!/usr/bin/env python3
"""Three steps of four micro-batches in `stagecraft train` beside a plain loop in eager PyTorch: losses and all weights, to the bit.

    eager_loop_test.py SOURCE_DIR STAGECRAFT          exits with 77 where transformers, torchvision or safetensors is missing
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import safetensors.torch
    import torch
    import torchvision
    import transformers
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), sys.argv[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}/python", "OMP_NUM_THREADS": "1"}
STEPS, MICRO_BATCHES, SAMPLES = 3, 4, 2  # of a micro-batch
torch.set_num_threads(1)

OPTIMIZERS = {
    "AdamW": ({"type": "AdamW", "params": {"lr": 0.003, "weight_decay": 0.01}}, lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.01, fused=True)),
    "SGD": ({"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9}}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def capture(*arguments):
    print(run(sys.executable, "-m", "stagecraft_capture", *arguments).splitlines()[-2])


def eager(module, loss_of, data, make_optimizer, weight=lambda micro_batch, batch: 1 / MICRO_BATCHES):
    """Losses of each step, and the weights in the end."""
    module.train()
    optimizer, losses = make_optimizer(module.parameters()), []
    rows = [{name: array[i : i + SAMPLES] for name, array in data.items()} for i in range(0, STEPS * MICRO_BATCHES * SAMPLES, SAMPLES)]
    for step in range(STEPS):
        batch, total = rows[step * MICRO_BATCHES : (step + 1) * MICRO_BATCHES], 0.0
        optimizer.zero_grad()
        for micro_batch in batch:
            loss, share = loss_of(module, micro_batch), weight(micro_batch, batch)
            (loss * share).backward()
            total += float(loss.detach().double() * share)
        optimizer.step()
        losses.append(total)
    return losses, {name: tensor.detach() for name, tensor in module.state_dict().items()}


def ours(folder, model, optimizer, name, **changed):
    """The same of a run."""
    config = {
        "model": {"family": "captured", "path": model},
        "data": {"type": "arrays", "path": f"{folder}/data.safetensors", "inputs": changed.pop("inputs", "inputs"), "shuffle": False},
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


def compare(name, expected, found, losses_equal=True):
    losses, weights = expected
    differing = [n for n in found[1] if not torch.equal(weights[n], found[1][n])]
    print(f"{name}: losses {found[0]} against {losses}; {len(found[1]) - len(differing)} of {len(found[1])} tensors equal {differing[:3]}")
    assert set(found[1]) <= set(weights) and not differing, name
    assert found[0] == losses, name


def tokens(vocabulary, sequence, **more):
    generator = torch.Generator().manual_seed(5)
    count = STEPS * MICRO_BATCHES * SAMPLES
    return {"input_ids": torch.randint(vocabulary, (count, sequence), generator=generator), **more}


def language_model(folder):
    config = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": False}
    with open(f"{folder}/llama.json", "w") as file:
        json.dump(config, file)
    capture("--hf", f"{folder}/llama.json", "--sequence", 16, "-o", f"{folder}/llama.model")
    data = tokens(64, 16)
    safetensors.torch.save_file(data, f"{folder}/data.safetensors")
    loss_of = lambda module, batch: module(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False).loss
    for name, (optimizer, make) in OPTIMIZERS.items():
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
        expected = eager(module, loss_of, data, make)
        for stages, schedule in ((1, "1f1b"), (3, "zb_h1")):
            found = ours(folder, f"{folder}/llama.model", optimizer, f"llama_{name}_{stages}", inputs="input_ids", pipeline={"schedule": schedule, "stages": stages})
            compare(f"llama, {name}, {schedule} with {stages} stages", expected, found)


def padded(folder):
    """Fields of the batch on every stage, and micro-batches that weigh by their labels, as transformers' num_items_in_batch has it."""
    config = {"model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    with open(f"{folder}/bert.json", "w") as file:
        json.dump(config, file)
    capture("--hf", f"{folder}/bert.json", "--untie", "--sequence", 16, "--fields", "labels,attention_mask,token_type_ids", "-o", f"{folder}/bert.model")
    generator = torch.Generator().manual_seed(6)
    data = tokens(64, 16)
    count = data["input_ids"].shape[0]
    lengths = torch.randint(3, 16, (count, 1), generator=generator)
    data["attention_mask"] = (torch.arange(16) < lengths).long()
    masked = torch.rand((count, 16), generator=generator) < 0.3
    data["labels"] = data["input_ids"].where(masked & data["attention_mask"].bool(), -100)
    data["labels"][SAMPLES : 2 * SAMPLES] = -100  # a micro-batch in which nothing counts
    data["token_type_ids"] = (torch.arange(16) >= lengths // 2).long()
    safetensors.torch.save_file(data, f"{folder}/data.safetensors")
    units = lambda batch: int((batch["labels"] != -100).sum())

    def loss_of(module, batch):
        return module(**batch).loss if units(batch) else sum(p.sum() for p in module.parameters()) * 0

    weight = lambda micro_batch, batch: units(micro_batch) / sum(map(units, batch))
    for name, (optimizer, make) in OPTIMIZERS.items():
        torch.manual_seed(0)
        module = transformers.AutoModelForMaskedLM.from_config(transformers.AutoConfig.for_model(**config))
        module.cls.predictions.decoder.weight = torch.nn.Parameter(module.cls.predictions.decoder.weight.detach().clone())
        expected = eager(module, loss_of, data, make, weight)
        for stages, schedule in ((1, "1f1b"), (3, "1f1b")):
            changed = {"pipeline": {"schedule": schedule, "stages": stages}, **({"activation_checkpointing": {"recompute": "all"}} if stages > 1 else {})}
            compare(f"bert, padded, {name}, {stages} stages", expected, ours(folder, f"{folder}/bert.model", optimizer, f"bert_{name}_{stages}", inputs="input_ids", **changed))


RESNET = '''
import torchvision
def build():
    model = torchvision.models.resnet18(num_classes=10)
    return model
'''


def images(folder):
    with open(f"{folder}/resnet.py", "w") as file:
        file.write(RESNET)
    capture(f"{folder}/resnet.py:build", "--input", "3,32,32", "--loss", "cross_entropy", "-o", f"{folder}/resnet.model")
    generator = torch.Generator().manual_seed(7)
    count = STEPS * MICRO_BATCHES * SAMPLES
    data = {"inputs": torch.randn((count, 3, 32, 32), generator=generator), "targets": torch.randint(10, (count,), generator=generator)}
    safetensors.torch.save_file(data, f"{folder}/data.safetensors")
    loss_of = lambda module, batch: torch.nn.functional.cross_entropy(module(batch["inputs"]), batch["targets"])
    for name, (optimizer, make) in OPTIMIZERS.items():
        torch.manual_seed(0)
        expected = eager(torchvision.models.resnet18(num_classes=10), loss_of, data, make)
        for stages in (1, 2):
            compare(f"resnet18, {name}, {stages} stages", expected, ours(folder, f"{folder}/resnet.model", optimizer, f"resnet_{name}_{stages}", pipeline={"schedule": "1f1b", "stages": stages}))


with tempfile.TemporaryDirectory() as folder:
    language_model(folder)
    padded(folder)
    images(folder)
