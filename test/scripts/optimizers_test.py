"""Holds every optimizer and schedule of the learning rate against PyTorch's own (and transformers') over 50
steps.

test_optimizer_steps writes initial parameters, random gradients, rates and what its optimizer made of them;
here torch.optim gets the same gradients. Where both call the same kernels the bits must be equal, and they
are everywhere: optimizers in foreach form call the operators that ours call.
"""

import json
import subprocess

import pytest

torch = pytest.importorskip("torch")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from places import BUILD
from pytorch_reference import read_safetensors

STEPS = 50
SHAPE = {
    "model": {"family": "convnet", "groups": [[3], [5]], "classifier": [12, 9]},
    "data": {"type": "synthetic", "samples": 16, "shape": [1, 8, 8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": STEPS,
}
# What the classifier has between the model's first matrix, a convolution, and its last.
HIDDEN = ("classifier0", "classifier1")


class Sgdw:
    """Decoupled decay in front of SGD: algorithm 1 of arXiv 1711.05101 without its schedule multiplier."""

    def __init__(self, groups, lr, weight_decay, **options):
        self.inner = torch.optim.SGD(
            [{**group, "weight_decay": 0} for group in groups], lr=lr, fused=True, **options
        )
        self.decays = [group.get("weight_decay", weight_decay) for group in groups]
        self.param_groups = self.inner.param_groups

    def step(self):
        for group, decay in zip(self.param_groups, self.decays):
            for p in group["params"]:
                p.data.mul_(1 - group["lr"] * decay)
        self.inner.step()


class Lion:
    """Program 1 of arXiv 2302.06675, as its authors' PyTorch code has it (google/automl,
    lion/lion_pytorch.py)."""

    def __init__(self, groups, lr, betas, weight_decay):
        self.param_groups = [{"lr": lr, "weight_decay": weight_decay, **group} for group in groups]
        self.betas, self.state = betas, {}

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                exp_avg = self.state.setdefault(p, torch.zeros_like(p))
                update = exp_avg * self.betas[0] + p.grad * (1 - self.betas[0])
                p.data.add_(torch.sign(update), alpha=-group["lr"])
                exp_avg.mul_(self.betas[1]).add_(p.grad, alpha=1 - self.betas[1])


class Together:
    """Several optimizers, each of its own parameters."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def is_hidden_matrix(name, parameter):
    return parameter.dim() == 2 and name.startswith(HIDDEN)


def groups_of(named, config):
    """torch's parameter groups for ours: by dimensions alone, or none."""
    ours = config.get("groups", [])
    if not ours:
        return [{"params": list(named.values())}]
    few = {key: ours[0][key] for key in ("lr", "weight_decay") if key in ours[0]}
    most = ours[0]["most_dimensions"]
    return [
        {"params": [p for p in named.values() if p.dim() <= most], **few},
        {"params": [p for p in named.values() if p.dim() > most]},
    ]


def reference(config, named):
    kind, given = config["type"], dict(config["params"])
    groups = groups_of(named, config)
    if kind == "SGD":
        return torch.optim.SGD(groups, fused=True, **given)
    if kind == "SGDW":
        return Sgdw(groups, **given)
    if kind in ("Adam", "AdamW"):
        return getattr(torch.optim, kind)(groups, fused=True, **given)
    if kind == "NAdam":
        return torch.optim.NAdam(groups, foreach=True, **given)
    if kind == "Lion":
        return Lion(groups, **given)
    if kind == "Adafactor":
        given["eps"] = tuple(eps or None for eps in given.pop("eps", [0, 1e-3]))
        return torch.optim.Adafactor(groups, **given)
    assert kind == "Muon"
    adam = {key.removeprefix("adam_"): given.pop(key) for key in list(given) if key.startswith("adam_")}
    adam.setdefault("lr", given["lr"])
    matrices = [p for name, p in named.items() if is_hidden_matrix(name, p)]
    others = [p for name, p in named.items() if not is_hidden_matrix(name, p)]
    assert matrices and others
    return Together(torch.optim.Muon(matrices, **given), torch.optim.AdamW(others, fused=True, **adam))


def torch_rates(scheduler, lr):
    """Of PyTorch's or transformers' schedule of the same name, step by step."""
    import transformers.optimization as hugging_face

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    given = dict(scheduler["params"])
    if scheduler["type"] == "OneCycleLR":
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, total_steps=given.pop("total_num_steps", STEPS), cycle_momentum=False, **given
        )
    elif scheduler["type"] == "InverseSqrtLR":
        schedule = hugging_face.get_inverse_sqrt_schedule(
            optimizer, given.get("warmup_num_steps", 0), given.get("timescale")
        )
    elif scheduler["type"] == "WarmupStableDecayLR":
        schedule = hugging_face.get_wsd_schedule(
            optimizer,
            given.get("warmup_num_steps", 0),
            given["decay_num_steps"],
            given.get("total_num_steps", STEPS),
            decay_type=given.get("decay_type", "cosine"),
            min_lr_ratio=given.get("min_lr_ratio", 0),
        )
    else:
        schedule = getattr(torch.optim.lr_scheduler, scheduler["type"])(optimizer, **given)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def run_ours(config, folder):
    (folder / "config.json").write_text(json.dumps(config))
    out = folder / "out.safetensors"
    out.unlink(missing_ok=True)
    subprocess.run([BUILD / "test/engine/test_optimizer_steps", folder / "config.json", out], check=True)
    return read_safetensors(out)


def part(tensors, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def compare(folder, optimizer, scheduler):
    tensors = run_ours({**SHAPE, "optimizer": optimizer, "scheduler": scheduler}, folder)
    named = {name: torch.nn.Parameter(value.clone()) for name, value in part(tensors, "initial/").items()}
    holder = torch.nn.ParameterList(named.values())
    averaged = None
    if "ema_decay" in optimizer:
        averaged = AveragedModel(holder, multi_avg_fn=get_ema_multi_avg_fn(optimizer["ema_decay"]))
    theirs = reference(optimizer, named)
    factors = [group["lr"] / optimizer["params"]["lr"] for group in theirs.param_groups]
    for step, rate in enumerate(tensors["rates"].tolist()):
        for group, factor in zip(theirs.param_groups, factors):
            group["lr"] = rate * factor
        for name, parameter in named.items():
            parameter.grad = tensors[f"gradient/{step}/{name}"].clone()
        theirs.step()
        if averaged is not None:
            averaged.update_parameters(holder)
    ours, worst = part(tensors, "final/"), 0.0
    assert ours.keys() == named.keys() and ours
    moved = 0
    for name, parameter in named.items():
        worst = max(worst, (ours[name] - parameter.detach()).abs().max().item())
        moved += not torch.equal(ours[name], tensors[f"initial/{name}"])
    assert moved == len(ours), "a parameter that no step changed compares nothing"
    averages = part(tensors, "state/ema/")
    assert (averaged is not None) == bool(averages)
    for name, average in averages.items():
        assert not torch.equal(average, ours[name])
        worst = max(worst, (average - dict(zip(named, averaged.module))[name]).abs().max().item())
    return worst


CONSTANT = {"type": "constant", "params": {}}
FEW = [{"most_dimensions": 1, "lr": 0.004, "weight_decay": 0}]
OPTIMIZERS = [
    {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}},
    {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "dampening": 0.1}, "groups": FEW},
    {"type": "SGDW", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}, "groups": FEW},
    {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1}},
    {
        "type": "AdamW",
        "params": {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "groups": FEW,
        "ema_decay": 0.9,
    },
    {"type": "NAdam", "params": {"lr": 0.01}},
    {"type": "NAdam", "params": {"lr": 0.01, "weight_decay": 0.1}, "groups": FEW},
    {
        "type": "NAdam",
        "params": {"lr": 0.01, "betas": [0.99, 0.999], "weight_decay": 0.1, "decoupled_weight_decay": True},
        "ema_decay": 0.99,
    },
    {"type": "Lion", "params": {"lr": 0.002, "betas": [0.9, 0.99], "weight_decay": 0.1}, "groups": FEW},
    {"type": "Adafactor", "params": {"lr": 0.05, "weight_decay": 0.1}},
    {
        "type": "Adafactor",
        "params": {"lr": 0.05, "d": 1.5, "beta2_decay": -0.7, "eps": [1e-6, 1e-4]},
        "ema_decay": 0.5,
    },
    {
        "type": "Muon",
        "params": {"lr": 0.02, "weight_decay": 0.1, "adam_lr": 0.005, "adam_betas": [0.9, 0.95]},
    },
    {
        "type": "Muon",
        "params": {
            "lr": 0.02,
            "nesterov": False,
            "ns_steps": 3,
            "adjust_lr_fn": "match_rms_adamw",
            "adam_weight_decay": 0,
        },
        "ema_decay": 0.9,
    },
]
SCHEDULERS = [
    {"type": "LinearLR", "params": {"start_factor": 0.25, "end_factor": 0.75, "total_iters": 31}},
    {"type": "CosineAnnealingWarmRestarts", "params": {"T_0": 9, "T_mult": 2, "eta_min": 1e-3}},
    {"type": "CosineAnnealingWarmRestarts", "params": {"T_0": 7}},
    {"type": "OneCycleLR", "params": {"max_lr": 0.03, "pct_start": 0.25}},
    {
        "type": "OneCycleLR",
        "params": {"max_lr": 0.03, "three_phase": True, "anneal_strategy": "linear", "div_factor": 10},
    },
    {"type": "InverseSqrtLR", "params": {"warmup_num_steps": 8}},
    {"type": "InverseSqrtLR", "params": {"timescale": 20}},
    {"type": "WarmupStableDecayLR", "params": {"warmup_num_steps": 5, "decay_num_steps": 20}},
    {
        "type": "WarmupStableDecayLR",
        "params": {"decay_num_steps": 10, "decay_type": "1-sqrt", "min_lr_ratio": 0.1},
    },
    {
        "type": "WarmupStableDecayLR",
        "params": {
            "warmup_num_steps": 5,
            "decay_num_steps": 15,
            "decay_type": "linear",
            "total_num_steps": 40,
            "min_lr_ratio": 0.2,
        },
    },
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def named(case):
    return f"{case['type']} {json.dumps(case['params'])}"


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=named)
def test_optimizer(tmp_path, optimizer):
    assert compare(tmp_path, optimizer, CONSTANT) == 0, "the largest difference"


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=named)
def test_scheduler(tmp_path, scheduler):
    pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")
    adamw = {"type": "AdamW", "params": {"lr": 0.01}}
    ours = run_ours({**SHAPE, "optimizer": adamw, "scheduler": scheduler}, tmp_path)["rates"].tolist()
    theirs = torch_rates(scheduler, lr=0.01)
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 1e-12
    assert len(set(ours)) >= 3
