"""Modules that take a batch whole or in parts, that return tuples, dictionaries and dataclasses, and losses
of all that, or of the output alone: `train` on two stages beside the plain loop, to the bit. What cannot be
is refused."""

import json
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from capture_cases import equal
from forked import stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, STAGECRAFT, covering
from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.losses import WithLoss
from stagecraft_capture.results import results_of
from stagecraft_capture.source import results_for
from stagecraft_capture.users_code import state_kept

torch.set_num_threads(1)

MODELS = '''
import dataclasses, torch
from typing import NamedTuple
import torch.nn.functional as F
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.actor, self.critic = nn.Linear(16, 5), nn.Linear(16, 1)

    def heads(self, x):
        h = self.body(x)
        return self.actor(h), self.critic(h), h

class Tuple(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return actor, critic.squeeze(1), h.detach(), None

class Dict(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return {"actor": actor, "more": {"critic": critic}, "count": 3}

@dataclasses.dataclass
class Out:
    actor: torch.Tensor
    critic: torch.Tensor
    penalty: torch.Tensor  # one number for all samples

class Dataclass(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return Out(actor, critic, h.pow(2).mean())

class Whole(Two):
    def forward(self, batch):
        return self.actor(self.body(batch["x"])) * batch["r"].unsqueeze(1)

class Rest(Two):
    def forward(self, *parts):
        return self.actor(self.body(parts[0])) * parts[1].unsqueeze(1)

class Double(Two):
    def __init__(self):
        super().__init__()
        self.double()

    def forward(self, x):
        return self.heads(x)[0]

class WithItsLoss(Two):
    def forward(self, x, a=None):
        actor = self.heads(x)[0]
        return actor, None if a is None else F.cross_entropy(actor, a)

class OneOfAll(Two):
    def forward(self, x):
        return self.heads(x)[0], None

class Heads(NamedTuple):
    logits: torch.Tensor
    aux: torch.Tensor

class HeadsInTraining(Two):
    """As GoogLeNet: auxiliary logits in training, and the logits alone in evaluation."""
    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(16, 5)

    def forward(self, x):
        h = self.body[:2](x)
        logits = self.actor(self.body[2:](h))
        return Heads(logits, self.aux(h)) if self.training else logits

class HeadInEvaluation(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return (actor, critic) if self.training else h

class Positions(nn.Module):
    """Positions are looked up before the input is."""
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.places, self.body = nn.Embedding(8, 16), nn.Linear(1, 16)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x):
        places = self.places(torch.arange(x.shape[1]))
        return self.head((self.body(x.unsqueeze(2)) + places).mean(1))

class Plain(Two):
    def forward(self, x):
        return self.heads(x)[0]

class Unnamed(dict):  # to PyTorch a container whose leaves have no names, as diffusers' outputs are
    pass

torch.utils._pytree.register_pytree_node(
    Unnamed, lambda d: (list(d.values()), list(d)), lambda leaves, keys: Unnamed(zip(keys, leaves))
)

class InUnnamed(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return Unnamed(actor=actor, more=critic)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, h):
        self.penalty = self.inner(h).pow(2).mean()
        self.unread = h.sum()
        return h + self.inner(h).tanh()

BUILT = []  # where a loss finds the model, as a script's does

class Stored(Two):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer(), Layer())
        BUILT[:] = [self]

    def forward(self, x):
        self.features = self.layers(self.body(x))
        return self.actor(self.features)

def of_stored(output, batch):
    model = BUILT[0]
    penalty = sum(layer.penalty for layer in model.modules() if hasattr(layer, "penalty"))
    total = F.cross_entropy(output, batch["a"]) + 0.1 * penalty + 0.01 * model.features.abs().mean()
    return total

def of_unnamed(output, batch):
    return of_tuple((output["actor"], output["more"][:, 0], None, None), batch)

def of_tuple(output, batch):
    actor, critic, _, _ = output
    return F.cross_entropy(actor, batch["a"]) + 0.5 * F.mse_loss(critic, batch["r"])

def of_heads(output, batch):
    if isinstance(output, torch.Tensor):
        return F.cross_entropy(output, batch["a"])
    return F.cross_entropy(output.logits, batch["a"]) + 0.4 * F.cross_entropy(output.aux, batch["a"])

def of_either(output, batch):
    return (output if isinstance(output, torch.Tensor) else output[0] + output[1]).mean()

def of_dict(output, batch):
    critic = output["more"]["critic"][:, 0]
    return F.cross_entropy(output["actor"], batch["a"]) + F.mse_loss(critic, batch["r"])

def of_dataclass(output, batch):
    return of_tuple((output.actor, output.critic[:, 0], None, None), batch) + 0.01 * output.penalty

def of_whole(output, batch):
    return F.cross_entropy(output, batch["a"])

def its_own(output, batch):
    return output[1]

def of_output_alone(output, batch):
    return output.pow(2).mean()

def summed(output, batch):
    return output.pow(2).sum()

def contrast(output, batch):
    z = F.normalize(output, dim=1)
    return (torch.logsumexp(z @ z.T, 1) - (z * z).sum(1)).mean()

def of_places(output, batch):
    return output[0].mean() + output[1].argmax()

def of_integers(output, batch):
    return output["actor"].mean() * output["more"]["critic"].argmax().float() * output["labels"].sum()

class Integers(Two):
    def forward(self, x):
        actor, critic, h = self.heads(x)
        return {"actor": actor, "more": {"critic": critic}, "labels": actor.argmax(1)}

def of_number(output, batch):
    return output.penalty
'''

