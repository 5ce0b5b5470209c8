"""Named terms of a loss beside the eager loop that adds them up: in sc.pipeline and in `stagecraft train`, of
steps and of validations, to the bit where the loss is."""

import copy
import json
import math
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from forked import stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, STAGECRAFT, require_package
from tiny_mixtral import mixtral

require_package()

import stagecraft as sc

MICRO_BATCHES, SAMPLES, STEPS = 4, 4, 3  # SAMPLES: of a micro-batch
torch.set_num_threads(1)


# A file of its own for the command line; what tests here use of it is the same code.
MODEL = '''
import torch
from torch import nn


class ActorCritic(nn.Module):
    """Its guess is read by a term alone: no gradient comes to that head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
        self.actor, self.critic, self.guess = nn.Linear(8, 5), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x)
        return self.actor(h), self.critic(h).squeeze(-1), self.guess(h).squeeze(-1)


def build():
    torch.manual_seed(0)
    return ActorCritic()


def parts(output, batch):
    logits, value, guess = output
    actor = nn.functional.cross_entropy(logits, batch["targets"])
    critic = (value - batch["returns"]).square().mean()
    return {
        "loss": actor + 0.5 * critic,
        "actor": actor,
        "critic": critic,
        "right": logits.argmax(-1).eq(batch["targets"]).float().mean(),
        "guessed": guess.detach().mean(),
        "of-class/0": batch["targets"].eq(0).sum(),
        "constant": torch.tensor(2.5),
    }


def pair(output, batch):
    terms = parts(output, batch)
    return terms.pop("loss"), terms


def total(output, batch):
    return parts(output, batch)["loss"]
'''
OF_MODEL: dict = {}
exec(MODEL, OF_MODEL)
ActorCritic, parts = OF_MODEL["ActorCritic"], OF_MODEL["parts"]


def rows(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(count, 8, generator=generator),
        "targets": torch.randint(0, 5, (count,), generator=generator),
        "returns": torch.randn(count, generator=generator),
    }


def micro_batches(batch, size=SAMPLES):
    count = len(next(iter(batch.values())))
    return [{name: t[i : i + size] for name, t in batch.items()} for i in range(0, count, size)]


def added(module, batch, backward=False, loss=parts):
    """What a loop adds up over a batch's micro-batches: the loss and its terms."""
    sums: dict = {}
    for part in micro_batches(batch):
        made = loss(module(part["x"]), part)
        made = made if isinstance(made, dict) else {"loss": made}
        share = len(part["x"]) / len(batch["x"])
        if backward:
            (made["loss"] * share).backward()
        for name, number in made.items():
            sums[name] = sums.get(name, 0.0) + float(number.detach().double()) * share
    return sums


def adamw(module):
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, fused=True)


def stepped(module, optimizer, batch, loss=parts):
    optimizer.zero_grad()
    sums = added(module.train(), batch, backward=True, loss=loss)
    optimizer.step()
    return sums


def evaluated(module, batch, loss=parts):
    with torch.no_grad():
        return added(module.eval(), batch, loss=loss)


def numbers(step):
    return {"loss": step.loss, **step.terms}


PIPELINES = {
    "one stage": {"stages": 1},
    "1f1b": {"stages": 2, "schedule": "1f1b"},
    "a V": {"stages": 4, "schedule": "zb_v"},
}


@pytest.mark.parametrize("given", PIPELINES.values(), ids=PIPELINES)
def test_terms_are_those_of_the_loop(given):
    module = OF_MODEL["build"]()
    theirs = copy.deepcopy(module)
    optimizer = adamw(theirs)
    step = sc.pipeline(
        module,
        rows(16),
        loss=parts,
        optimizer=adamw(module),
        micro_batches=MICRO_BATCHES,
        threads_per_rank=1,
        **given,
    )
    for number in range(STEPS):
        batch = rows(16 if number != 1 else 14, seed=number)  # one with an uneven micro-batch
        assert numbers(step(batch)) == stepped(theirs, optimizer, batch)
    ours = step.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())
    assert numbers(step.evaluate(rows(16, seed=9))) == evaluated(theirs, rows(16, seed=9))


def test_terms_change_no_bit():
    """Nor has a loss without terms some."""
    batch, states = rows(16), []
    for loss in (parts, OF_MODEL["pair"], OF_MODEL["total"]):
        module = OF_MODEL["build"]()
        step = sc.pipeline(module, batch, loss=loss, optimizer=adamw(module), stages=2, threads_per_rank=1)
        losses = [step(rows(16, seed=seed)).loss for seed in range(STEPS)]
        states.append((losses, step.state_dict()))
        assert set(step(batch).terms) == (set() if loss is OF_MODEL["total"] else {*parts_names()})
    (losses, first), *others = states
    for their_losses, theirs in others:
        assert their_losses == losses
        assert all(torch.equal(first[name], tensor) for name, tensor in theirs.items())


