"""stagecraft.pipeline() beside the plain loop that it takes the place of: losses and weights, to the bit."""

import copy
import gc
import os
import resource
import site
import sys
import sysconfig
import threading
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import BUILD, require_package
from tiny_mixtral import mixtral

require_package()

import stagecraft as sc
from stagecraft.structure import structure_of
from stagecraft_tools.installed import folders, is_installed

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


# Equal to the loop, by kinds of modules


@pytest.mark.parametrize("stages", [1, 2])
def test_own_module(stages):
    step, _ = beside_eager(net(), pairs(), class_loss, by_class, stages=stages)
    assert len(step.plan.stages) == stages
    assert step.steps == STEPS


class Whole(Net):
    def forward(self, batch):
        return super().forward(batch["a"] * batch["b"])


class Rest(Net):
    def forward(self, *xs):
        return super().forward(xs[0] * xs[1])


class ByNames(Net):
    def forward(self, a, b):
        return super().forward(a * b)


# How the inputs stand beside the target, and how eager calls the module.
FORMS = {
    "a mapping": (Whole, lambda a, b, y: {"a": a, "b": b, "targets": y}, lambda part: (part,)),
    "a mapping and a target": (
        Whole,
        lambda a, b, y: ({"a": a, "b": b}, y),
        lambda part: ({"a": part["a"], "b": part["b"]},),
    ),
    "places": (Rest, lambda a, b, y: ((a, b), y), lambda part: (part["a"], part["b"])),
    "names of places": (
        Rest,
        lambda a, b, y: {"xs0": a, "xs1": b, "targets": y},
        lambda part: (part["a"], part["b"]),
    ),
    "two inputs": (ByNames, lambda a, b, y: [(a, b), y], lambda part: (part["a"], part["b"])),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_batch(form):
    kind, made, arguments = FORMS[form]
    torch.manual_seed(0)
    module = kind()
    theirs = copy.deepcopy(module).train()
    optimizer = adamw(theirs)
    batches = [(x, x.flip(1).contiguous(), y) for x, y in pairs(2)]
    step = sc.pipeline(
        module,
        made(*batches[0]),
        loss="cross_entropy" if form == "a mapping" else class_loss,
        optimizer=adamw(module),
        micro_batches=MICRO_BATCHES,
        threads_per_rank=1,
        stages=2,
    )
    for a, b, y in batches:
        parts = [dict(zip(("a", "b", "targets"), p)) for p in zip(a.split(4), b.split(4), y.split(4))]
        expected = eager_step(
            theirs,
            optimizer,
            [(part, part["targets"]) for part in parts],
            lambda module, part: class_loss(module(*arguments(part[0])), part[0]),
        )
        assert step(made(a, b, y)).loss == expected
    assert_same_weights(step, theirs)


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


@pytest.mark.parametrize("stages", [1, 2])
def test_llama(stages):
    beside_eager(
        llama(), text_batches(64, labels="tokens"), None, own_loss, "labels", stages=stages, schedule="1f1b"
    )


def test_experts_and_the_loss_of_their_routers():
    """Experts are multiplied batched, in the loop as in the pipeline."""
    model = mixtral()
    batches = text_batches(64, padded=True, labels="tokens")[:2]
    beside_eager(model, batches, None, own_loss, "labels", stages=2, schedule="1f1b")
    model.config._experts_implementation = "grouped_mm"
    step = sc.pipeline(model, batches[0], stages=2)
    assert model.config._experts_implementation == "grouped_mm"
    assert step(batches[0]).loss > 0


@pytest.mark.parametrize("stages", [1, 2])
def test_bert_with_padding(stages):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    beside_eager(bert, text_batches(64, padded=True, labels=3), None, own_loss, stages=stages)


def test_speech_whose_forward_records_hidden_states():
    """transformers registers hooks in its first forward."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    hubert = transformers.HubertForSequenceClassification(
        transformers.HubertConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            conv_dim=(16, 16),
            conv_kernel=(4, 3),
            conv_stride=(2, 2),
            num_labels=3,
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=16,
            apply_spec_augment=False,
            layerdrop=0.0,
            hidden_dropout=0.0,
            feat_proj_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            final_dropout=0.0,
        )
    )
    generator = torch.Generator().manual_seed(2)
    batches = [
        {
            "input_values": torch.randn(8, 200, generator=generator),
            "labels": torch.randint(0, 3, (8,), generator=generator),
        }
        for _ in range(STEPS)
    ]
    beside_eager(hubert, batches, None, own_loss, micro_batches=2, stages=2)


@pytest.mark.parametrize("stages", [1, 2])
def test_resnet(stages):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    batches = [
        (
            torch.randn(8, 3, 32, 32, generator=generator),
            torch.randint(0, 10, (8,), generator=generator),
        )
        for _ in range(STEPS)
    ]
    resnet = torchvision.models.resnet18(num_classes=10)
    beside_eager(resnet, batches, "cross_entropy", by_class, micro_batches=2, stages=stages)


@pytest.mark.parametrize("stages", [1, 2])
def test_lora_of_gpt2(stages):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(0)
    base = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=64,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=32,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    )
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_dropout=0.0, task_type="CAUSAL_LM"))
    beside_eager(
        adapted,
        text_batches(64, labels="tokens"),
        None,
        own_loss,
        "labels",
        optimizer=lambda m: torch.optim.AdamW(
            [p for p in m.parameters() if p.requires_grad], lr=1e-2, fused=True
        ),
        stages=stages,
    )


# Of a module of one's own, which the cache knows from here on


def pipeline(module=None, batch=None, **given):
    """Of Net, on two stages."""
    given = {"loss": class_loss, "stages": 2, "micro_batches": MICRO_BATCHES, "threads_per_rank": 1} | given
    return sc.pipeline(net() if module is None else module, pairs()[0] if batch is None else batch, **given)


@pytest.mark.parametrize("schedule", ["fill_drain", "zb_h1", "zb_v", "interleaved_1f1b", "pipedream", "auto"])
def test_every_schedule_gives_the_bits_of_the_loop(schedule):
    step = pipeline(schedule=schedule, optimizer=sc.AdamW(lr=1e-3))
    theirs = net()
    made = adamw(theirs)
    for batch in pairs(2):
        assert step(batch).loss == eager_step(theirs, made, parts_of(batch, 4), by_class)
    assert_same_weights(step, theirs)


def test_a_second_start_captures_nothing():
    assert pipeline().capture_report == ""
    assert pipeline(cache=False).capture_report != ""


def test_a_structure_is_all_that_a_capture_sees():
    base = structure_of(net(), [])
    assert base == structure_of(net(seed=5), []), "values of weights are no part of it"
    assert base != structure_of(net(blocks=3), [])
    assert base != structure_of(net(dropout=0.5), [])
    assert base != structure_of(net(), ["another loss"])
    frozen = net()
    frozen.head.weight.requires_grad_(False)
    assert base != structure_of(frozen, [])
    told = net()
    told.scale = 2.0
    assert base != structure_of(told, [])
    told.scale = torch.tensor(2.0)
    other = net()
    other.scale = torch.tensor(3.0)
    assert structure_of(told, []) != structure_of(other, [])
    told.lock = threading.Lock()
    assert structure_of(told, []) is None, "what cannot be pickled is captured each time"


@pytest.mark.parametrize("users", [False, True])
def test_a_users_files_are_those_that_are_not_installed(tmp_path, monkeypatch, users):
    monkeypatch.setattr(site, "ENABLE_USER_SITE", users)
    folders.cache_clear()
    packages = site.getsitepackages()
    for folder in (*packages, sysconfig.get_path("stdlib")):
        assert is_installed(f"{folder}/package/file.py"), folder
    # Of other environments, which this one may see by a .pth file; the user's own folder is one of them.
    assert is_installed("/opt/app/lib/python3.11/site-packages/package/file.py")
    assert is_installed(f"{site.getusersitepackages()}/package/file.py")
    assert (os.path.realpath(site.getusersitepackages()) + os.sep in folders()) == users
    # What containers have: below Python's own prefix, and no package.
    for file in (
        f"{sys.prefix}/src/app/model.py",
        tmp_path / "net.py",
        f"{sysconfig.get_path('stdlib')}-mine/net.py",
        tmp_path / "my-site-packages" / "net.py",
        tmp_path / "site-packages",
    ):
        assert not is_installed(str(file)), file
    folders.cache_clear()


def test_batches_of_other_sizes_weigh_as_one_batch():
    step, theirs = pipeline(), net()
    made = torch.optim.AdamW(theirs.parameters(), lr=1e-3, fused=True)
    x, y = pairs(1)[0]
    uneven = [(x[:3], y[:3]), (x[3:7], y[3:7]), (x[7:8], y[7:8])]
    for ours, parts in (
        ((x, y), parts_of((x, y), 4)),
        ((x[:10], y[:10]), parts_of((x[:10], y[:10]), 4)),  # the last of an epoch
        (uneven, uneven),
        ({"x": x, "targets": y}, parts_of((x, y), 4)),
    ):
        found = step(ours)
        assert found.loss == eager_step(theirs, made, parts, by_class)
        assert found.samples == sum(len(part[0]) for part in parts)
    assert_same_weights(step, theirs)


def test_lengths():
    batches = text_batches(64, length=12, labels="tokens")
    module, theirs = llama(), llama()
    step = sc.pipeline(
        module, batches[0], stages=2, micro_batches=4, lengths=(8,), threads_per_rank=1, schedule="1f1b"
    )
    made = adamw(theirs)
    for length in (12, 8, 12):
        batch = {name: t[:, :length].contiguous() for name, t in batches[0].items()}
        found = step(batch)
        assert found.loss == eager_step(theirs, made, parts_of(batch, 2), own_loss, "labels")
        assert found.tokens == 8 * length
    with pytest.raises(sc.InputError, match="length 10, and the pipeline was made for 8, 12"):
        step({name: t[:, :10].contiguous() for name, t in batches[0].items()})


def test_an_evaluation_changes_nothing():
    step = pipeline(module=net(dropout=0.5))
    before = step.state_dict()
    found, again = step.evaluate(pairs()[0]), step.evaluate(pairs()[0])
    module = net(dropout=0.5).eval()
    x, y = pairs()[0]
    with torch.no_grad():
        expected = sum(float(by_class(module, part).double()) / 4 for part in parts_of((x, y), 4))
    assert found.loss == again.loss == expected
    assert step.steps == 0
    after = step.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rates_and_clipping():
    def rate(step):
        return 1e-2 / (step + 1)

    step = pipeline(learning_rate=rate, gradient_clipping=0.1, optimizer=sc.SGD(lr=1.0, momentum=0.9))
    theirs = net()
    made = torch.optim.SGD(theirs.parameters(), lr=1.0, momentum=0.9, fused=True)
    for number, batch in enumerate(pairs(3)):
        found = step(batch)
        assert found.learning_rate == rate(number)
        made.param_groups[0]["lr"] = rate(number)
        made.zero_grad()
        for part in parts_of(batch, 4):
            (by_class(theirs, part) / 4).backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        assert found.norm == pytest.approx(float(norm), rel=1e-6)
        made.step()
    ours = step.state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-7)
    step.set_lr(0.5)
    assert step(pairs()[0]).learning_rate == 0.5
    scheduled = pipeline(
        learning_rate={"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_type": "linear"}}
    )
    assert scheduled(pairs()[0]).learning_rate < scheduled(pairs()[0]).learning_rate


def test_groups_of_an_optimizer():
    def groups(module):
        return torch.optim.AdamW(
            [
                {"params": [p for n, p in module.named_parameters() if "bias" not in n]},
                {"params": [p for n, p in module.named_parameters() if "bias" in n], "weight_decay": 0.0},
            ],
            lr=1e-2,
            fused=True,
        )

    beside_eager(net(), pairs(3), class_loss, by_class, optimizer=groups, stages=2)


def test_weights_set_anew():
    step, other = pipeline(), net(seed=7)
    step.load_state_dict(other.state_dict())
    assert_same_weights(step, other)
    with pytest.raises(sc.InputError, match="the state has no head"):
        step.load_state_dict({n: t for n, t in other.state_dict().items() if n != "head.weight"})


def test_a_module_stays_as_it_is():
    module = net().eval()
    module.head.weight.grad = torch.ones_like(module.head.weight)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(3)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    batch = pairs()[0]
    kept = [t.clone() for t in batch]
    step = pipeline(module=module, batch=batch, cache=False)
    step(batch)
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()
    assert not module.training
    assert torch.equal(module.head.weight.grad, torch.ones_like(module.head.weight))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(batch, kept))


# Checkpoints


def as_run(folder, step, data, steps):
    """run.json of the same run for the command line."""
    import json

    from safetensors.torch import save_file

    x, y = (torch.cat([batch[i] for batch in data]) for i in (0, 1))
    save_file({"x": x, "targets": y}, f"{folder}/data.safetensors")
    config = step.config
    config["data"] = {
        "type": "arrays",
        "path": f"{folder}/data.safetensors",
        "inputs": "x",
        "shuffle": False,
    }
    config.update(train_steps=steps, run_dir=f"{folder}/run", steps_per_print=0)
    config["model"]["path"] = f"{folder}/run/model"
    for key in ("gradient_accumulation_steps", "profiler"):
        config.pop(key)
    with open(f"{folder}/run.json", "w") as file:
        json.dump(config, file)
    return f"{folder}/run.json"


def test_a_checkpoint_that_cannot_be_written_leaves_the_pipeline_as_it_was(scratch):
    data, whole = pairs(3), pipeline()
    losses = [whole(batch).loss for batch in data]
    step = pipeline()
    assert step(data[0]).loss == losses[0]
    saved = Path(step.save(scratch / "run"))
    most = max(file.stat().st_size for file in saved.iterdir()) - 1
    assert step(data[1]).loss == losses[1]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(sc.InputError, match=r"step-00000002.*File too large"):
            step.save(scratch / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(scratch / "run" / "checkpoints") == ["step-00000001"]
    assert step(data[2]).loss == losses[2]
    assert step.save(scratch / "run").endswith("step-00000003")


def test_a_folder_that_another_pipeline_has_saved_into_is_left_alone(scratch):
    data, first = pairs(2), pipeline()
    first(data[0])
    first.save(scratch / "run")
    first.save(scratch / "run")
    again = sc.load(scratch / "run")
    again(data[1])
    newest = again.save(scratch / "run")
    with pytest.raises(sc.PeerError, match=r"run: was taken over by start 3 of the run \(process \d+ on "):
        first.save(scratch / "run")
    assert sc.load(scratch / "run").steps == 2
    assert newest.endswith("step-00000002")
    assert first.save(scratch / "other").endswith("step-00000001")
    assert again.save(scratch / "run") == newest


def test_a_run_directory_is_one_model_s_and_its_newest_checkpoint_is_what_was_saved_last(scratch):
    data, first = pairs(4), pipeline()
    for batch in data:
        first(batch)
    first.save(scratch / "run")
    files = {
        path: path.read_bytes()
        for path in (scratch / "run").rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    other = pipeline(Net(blocks=3))
    other(data[0])
    with pytest.raises(sc.InputError, match=r"holds the checkpoints of another model.*save into another"):
        other.save(scratch / "run")
    assert {path: path.read_bytes() for path in files} == files
    first.save(scratch / "run")  # it is still this pipeline's
    assert other(data[1]).step == 1
    assert sc.load(scratch / "run").steps == 4
    # A script that is started anew makes the same steps again, and saves earlier ones.
    again = pipeline()
    again(data[0])
    again.save(scratch / "run")
    assert sc.load(scratch / "run").steps == 1
    assert sorted(os.listdir(scratch / "run" / "checkpoints")) == [
        "step-00000001",
        "step-00000004.earlier-1",
        "step-00000004.earlier-2",
    ]
    # One that goes on from there is its own.
    last = sc.load(scratch / "run")
    last(data[1])
    assert last.save(scratch / "run").endswith("step-00000002")
    with pytest.raises(sc.InputError, match="is a checkpoint: give its run directory"):
        sc.load(scratch / "run" / "checkpoints" / "step-00000002")


def test_the_command_line_goes_on_from_python_and_python_from_it(scratch):
    import subprocess

    from places import ENVIRONMENT, STAGECRAFT

    data, whole = pairs(6), pipeline()
    losses = [whole(batch).loss for batch in data]
    first = pipeline()
    assert [first(batch).loss for batch in data[:2]] == losses[:2]
    folder = first.save(scratch / "run")
    assert folder.endswith("step-00000002")
    again = sc.load(scratch / "run")
    assert again.steps == 2
    assert again(data[2]).loss == losses[2]
    del again
    config = as_run(scratch, first, data, 4)
    done = subprocess.run(
        [STAGECRAFT, "train", config, "--resume"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = sc.load(scratch / "run")
    assert last.steps == 4
    assert [last(batch).loss for batch in data[4:]] == losses[4:]
    ours, expected = last.state_dict(), whole.state_dict()
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    with pytest.raises(sc.InputError, match="has no whole checkpoint of step 9"):
        sc.load(scratch / "run", step=9)
    with pytest.raises(sc.InputError, match="is missing: expected a run directory"):
        sc.load(scratch / "nothing")


# As a library behaves


def test_several_pipelines_at_once_and_freed():
    first, second = pipeline(), pipeline()
    threads = set(threading.enumerate())
    before = len(os.listdir("/proc/self/task"))
    found = []

    def train(step):
        found.append([step(batch).loss for batch in pairs()])

    workers = [threading.Thread(target=train, args=(step,)) for step in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found[0] == found[1]
    assert set(threading.enumerate()) <= threads
    gone = weakref.ref(first)
    del first, second, workers
    gc.collect()
    assert gone() is None
    assert len(os.listdir("/proc/self/task")) < before


def test_two_steps_at_once_are_refused():
    batch = pairs(samples=512, width=256)[0]
    step = pipeline(module=net(width=256, blocks=12), batch=batch)
    said = []

    def train():
        for _ in range(20):
            try:
                step(batch)
            except sc.InputError as error:
                said.append(str(error))

    workers = [threading.Thread(target=train) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert said
    assert set(said) == {"two calls at once: a pipeline makes one after the other"}
    assert step.steps + len(said) == 40


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        x, y = pairs(3)[index // 16]
        return x[index % 16], y[index % 16]


def test_workers_of_a_data_loader():
    """They are forks, with the threads of ranks nowhere."""
    step, twin = pipeline(), pipeline()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=2)
    assert [step(batch).loss for batch in loader] == [twin(batch).loss for batch in pairs(3)]


def test_closed():
    with pipeline() as step:
        step(pairs()[0])
    with pytest.raises(sc.InputError, match="this pipeline is closed"):
        step(pairs()[0])
    with pytest.raises(sc.InputError, match="this pipeline is closed"):
        print(step)


def test_interrupt_ends_behind_the_step():
    import signal

    step = pipeline(module=net(width=256, blocks=12), batch=pairs(samples=512, width=256)[0])
    batch = pairs(samples=512, width=256)[0]
    step(batch)
    timer = threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT))

    def train():
        timer.start()
        for _ in range(200):
            step(batch)

    with pytest.raises(KeyboardInterrupt):
        train()
    made = step.steps
    assert step(batch).step == made


LOOKS_AROUND = """
import signal, sys, threading
before = [signal.getsignal(s) for s in (2, 15, 10)]
import stagecraft
assert before == [signal.getsignal(s) for s in (2, 15, 10)]
assert 'torch' not in sys.modules and threading.active_count() == 1
"""


def test_importing_changes_nothing():
    import subprocess

    said = subprocess.run(
        [
            sys.executable,
            "-c",
            LOOKS_AROUND,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
    )
    assert said.returncode == 0, said.stderr


class Constant(torch.nn.Module):
    def forward(self, x):
        return x


def vector_loss(output, batch):
    return torch.nn.functional.cross_entropy(output, batch["targets"], reduction="none")


def with_optimizer(make):
    module = net()
    return pipeline(module=module, optimizer=make(module))


WRONG = {
    "a module without weights": (lambda: pipeline(module=Constant()), sc.CaptureError, "has no parameters"),
    "a loss that returns a vector": (
        lambda: pipeline(loss=vector_loss),
        sc.CaptureError,
        "instead of a tensor of one number",
    ),
    "a loss of no name": (lambda: pipeline(loss="crossentropy"), sc.InputError, "cross_entropy, mse"),
    "no loss": (lambda: pipeline(loss=None), sc.InputError, "returns no loss of its own"),
    "an optimizer of another model": (
        lambda: pipeline(optimizer=torch.optim.SGD(net().parameters(), lr=0.1)),
        sc.InputError,
        "are none of the module's",
    ),
    "an optimizer nobody knows": (
        lambda: pipeline(optimizer=torch.optim.Rprop(net().parameters())),
        sc.InputError,
        "Rprop is none that the engine has",
    ),
    "a setting that is not to be had": (
        lambda: with_optimizer(lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True)),
        sc.InputError,
        "amsgrad=True",
    ),
    "an optimizer of part of the model": (
        lambda: with_optimizer(lambda m: torch.optim.AdamW(m.head.parameters())),
        sc.InputError,
        "has no group with body",
    ),
    "an optimizer by a name with a slip": (
        lambda: pipeline(optimizer="AdamV"),
        sc.InputError,
        '"AdamV".*did you mean "Adam',
    ),
    "a schedule by a name with a slip": (
        lambda: pipeline(schedule="1f1v"),
        sc.InputError,
        'did you mean "1f1b"',
    ),
    "more stages than layers": (lambda: pipeline(stages=60), sc.InputError, "60"),
    "a batch that is a tensor": (lambda: pipeline(batch=pairs()[0][0]), sc.InputError, "is a Tensor"),
    "a batch of lists": (lambda: pipeline(batch=([1.0], [2])), sc.InputError, "torch.as_tensor"),
    "a mapping of other names": (
        lambda: pipeline(batch={"y": pairs()[0][0]}),
        sc.CaptureError,
        "no argument has the name y, so 'x' is a dictionary of them",
    ),
    "a mapping of too few names": (
        lambda: pipeline(module=ByNames(), batch={"a": pairs()[0][0]}),
        sc.InputError,
        "forward needs b, and the batch has a",
    ),
    "more inputs than arguments": (
        lambda: pipeline(batch=(pairs()[0], pairs()[0][1])),
        sc.InputError,
        "takes 1 arguments by place, and the batch has 2 inputs",
    ),
    "more micro-batches than samples": (
        lambda: pipeline(micro_batches=40),
        sc.InputError,
        "expected 1 to 16, the samples of a batch, found 40",
    ),
    "a rate below zero": (lambda: pipeline().set_lr(-1), sc.InputError, "0 or more"),
    "a config's key with a slip": (
        lambda: pipeline(config={"pipeline": {"stagez": 2}}),
        sc.InputError,
        'did you mean "stages"',
    ),
    "a module on another device": (
        lambda: pipeline(module=net().to("meta")),
        sc.InputError,
        "is on meta: call module.cpu",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_inputs(what):
    make, kind, text = WRONG[what]
    with pytest.raises(kind, match=text):
        make()


STEPS_REFUSED = {
    "other keys": (lambda x, y: {"x": x, "label": y}, '"label" is nothing that the pipeline reads'),
    "a missing target": (lambda x, y: {"x": x}, '"targets" is missing'),
    "another width": (
        lambda x, y: (x[:, :3], y),
        r"has samples of \[3\], and the pipeline was made for \[16\]",
    ),
    "another type": (lambda x, y: (x.double(), y), "is Double, and the pipeline was made for float32"),
    "unlike rows": (lambda x, y: (x[:4], y), '"x" has 4 samples, |has 16 samples, "x" has 4'),
    "no samples": (lambda x, y: (x[:0], y[:0]), "has no samples"),
    "a class beyond": (lambda x, y: (x, y + 3), "class|beyond|expected"),
    "numbers that are none": (lambda x, y: (x * float("nan"), y), "finite|nan|NaN"),
    "a triple": (lambda x, y: (x, y, y), "is a tuple of 3"),
    "too large a micro-batch": (lambda x, y: [(x, y)], "made for 1 to 4"),
}


def test_a_refused_batch_leaves_everything_as_it_was():
    step, twin = pipeline(), pipeline()
    x, y = pairs()[0]
    for what, (make, text) in STEPS_REFUSED.items():
        with pytest.raises(sc.InputError, match=text) as refused:
            _ = step(make(x, y)).loss
        assert "\n" not in str(refused.value), what
    assert step.steps == 0
    assert [step(batch).loss for batch in pairs()] == [twin(batch).loss for batch in pairs()]


# The planner, of the same module


def test_profile_plan_and_run():
    found = sc.profile(net(), pairs()[0], loss=class_loss, micro_batches=MICRO_BATCHES)
    assert [layer.name for layer in found.measurements[0].layers][-2:] == ["head", "loss"]
    plan = sc.plan(
        found,
        sc.Cluster.of_machines(2, bytes_per_second=1e9),
        schedule="1f1b",
        stages=2,
        micro_batches=MICRO_BATCHES,
    )
    assert "stage" in str(plan)
    assert len(plan.stages) == 2


def test_a_plan_of_ones_own(scratch):
    step = pipeline(schedule="zb_h1")
    step.plan.save(scratch / "plan.json")
    again = pipeline(stages=None, plan=scratch / "plan.json")
    assert again.plan.schedule.name == "zb_h1"
    assert again(pairs()[0]).loss == step(pairs()[0]).loss


MORE_WRONG = {
    "a rate that is a number": (
        lambda: pipeline(learning_rate=1e-3),
        "learning_rate: is a number, which the optimizer",
    ),
    "a schedule of PyTorch's": (
        lambda: pipeline(learning_rate="cosine"),
        "learning_rate: is a str, expected a function",
    ),
    "a schedule without an end": (
        lambda: pipeline(learning_rate={"type": "WarmupCosineLR", "params": {}}),
        "WarmupCosineLR goes by the steps of the whole training: give steps=",
    ),
    "a loss of PyTorch's": (
        lambda: pipeline(loss=torch.nn.CrossEntropyLoss()),
        "CrossEntropyLoss takes two tensors",
    ),
    "a function of PyTorch's": (
        lambda: pipeline(loss=torch.nn.functional.cross_entropy),
        "cross_entropy takes two tensors",
    ),
    "an optimizer that is not made": (lambda: pipeline(optimizer=sc.AdamW), "'AdamW' is not called yet"),
    "a class of module": (lambda: pipeline(module=Net), "the module is the class Net: give an instance"),
    "no module": (lambda: sc.pipeline(None, pairs()[0]), "the module is a NoneType"),
    "no threads": (lambda: pipeline(threads_per_rank=0), "threads_per_rank: expected 1 or more, found 0"),
    "a precision of no name": (
        lambda: pipeline(precision="bf16"),
        "precision: expected float32, bfloat16, float16",
    ),
}


@pytest.mark.parametrize("what", MORE_WRONG)
def test_more_wrong_inputs(what):
    make, text = MORE_WRONG[what]
    with pytest.raises(sc.InputError, match=text):
        make()


def test_what_numbers_may_be():
    step = pipeline(optimizer=sc.AdamW(lr=torch.tensor(1e-3)))
    assert step(pairs()[0]).learning_rate == pytest.approx(1e-3)
    assert step.is_first
    assert pipeline(optimizer="adamw").config["optimizer"]["type"] == "AdamW"
    again = pipeline(stages=None, plan=step.plan)
    assert [s.first_layer for s in again.plan.stages] == [s.first_layer for s in step.plan.stages]


def test_bfloat16():
    step = pipeline(precision="bfloat16")
    losses = [step(batch).loss for batch in pairs()]
    assert losses[0] == pytest.approx(pipeline()(pairs()[0]).loss, rel=0.05)
    assert all(tensor.dtype == torch.float32 for tensor in step.state_dict().values())


def test_a_module_of_float64():
    batches = [(x.double(), y) for x, y in pairs()]
    step, _ = beside_eager(net().double(), batches, class_loss, by_class, stages=2)
    assert step.config["dtype"] == "float64"


def test_a_module_of_bfloat16_is_one_that_was_narrowed():
    narrow = net().bfloat16()
    wide = copy.deepcopy(narrow).float()
    losses = [
        [step(batch).loss for batch in pairs(2)]
        for step in (pipeline(module=narrow), pipeline(module=wide, precision="bfloat16"))
    ]
    assert losses[0] == losses[1]
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}


def test_steps_are_sent_to_a_tool(monkeypatch):
    """Steps and evaluations, as they were made, until the end."""
    from stagecraft_follow import command, step_log
    from stagecraft_follow.target import Target

    kept = []

    class Recorder(Target):
        def __init__(self, about):
            self.about, self.id = about, "mine"
            kept.append(self)
            self.points, self.end = [], None

        def send(self, points):
            self.points += points

        def close(self, end):
            self.end = end.word

    step = pipeline()
    with pytest.raises(sc.InputError, match="no_such_tool"):
        step.log_to("no_such_tool")
    for module in (command, step_log):
        monkeypatch.setattr(module, "target_class", lambda name: Recorder)
    step.log_to("otlp", name="net")
    first, second = pairs(2)
    made = step(first)
    evaluated = step.evaluate(second)
    after = step(second)
    step.close()
    (recorder,) = kept
    assert recorder.end == "finished" and recorder.about.name == "net" and recorder.about.config["seed"] == 0
    found = {(p.step, f.flat): f.number for p in recorder.points for f in p.figures}
    assert found[1, "train/loss"] == made.loss and found[2, "train/loss"] == after.loss
    assert found[1, "validation/loss"] == evaluated.loss
    assert found[2, "rank_1/time_compute_ms"] == after.ranks[1].compute * 1e3
    assert found[2, "time/step_predicted_ms"] == recorder.about.plan["predicted"]["step_ms"]