A, R = "--field=a=i64[]<5", "--field=r=f32[]"
CASES = {
    "tuple": ("Tuple", "of_tuple", (A, R)),
    "dict": ("Dict", "of_dict", (A, R)),
    "dataclass": ("Dataclass", "of_dataclass", (A, R)),
    "unnamed": ("InUnnamed", "of_unnamed", (A, R)),
    "stored": ("Stored", "of_stored", (A,)),
    "its_own": ("WithItsLoss", "its_own", (A,)),
    "heads": ("HeadsInTraining", "of_heads", (A,)),
    "one_of_all": ("OneOfAll", "cross_entropy", ()),
    "positions": ("Positions", "cross_entropy", ()),
    "output_alone": ("Plain", "of_output_alone", ()),
    "summed": ("Plain", "summed", ()),
    "contrast": ("Plain", "contrast", ()),
    "whole_batch": ("Whole", "of_whole", (A, R), "x=f32[8]"),
    "double": ("Double", "of_whole", (A,)),
    "any_number": ("Rest", "of_whole", (A, "--field=parts1=f32[]")),
}
STEPS, MICRO_BATCHES, SAMPLES = 3, 4, 2


@pytest.fixture(scope="module")
def models(folder):
    with open(f"{folder}/models.py", "w") as file:
        file.write(MODELS)
    torch.manual_seed(0)
    rows = STEPS * MICRO_BATCHES * SAMPLES
    data = {"x": torch.randn(rows, 8), "a": torch.randint(0, 5, (rows,)), "r": torch.randn(rows)}
    named = {"inputs": data["x"], "targets": data["a"].clone(), "a": data["a"], "r": data["r"]}
    named["parts1"] = data["r"].clone()
    safetensors.save_file(named, f"{folder}/data.safetensors")
    names = {}
    exec(MODELS, names)
    return folder, names, data


CALLS = {
    "WithItsLoss": lambda module, batch: module(batch["x"], a=batch["a"]),
    "Whole": lambda module, batch: module(batch),
    "Double": lambda module, batch: module(batch["x"].double()),
    "Rest": lambda module, batch: module(batch["x"], batch["r"]),
}