def parts_names():
    return {"actor", "critic", "right", "guessed", "of-class/0", "constant"}


def test_replicas_add_terms_as_the_loss():
    module = OF_MODEL["build"]()
    theirs, batch = copy.deepcopy(module), rows(16)
    step = sc.pipeline(
        module,
        batch,
        loss=parts,
        optimizer=adamw(module),
        micro_batches=MICRO_BATCHES,
        stages=2,
        widths=[2, 2],
        threads_per_rank=1,
    )
    assert step.plan.stages[1].ranks == (2, 3)
    assert numbers(step.evaluate(batch)) == evaluated(theirs, batch)
    assert numbers(step(batch)) == stepped(theirs, adamw(theirs), batch)


def test_a_loss_in_double_precision_keeps_what_its_backward_reads():
    """The root's backward reads the root, which the share is not multiplied into."""

    def root(output, batch):
        made = (output - batch["targets"]).square().mean().sqrt()
        return {"loss": made, "root": made, "minus": -made}

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    theirs = copy.deepcopy(module)
    optimizer = adamw(theirs)
    x, targets = torch.randn(8, 8).double(), torch.randn(8, 1).double()
    step = sc.pipeline(
        module,
        (x, targets),
        loss=root,
        optimizer=adamw(module),
        stages=2,
        micro_batches=2,
        threads_per_rank=1,
    )
    expected = 0.0
    for part, target in zip(x.split(4), targets.split(4)):
        of_part = root(theirs(part), {"targets": target})["loss"]
        (of_part * 0.5).backward()
        expected += float(of_part.detach()) * 0.5
    optimizer.step()
    assert numbers(step((x, targets))) == {"loss": expected, "root": expected, "minus": -expected}
    ours = step.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())


def test_what_has_a_gradient_in_training_alone_has_it_here_too():
    module, batch = OF_MODEL["build"]().eval(), rows(8)
    theirs = copy.deepcopy(module)

    def loss(output, batch):
        guess = output[2] if module.training else output[2].detach()
        return OF_MODEL["total"](output, batch) + guess.square().mean()

    step = sc.pipeline(
        module, batch, loss=loss, optimizer=adamw(module), stages=2, micro_batches=1, threads_per_rank=1
    )
    output = theirs(batch["x"])
    (OF_MODEL["total"](output, batch) + output[2].square().mean()).backward()
    adamw(theirs).step()
    step(batch)
    ours = step.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())


class EarlyExits(torch.nn.Module):
    """A head behind each block, with a loss of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        nn = torch.nn
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))
        self.exits = nn.ModuleList(nn.Linear(8, 5) for _ in range(4))

    def forward(self, x):
        made = []
        for block, leave in zip(self.blocks, self.exits):
            x = block(x)
            made.append(leave(x))
        return made[-1], made[:-1]


def of_exits(output, batch):
    """The third exit's spread is reported, and not trained."""
    last, exits = output
    terms = {f"exit{k}": torch.nn.functional.cross_entropy(e, batch["targets"]) for k, e in enumerate(exits)}
    last = torch.nn.functional.cross_entropy(last, batch["targets"])
    total = last + sum(0.5 / (k + 1) * term for k, term in enumerate(terms.values()))
    right = exits[0].argmax(-1).eq(batch["targets"]).float().mean()
    return {"loss": total, **terms, "right0": right, "spread2": exits[2].square().mean()}


@pytest.mark.parametrize(
    "given", [*PIPELINES.values(), {"stages": 3, "schedule": "zb_h1"}, {"stages": 4, "schedule": "pipedream"}]
)
def test_heads_of_inner_layers_have_their_losses_there(given):
    module = EarlyExits()
    theirs = copy.deepcopy(module)
    optimizer = adamw(theirs)
    step = sc.pipeline(
        module,
        rows(16),
        loss=of_exits,
        optimizer=adamw(module),
        micro_batches=MICRO_BATCHES,
        threads_per_rank=1,
        **given,
    )
    for number in range(STEPS):
        batch = rows(16, seed=number)
        expected = stepped(theirs, optimizer, batch, of_exits)
        assert numbers(step(batch)) == expected
    ours = step.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())
    assert numbers(step.evaluate(rows(16))) == evaluated(theirs, rows(16), of_exits)


class HeadsInTraining(EarlyExits):
    def forward(self, x):
        last, exits = super().forward(x)
        return [last, exits[2]] if self.training else last


