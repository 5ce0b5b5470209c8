"""What tests of stagecraft.pipeline() share: small modules, their batches, and the plain loop beside it."""

import copy

import pytest
import torch

import stagecraft as sc
from places import MEASURED_ONCE

STEPS, MICRO_BATCHES = 5, 4
torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self, width=16, blocks=4, classes=5, dropout=0.0):
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(blocks))
        )
        self.drop = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.drop(self.body(x)))


def class_loss(output, batch):
    return torch.nn.functional.cross_entropy(output, batch["targets"])


def pairs(count=STEPS, samples=16, width=16, classes=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(samples, width, generator=generator),
            torch.randint(0, classes, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


def net(seed=0, **sizes):
    torch.manual_seed(seed)
    return Net(**sizes)


def parts_of(batch, size):
    """Micro-batches."""
    if isinstance(batch, dict):
        return [
            {name: t[i : i + size] for name, t in batch.items()}
            for i in range(0, len(next(iter(batch.values()))), size)
        ]
    return [(batch[0][i : i + size], batch[1][i : i + size]) for i in range(0, len(batch[0]), size)]


def counted(batch, label):
    """What a mean of the loss counts in it."""
    if label is None:
        return len(batch[0] if isinstance(batch, tuple) else next(iter(batch.values())))
    labels = batch[label]
    return int(labels[..., 1:].ne(-100).sum()) if label == "labels" and labels.dim() > 1 else len(labels)


def eager_step(module, optimizer, parts, loss, label=None):
    """One step of the loop that people write, and its loss."""
    optimizer.zero_grad()
    total, whole = 0.0, sum(counted(part, label) for part in parts)
    for part in parts:
        of_part = loss(module, part)
        share = counted(part, label) / whole
        (of_part * share).backward()
        total += float(of_part.detach().double()) * share
    optimizer.step()
    return total


def by_class(module, part):
    return class_loss(module(part[0]), {"targets": part[1]})


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)


def assert_same_weights(step, module):
    ours, theirs = step.state_dict(), module.state_dict()
    assert ours.keys() == theirs.keys()
    different = [name for name in theirs if not torch.equal(ours[name], theirs[name])]
    assert not different, different


def beside_eager(
    module, batches, loss, eager_loss, label=None, micro_batches=MICRO_BATCHES, optimizer=adamw, **given
):
    """Steps of both, with the same batches."""
    theirs = copy.deepcopy(module).train()
    step = sc.pipeline(
        module,
        batches[0],
        loss=loss,
        optimizer=optimizer(module),
        micro_batches=micro_batches,
        threads_per_rank=1,
        config=MEASURED_ONCE,
        **given,
    )
    made = optimizer(theirs)
    for batch in batches:
        samples = counted(batch, None)
        size = -(-counted(batches[0], None) // micro_batches)
        expected = eager_step(theirs, made, parts_of(batch, size), eager_loss, label)
        found = step(batch)
        assert found.loss == expected
        assert found.samples == samples
    assert_same_weights(step, theirs)
    return step, theirs


class ByNames(Net):
    def forward(self, a, b):
        return super().forward(a * b)


def text_batches(vocabulary, length=12, samples=8, seed=3, padded=False, labels=None):
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(STEPS):
        tokens = torch.randint(3, vocabulary, (samples, length), generator=generator)
        batch = {"input_ids": tokens}
        if padded:
            lengths = torch.randint(length // 2, length + 1, (samples, 1), generator=generator)
            batch["attention_mask"] = (torch.arange(length) < lengths).long()
        if labels == "tokens":
            batch["labels"] = tokens.clone()
            if padded:
                batch["labels"][batch["attention_mask"] == 0] = -100
        else:
            batch["labels"] = torch.randint(0, labels, (samples,), generator=generator)
        batches.append(batch)
    return batches


def own_loss(module, part):
    return module(**part).loss


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def pipeline(module=None, batch=None, **given):
    """Of Net, on two stages."""
    given = {"loss": class_loss, "stages": 2, "micro_batches": MICRO_BATCHES, "threads_per_rank": 1} | given
    given["config"] = MEASURED_ONCE | given.get("config", {})
    return sc.pipeline(net() if module is None else module, pairs()[0] if batch is None else batch, **given)