def loop(names, model, loss, data):
    """Eager PyTorch, micro-batch by micro-batch."""
    module = names[model]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses, rows = [], iter(range(0, STEPS * MICRO_BATCHES * SAMPLES, SAMPLES))
    usual = loss == "cross_entropy"
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(MICRO_BATCHES):
            at = next(rows)
            batch = {name: t[at : at + SAMPLES].clone() for name, t in data.items()}
            made = CALLS.get(model, lambda module, batch: module(batch["x"]))(module, batch)
            if usual:
                made = made[0] if isinstance(made, tuple) else made
                value = torch.nn.functional.cross_entropy(made, batch["a"])
            else:
                value = names[loss](made, batch)
            share = 1.0 if loss == "summed" else 1 / MICRO_BATCHES
            (value * share).backward()
            total += float(value.detach().double() * share)
        losses.append(total)
        optimizer.step()
    return losses, {name: p.detach() for name, p in module.named_parameters()}


# Others repeat a part of these: a tuple of a dataclass, an output alone of "summed", arguments of test_calls.
TRAINED = [
    *("dict", "dataclass", "unnamed", "stored", "heads", "positions", "summed", "contrast"),
    *("whole_batch", "double"),
]


@pytest.mark.parametrize("name", covering(CASES, TRAINED))
def test_trains_as_the_loop(models, name):
    folder, names, data = models
    model, loss, fields, *of_input = CASES[name]
    of = loss if loss == "cross_entropy" else f"{folder}/models.py:{loss}"
    path = f"{folder}/{name}"
    given = (f"--input={of_input[0] if of_input else 8}", *fields, f"--loss={of}")
    done = stagecraft_capture(f"{folder}/models.py:{model}", *given, "-o", path)
    assert done.returncode == 0, done.stderr
    assert "loss equals eager's" in done.stdout
    config = {
        "model": {"family": "captured", "path": path},
        "data": {"type": "arrays", "path": f"{folder}/data.safetensors", "shuffle": False},
        "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
        "train_batch_size": MICRO_BATCHES * SAMPLES,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": STEPS,
        **MEASURED_ONCE,
        "pipeline": {"stages": 2},
        "run_dir": f"{folder}/run_{name}",
        **({"dtype": "float64"} if model == "Double" else {}),
    }
    with open(f"{path}.json", "w") as file:
        json.dump(config, file)
    run = subprocess.run(
        [STAGECRAFT, "train", f"{path}.json"], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert run.returncode == 0, run.stderr
    assert ("it sees 2 samples at a time, not 8" in run.stderr) == (name == "contrast")
    exported = subprocess.run(
        [STAGECRAFT, "export", f"{folder}/run_{name}", "-o", f"{path}.export"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert exported.returncode == 0, exported.stderr
    losses, weights = loop(names, model, loss, data)
    with open(f"{folder}/run_{name}/metrics.jsonl") as file:
        steps = [line for line in map(json.loads, file) if "loss" in line and "step" in line]
    assert [line["loss"] for line in steps if line.get("kind", "train") == "train"][:STEPS] == pytest.approx(
        losses, rel=1e-12
    )
    trained = safetensors.load_file(f"{path}.export/model.safetensors")
    unequal = [
        key for key, value in weights.items() if key in trained and not torch.equal(trained[key], value)
    ]
    assert not unequal
    assert {key for key in weights if key in trained} >= {"body.0.weight"} or name == "positions"


REFUSED = {
    "no_loss": ("Tuple", None, "returns 2 tensors of trained numbers"),
    "usual_of_several": ("Dict", "cross_entropy", "say which the loss reads by a function"),
    "another_in_evaluation": (
        "HeadInEvaluation",
        "of_either",
        "return the same of both, or in evaluation some",
    ),
    "integers": ("Integers", "of_integers", "the loss reads ['labels'] of what the module returns"),
    "one_number": ("Dataclass", "of_number", "the loss reads no tensor of each sample"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(models, name):
    folder, _, _ = models
    model, loss, words = REFUSED[name]
    of = (
        ()
        if loss is None
        else (f"--loss={loss if loss == 'cross_entropy' else f'{folder}/models.py:{loss}'}",)
    )
    done = stagecraft_capture(f"{folder}/models.py:{model}", "--input=8", *of, "-o", f"{folder}/refused")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_narrow_module_is_one_that_was_narrowed(models):
    """What --dtype makes of its float32 numbers, which trains as mixed_loop_test.py has it."""
    folder, _, _ = models
    with open(f"{folder}/narrow.py", "w") as file:
        file.write(NARROW)
    made = {}
    for name, *more in (("narrow",), ("wide", "--dtype=bfloat16", "--full=norm")):
        path = f"{folder}/{name}"
        done = stagecraft_capture(f"{folder}/narrow.py:{name}", "--input=8", *more, "-o", path)
        assert done.returncode == 0, done.stderr
        assert 'a run of it says "bf16": {"enabled": true}' in done.stdout
        with open(f"{path}/manifest.json") as file:
            made[name] = json.load(file), safetensors.load_file(f"{path}/weights.safetensors")
    (manifest, weights), (other, numbers) = made["narrow"], made["wide"]
    assert manifest == other
    assert manifest["weights"]["0.weight"] == "bf16[16,8]"
    assert manifest["weights"]["norm.weight"] == "f32[16]"
    assert weights.keys() == numbers.keys()
    for key, value in weights.items():
        assert value.dtype == torch.float32, key
        assert torch.equal(value, numbers[key]), key


NARROW = """
import collections
import torch
from torch import nn

def narrow():
    torch.manual_seed(1)
    parts = [("0", nn.Linear(8, 16)), ("norm", nn.LayerNorm(16)), ("2", nn.Linear(16, 5))]
    model = nn.Sequential(collections.OrderedDict(parts)).bfloat16()
    model.norm.float()
    return model

def wide():
    return narrow().float()
"""


class Doubled(torch.nn.Module):
    """Called by place and by names, in every way that a forward can ask for."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 5)

    def of(self, x, scale):
        return self.b(self.a(x).relu() * scale)


class ByNames(Doubled):
    def forward(self, **fields):
        return self.of(fields["x"], fields["y"])


class BehindADefault(Doubled):
    def forward(self, scale=2.0, *xs):
        return self.of(xs[0] + xs[1], scale)


class ByPlaceAlone(Doubled):
    def forward(self, x, bias=0.0, y=None, /):
        return self.of(x + bias, y)


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [(ByNames, "x", "y"), (BehindADefault, "xs0", "xs1"), (ByPlaceAlone, "x", "y")],
)
def test_calls(kind, first, second):
    fields = [Field(name, [8], torch.float32) for name in (first, second)]
    fields[1].shape = [16 if second == "y" else 8]
    equal(kind.__name__, WithLoss(kind(), None), Batch(fields), 2)


class OwnLoss(torch.nn.Module):
    """A module that returns its output and its own loss, which reads more of it than the output."""

    def __init__(self, loss):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())
        self.head, self.aside, self.of_loss = torch.nn.Linear(16, 5), torch.nn.Linear(16, 6), loss

    def forward(self, x, labels=None, more=None):
        h = self.body(x)
        output, aside = self.head(h), self.aside(h)
        return output, self.of_loss(output, aside, x, labels, more)


def classes(logits, labels):
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


# Losses of (output, what the module keeps to itself, input, labels, more labels), and the fields they read.
OWN_LOSSES = {
    "an auxiliary head": (lambda o, a, x, y, m: classes(o, y) + 0.4 * classes(a, y), {"labels": [3]}),
    "two heads with labels each": (
        lambda o, a, x, y, m: classes(o, y) + classes(a, m),
        {"labels": [3], "more": [3]},
    ),
    "the other head alone": (lambda o, a, x, y, m: classes(a, y) + 0.01 * o.square().mean(), {"labels": [3]}),
    "one number beside": (lambda o, a, x, y, m: classes(o, y) + 0.1 * a.square().mean(), {"labels": [3]}),
    "the input, and no labels": (
        lambda o, a, x, y, m: (o[..., :4] - x[..., :4]).square().mean() + 0.1 * a.exp().mean(),
        {},
    ),
    "turned": (
        lambda o, a, x, y, m: (
            torch.nn.functional.cross_entropy(o.mT, y) + torch.nn.functional.cross_entropy(a.mT, y)
        ),
        {"labels": [3]},
    ),
}


@pytest.mark.parametrize("name", OWN_LOSSES)
def test_loss_of_the_module_itself(name):
    loss, labels = OWN_LOSSES[name]
    fields = [Field("x", [3, 8], torch.float32), *(Field(n, shape, below=5) for n, shape in labels.items())]
    torch.manual_seed(0)
    equal(f"a loss that reads {name}", OwnLoss(loss), Batch(fields), 2, has_loss=True)


class Deep(torch.nn.Module):
    """Heads behind inner blocks, as of deep supervision, and a loss of all that it returns."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()) for _ in "abc")
        self.heads = nn.ModuleList(nn.Linear(8, 6) for _ in "abc")

    def forward(self, x):
        made = []
        for block, head in zip(self.blocks, self.heads):
            x = block(x)
            made.append(head(x))
        return made[::-1]


def apart(o, y):
    return {"loss": classes(o[0], y) + 0.5 * (classes(o[1], y) + classes(o[2], y)), "first": classes(o[2], y)}


def together(o, y):
    return classes(o[0], y) + classes(o[1], y) + (o[0] - o[2]).square().mean()


# Losses of [the last head's logits, the second's, the first's], and how many numbers for all samples, and how
# many values, go to the last layer beside what is between all blocks.
OF_DEEP = {
    "each head alone": (apart, 3, 0),  # the term is a number of its own
    "one beside the last": (together, 1, 1),
    "of no label": (lambda o, y: classes(o[0], y) + o[1].square().mean() + o[2].exp().mean(), 2, 0),
    "of each sample": (lambda o, y: classes(o[0], y) + (o[1][:, 0, 0] * o[2][:, 0, 0]).mean(), 0, 2),
    "a sum of two": (lambda o, y: classes(o[0], y) + (classes(o[1], y) + 1) * o[2].mean(), 2, 0),
}


@pytest.mark.parametrize("name", OF_DEEP)
def test_a_loss_of_an_inner_value_is_computed_where_it_is_made(name):
    of_deep, numbers, values = OF_DEEP[name]
    batch = Batch([Field("x", [3, 8], torch.float32), Field("y", [3], below=6)])
    torch.manual_seed(0)
    module = Deep()

    def loss(output, fields):
        return of_deep(output, fields["y"])

    results = results_of(module(batch.at(2)["x"]), module, lambda made: loss(made, batch.at(2)), 2)
    layers = equal(name, WithLoss(module, loss, results), batch, 5, has_loss=True)
    given = layers[-1].graph["inputs"]
    assert (given.count("f32[]"), len(given) - 1) == (numbers, numbers + values)


def test_a_module_s_own_loss_of_inner_values_is_computed_where_they_are_made():
    class Own(Deep):
        def forward(self, x, labels=None):
            last, second, first = super().forward(x)
            return last, classes(last, labels) + 0.5 * (classes(second, labels) + classes(first, labels))

    batch = Batch([Field("x", [3, 8], torch.float32), Field("labels", [3], below=6)])
    torch.manual_seed(0)
    layers = equal("heads of a module with its own loss", WithLoss(Own(), None), batch, 5, has_loss=True)
    assert layers[-1].graph["inputs"].count("f32[]") == 2


class Hidden(torch.nn.Module):
    """Returns its loss beside the logits that it is of, what these are of, and what no weight reaches."""

    def __init__(self, penalty):
        super().__init__()
        self.body, self.head, self.penalty = torch.nn.Linear(8, 16), torch.nn.Linear(16, 5), penalty

    def forward(self, x, labels):
        h = self.body(x).tanh()
        logits = self.head(h)
        loss = classes(logits, labels) + self.penalty * h.square().mean()
        return {"loss": loss, "hidden": h, "logits": logits, "given": logits.detach() + 1}


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_a_loss_of_logits_beside_what_these_come_from(penalty):
    batch = Batch([Field("x", [3, 8], torch.float32), Field("labels", [3], below=5)])
    torch.manual_seed(0)
    module = Hidden(penalty)
    if penalty == 0:
        module.forward = lambda x, labels: {  # the loss reads the logits alone
            **(made := Hidden.forward(module, x, labels)),
            "loss": classes(made["logits"], labels),
        }
    results = results_of(module(**batch.at(2)), module, lambda made: made["loss"], 2)
    equal(
        "hidden states beside",
        WithLoss(module, lambda made, _: made["loss"], results),
        batch,
        2,
        has_loss=True,
    )


class Weighed(torch.nn.Module):
    """Two tasks, and a weight of each, which has as many numbers as a batch of two."""

    def __init__(self):
        super().__init__()
        nn = torch.nn
        self.body, self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 5), nn.Linear(16, 1)
        self.log_variances = nn.Parameter(torch.tensor([0.1, -0.2]))

    def forward(self, x):
        h = self.body(x).tanh()
        return self.a(h), self.b(h).squeeze(1), self.log_variances


def test_weights_that_a_loss_reads_are_handed_over():
    batch = Batch([Field("x", [8], torch.float32), Field("y", [], below=5), Field("r", [], torch.float32)])
    torch.manual_seed(0)
    module = Weighed()

    def loss(made, fields):
        tasks = torch.stack([classes(made[0], fields["y"]), (made[1] - fields["r"]).square().mean()])
        return ((-made[2]).exp() * tasks + made[2]).sum()

    results = results_for(module(x=batch.at(2)["x"]), module, loss, batch.at(2))
    assert results.shared == {2}
    equal("weights of tasks", WithLoss(module, loss, results), batch, 2, has_loss=True)


class Turned(torch.nn.Module):
    """Heads that read what does not lie in one piece add their bias behind the product."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Conv1d(8, 16, 1)
        self.a, self.b = torch.nn.Linear(16, 6), torch.nn.Linear(16, 6)

    def forward(self, x):
        h = self.body(x).tanh().transpose(1, 2)
        return self.a(h), self.b(h)


def test_gradients_of_several_results_are_those_of_a_plain_loop():
    """A gradient that lies in the joined one's memory adds up to another bias's."""
    batch = Batch([Field("x", [8, 33], torch.float32), Field("y", [33], below=6)])
    torch.manual_seed(0)
    module = Turned()

    def loss(output, fields):
        return classes((output[0] * output[1])[:, :-1].reshape(-1, 6), fields["y"][:, 1:].reshape(-1))

    results = results_of(module(batch.at(2)["x"]), module, lambda made: loss(made, batch.at(2)), 2)
    equal("two heads", WithLoss(module, loss, results), batch, 2, has_loss=True)


def test_an_evaluation_that_no_gradient_goes_through():
    """It writes to what a gradient of its forward would need, as MONAI's VarAutoEncoder does."""

    class Spread(Turned):
        def forward(self, x):
            a, b = super().forward(x)
            spread = b.exp()
            return a, (spread * 1.0 if self.training else spread.add_(a)), b

    batch = Batch([Field("x", [8, 5], torch.float32), Field("y", [5], below=6)])
    module = Spread()

    def loss(output, fields):
        return classes(output[0] + output[1] + output[2].detach(), fields["y"])

    made = module.eval()(batch.at(2)["x"])
    results = results_of(made, module, lambda made: loss(made, batch.at(2)), 2)
    assert results.detached == {2}
    equal("an evaluation in place", WithLoss(module, loss, results), batch, 2, has_loss=True)


def test_a_loss_that_reads_the_output_as_it_is_and_as_float():
    """torch.export knows both as one tensor. Dice reads it as it is, focal loss as .float()."""

    def loss(output, fields):
        right = torch.nn.functional.one_hot(fields["y"], 6)
        overlap = (output.softmax(-1) * right).sum()
        logits = output.float()
        return (logits - logits * right - torch.nn.functional.logsigmoid(logits)).mean() - overlap / 100

    batch = Batch([Field("input", [8], torch.float32), Field("y", [], below=6)])
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 6))
    layers = equal("logits and .float()", WithLoss(module, loss), batch, 2, has_loss=True)
    assert layers[-1].graph["outputs"] == ["f32[b,6]"], "the loss reads the output alone"


class States(torch.nn.Module):
    """As an LSTM returns its last states: samples lie behind the layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(8, 16), torch.nn.Linear(16, 15), torch.nn.Linear(16, 6)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h).t()[None], self.c(h)


def test_samples_that_lie_behind_another_dimension():
    def loss(output, fields):
        return classes(output[1], fields["y"]) + output[0].square().mean()

    batch = Batch([Field("x", [8], torch.float32), Field("y", [], below=6)])
    torch.manual_seed(0)
    module = States()
    made, of_three = (module(batch.at(count)["x"]) for count in (2, 3))
    results = results_of(made, module, lambda made: loss(made, batch.at(2)), 2, lambda: of_three)
    assert results.samples_in == {0: (2, 1), 1: (0, 1)}
    equal("states of layers", WithLoss(module, loss, results), batch, 2, has_loss=True)


class Statistics(torch.nn.Module):
    """Batch norm between what it returns: gradients of one result by another need its statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = torch.nn.Linear(8, 6), torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6)

    def forward(self, x, y):
        before = self.a(x)
        after = before + self.norm(self.b(before))
        return {"loss": classes(after, y), "after": after, "before": before}


def test_statistics_that_are_put_back_have_gradients_of_earlier_forwards():
    batch = Batch([Field("x", [8], torch.float32), Field("y", [], below=6)])
    module = Statistics()
    made = module.eval()(**batch.at(2))
    with state_kept(module):
        module.train()(**batch.at(2))
    results = results_of(made, module, lambda made: made["loss"], 2)
    assert results.names == ["['after']"]


class Decodes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 9), torch.nn.Linear(9, 6)

    def forward(self, x, states):
        return x + self.b(torch.tanh(self.a(x))) * states


class Crossed(torch.nn.Module):
    """As encoders and decoders that return the encoder's states beside a loss of the decoder's."""

    def __init__(self):
        super().__init__()
        self.encoder, self.start, self.head = (torch.nn.Linear(of, 6) for of in (8, 8, 6))
        self.layers = torch.nn.ModuleList([Decodes(), Decodes()])

    def forward(self, x, y):
        states, h = self.encoder(x), self.start(x)
        for layer in self.layers:
            h = layer(h, states)
        return {"loss": classes(self.head(h), y), "states": states}


def test_what_goes_through_a_layer_to_one_that_has_no_gradient_for_it():
    batch = Batch([Field("x", [8], torch.float32), Field("y", [], below=6)])
    module = Crossed()

    def loss(output, fields):
        return output["loss"]

    fields = batch.at(2)
    results = results_for(module.eval()(**fields), module, loss, fields).instead
    assert results.names == ["['loss']", "['states']"] and results.detached
    equal("states beside a loss", WithLoss(module, loss, results), batch, 4, has_loss=True)