def test_a_module_may_return_more_in_training():
    def loss(output, batch):
        made = output if isinstance(output, list) else [output]
        return sum(torch.nn.functional.cross_entropy(each, batch["targets"]) for each in made)

    module = HeadsInTraining()
    theirs, batch = copy.deepcopy(module), rows(16)
    given = {"loss": loss, "micro_batches": MICRO_BATCHES, "stages": 2, "threads_per_rank": 1}
    step = sc.pipeline(module, batch, optimizer=adamw(module), **given)
    assert step.evaluate(batch).loss == evaluated(theirs, batch, loss)["loss"]
    assert step(batch).loss == stepped(theirs, adamw(theirs), batch, loss)["loss"]
    ours = step.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.state_dict().items())


def test_the_loss_of_routers_is_a_term():
    model = mixtral()
    tokens = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens}
    step = sc.pipeline(
        model, batch, stages=2, schedule="1f1b", micro_batches=2, threads_per_rank=1, config=MEASURED_ONCE
    )
    found = step(batch)
    halves = [model.train()(input_ids=t, labels=t) for t in tokens.split(4)]
    assert found.terms == {"aux_loss": sum(float(each.aux_loss.double()) / 2 for each in halves)}
    assert found.loss == sum(float(each.loss.double()) / 2 for each in halves)


# The command line


def run(*command, code=0):
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, env=ENVIRONMENT, check=False, timeout=200
    )
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def captured(folder):
    with open(f"{folder}/model.py", "w") as file:
        file.write(MODEL)
    for loss in ("parts", "total"):
        done = stagecraft_capture(
            f"{folder}/model.py:build",
            *("--input", "8", "--field", "targets=i64[]<5", "--field", "returns=f32[]"),
            *("--loss", f"{folder}/model.py:{loss}", "-o", f"{folder}/{loss}.model"),
        )
        assert done.returncode == 0, done.stderr
        assert ("terms equal eager's" in done.stdout) == (loss == "parts")
    write_data(folder)
    return folder


def write_data(folder):
    for name, count in (("train", STEPS * MICRO_BATCHES * SAMPLES), ("valid", 6)):
        data = rows(count, seed=count)
        safetensors.save_file({"inputs": data.pop("x"), **data}, f"{folder}/{name}.safetensors")


def config_of(folder, name, loss="parts", **pipeline):
    config = {
        "model": {"family": "captured", "path": f"{folder}/{loss}.model"},
        "data": {
            "type": "arrays",
            "path": f"{folder}/train.safetensors",
            "validation_path": f"{folder}/valid.safetensors",
            "inputs": "inputs",
            "shuffle": False,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "train_batch_size": MICRO_BATCHES * SAMPLES,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": STEPS,
        "steps_per_print": 1,
        "validation": {"every_steps": 1},
        "checkpoint": {"every_steps": 1},
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 2, **pipeline},
        **MEASURED_ONCE,
        "run_dir": f"{folder}/{name}",
    }
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(config, file)
    return f"{folder}/{name}.json"


def lines_of(folder, name):
    with open(f"{folder}/{name}/metrics.jsonl") as file:
        return [json.loads(line) for line in file]


def expected_lines():
    """Of the loop: a step's and a validation's in turn."""
    module, count = OF_MODEL["build"](), STEPS * MICRO_BATCHES * SAMPLES
    optimizer, found = adamw(module), []
    for step in micro_batches(rows(count, seed=count), MICRO_BATCHES * SAMPLES):
        found.append(stepped(module, optimizer, step))
        found.append(evaluated(module, rows(6, seed=6)))
    return found


def check_lines(folder, name):
    found = [{"loss": line["loss"], **line["terms"]} for line in lines_of(folder, name)]
    assert found == expected_lines()


@pytest.mark.parametrize("launcher", [[], ["mpirun", "--oversubscribe", "-np", "2"]], ids=["threads", "MPI"])
def test_a_run_has_them_in_its_lines(captured, launcher):
    if launcher and not shutil.which("mpirun"):
        pytest.skip("there is no mpirun")
    name = f"run{len(launcher)}"
    said = run(*launcher, STAGECRAFT, "train", config_of(captured, name))
    check_lines(captured, name)
    line = next(line for line in said.splitlines() if line.startswith("step  1/"))
    assert " actor " in line and " critic " in line
    with open(f"{captured}/{name}/summary.json") as file:
        summary = json.load(file)
    assert summary["last_step"]["terms"] == lines_of(captured, name)[-2]["terms"]
    assert summary["last_validation"]["terms"] == lines_of(captured, name)[-1]["terms"]


def test_a_resumed_run_goes_on_with_them(captured):
    config = config_of(captured, "resumed", stages=4, schedule="zb_v")
    run(STAGECRAFT, "train", config, "--set", "train_steps=2")
    run(STAGECRAFT, "train", config, "--resume")
    check_lines(captured, "resumed")


def test_a_loss_without_terms_leaves_no_trace(captured):
    run(STAGECRAFT, "train", config_of(captured, "plain", loss="total"))
    found = lines_of(captured, "plain")
    assert [line["loss"] for line in found] == [made["loss"] for made in expected_lines()]
    for file in ("metrics.jsonl", "summary.json", "profile.json"):
        with open(f"{captured}/plain/{file}") as text:
            assert "terms" not in (words := text.read()) and "loss_bytes" not in words


def test_a_term_that_is_not_finite_is_null(tmp_path):
    (tmp_path / "model.py").write_text(
        MODEL + "\n\ndef broken(output, batch):\n"
        "    none, one = (output[1] * 0).log().mean() * 0, output[1].sum() * 0 + 1\n"
        '    return {"loss": total(output, batch), "nan": none, "one": one}\n'
    )
    done = stagecraft_capture(
        f"{tmp_path}/model.py:build",
        *("--input", "8", "--field", "targets=i64[]<5", "--field", "returns=f32[]"),
        *("--loss", f"{tmp_path}/model.py:broken", "-o", f"{tmp_path}/parts.model"),
    )
    assert done.returncode == 0, done.stderr
    write_data(tmp_path)
    run(STAGECRAFT, "train", config_of(tmp_path, "run"))
    for line in lines_of(tmp_path, "run"):
        assert line["terms"] == {"nan": None, "one": 1.0} and math.isfinite(line["loss"])


# What is no term

REFUSED = {
    "an item": ("{'loss': total(o, b), 'ce': 1.0}", "term 'ce' is a float", "without .item() or float()"),
    "several numbers": (
        "{'loss': total(o, b), 'ce': o[1]}",
        "term 'ce' is a tensor of float32[2]: give one number, such as its .mean() or .sum()",
    ),
    "one in a list": (
        "{'loss': total(o, b), 'ce': o[1].mean().view(1)}",
        "term 'ce' is a tensor of float32[1]",
    ),
    "complex": ("{'loss': total(o, b), 'z': torch.complex(o[1].mean(), o[1].mean())}", "complex64[]"),
    "no loss": ("{'ce': total(o, b)}", "a dict of ce: put what is trained under 'loss'"),
    "nothing": ("{}", "a dict of nothing: put what is trained under 'loss'"),
    "loss twice": ("(total(o, b), {'loss': total(o, b)})", "a term of the name 'loss'", "another name"),
    "a number as name": (
        "{'loss': total(o, b), 3: total(o, b)}",
        "a term of the name 3: give it one of 1 to 40",
    ),
    "a line break": ("{'loss': total(o, b), 'a\\nb': total(o, b)}", r"a term of the name 'a\nb'"),
    "a space": ("{'loss': total(o, b), 'my ce': total(o, b)}", "a term of the name 'my ce'"),
    "an empty name": ("{'loss': total(o, b), '': total(o, b)}", "a term of the name ''"),
    "a long name": ("{'loss': total(o, b), 'n' * 41: total(o, b)}", "give it one of 1 to 40 letters"),
    "too many": (
        "{'loss': total(o, b), **{f't{i}': total(o, b) for i in range(33)}}",
        "33 terms; there may be 32",
    ),
    "the loss a list": ("{'loss': [total(o, b)], 'ce': total(o, b)}", "the loss returns a list instead of"),
    "in training alone": (
        "{'loss': total(o, b), **({'ce': total(o, b)} if torch.now_training else {})}",
        "the term 'ce' in training alone",
        "output.new_zeros(())",
    ),
}


@pytest.mark.parametrize(("made", "words"), [(row[0], row[1:]) for row in REFUSED.values()], ids=REFUSED)
def test_what_is_no_term_is_refused(tmp_path, made, words):
    text = MODEL.replace(
        "h = self", "torch.now_training = self.training\n        h = self"
    )  # for one of them
    (tmp_path / "model.py").write_text(text + f"\n\ndef mistake(o, b):\n    return {made}\n")
    done = stagecraft_capture(
        f"{tmp_path}/model.py:build",
        *("--input", "8", "--field", "targets=i64[]<5", "--field", "returns=f32[]"),
        *("--loss", f"{tmp_path}/model.py:mistake", "-o", f"{tmp_path}/mistake.model"),
    )
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def test_python_refuses_alike():
    with pytest.raises(sc.CaptureError, match="term 'ce' is a float"):
        sc.pipeline(
            OF_MODEL["build"](), rows(16), loss=lambda o, b: {"loss": OF_MODEL["total"](o, b), "ce": 1.0}
        )
