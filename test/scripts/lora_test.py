"""Modules whose first layers are frozen, PEFT's among them, in `stagecraft train` beside a plain loop in
eager PyTorch: losses and trained weights, to the bit. Frozen weights are not in checkpoints; a run goes on
with its own alone; exports have them, and adapters by themselves load into PEFT."""

import functools
import json
import os
import shutil
import subprocess

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
peft = pytest.importorskip("peft", reason="scripts/setup.sh --models installs it")

import eager_loop_test as loop
import lora_models
from forked import isolated
from places import ENVIRONMENT, SOURCE, STAGECRAFT, covering

MODELS = f"{SOURCE}/test/scripts/lora_models.py"
SYNCHRONOUS = [
    {"schedule": "1f1b", "stages": 1},
    {"schedule": "1f1b", "stages": 2},
    {"schedule": "zb_h1", "stages": 3},
    {"schedule": "zb_v", "stages": 2},
    {"schedule": "v_half", "stages": 2},
    # Each step ends before the next one begins.
    {"schedule": "pipedream", "stages": 3, "synchronous_steps": loop.STEPS},
]


def data_of(folder):
    generator = torch.Generator().manual_seed(5)
    count = loop.STEPS * loop.MICRO_BATCHES * loop.SAMPLES
    data = {name: torch.randint(64, (count, 16), generator=generator) for name in ("input_ids", "labels")}
    safetensors.save_file(data, f"{folder}/data.safetensors")
    return data


def capture(folder, name):
    """Once for all tests: each makes its folder in that of the file."""
    kept = f"{os.path.dirname(folder)}/{name}.model"
    if not os.path.exists(kept):
        loop.capture(
            f"{MODELS}:{name}",
            *("--sequence", 16, "--vocabulary", 64),
            *("--field", "labels=i64[16]<64", "--loss", f"{MODELS}:loss"),
            *("-o", kept),
        )
    shutil.copytree(kept, f"{folder}/model")


@functools.cache
def expected(name):
    """Of the eager loop, in which the optimizer has what is trained."""
    module, (_, make) = getattr(lora_models, name)(), loop.OPTIMIZERS["AdamW"]
    module.train()
    trained = [p for p in module.parameters() if p.requires_grad]

    def loss_of(of, batch):
        return lora_models.loss(of(batch["input_ids"]), batch)

    losses, weights = loop.eager(module, loss_of, expected.data, lambda _: make(trained))
    return losses, weights


def train(folder, name, pipeline, **more):
    return loop.ours(
        folder,
        f"{folder}/model",
        loop.OPTIMIZERS["AdamW"][0],
        name,
        inputs="input_ids",
        pipeline=pipeline,
        **more,
    )


def failed(*command):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    return done.returncode, done.stderr


def compare(folder, name, pipelines, exact=True):
    expected.data = data_of(folder)
    capture(folder, name)
    losses, weights = expected(name)
    module = getattr(lora_models, name)()
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    for pipeline in pipelines:
        at = f"{pipeline['schedule']}_{pipeline['stages']}"
        found = train(folder, at, dict(pipeline))
        if exact:
            loop.compare(f"{name}, {at}", (losses, weights), found)
        # Tied weights are there once.
        assert found[1].keys() == trained, "checkpoints hold what is trained, and nothing else"
    out = loop.exported(f"{folder}/{at}")
    assert out.keys() >= trained
    for key, value in out.items():
        assert torch.equal(value, weights[key]) or not exact, key
    return at


def as_adapters(folder, name, at):
    """`export --adapters` as PeftModel.from_pretrained loads it: the same logits as the whole export's."""
    out = f"{folder}/{at}.adapters"
    loop.run(STAGECRAFT, "export", f"{folder}/{at}", "--adapters", "-o", out)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(os.listdir(out))
    whole = getattr(lora_models, name)()
    whole.load_state_dict(safetensors.load_file(f"{folder}/{at}.export/model.safetensors"), strict=False)
    loaded = peft.PeftModel.from_pretrained(
        getattr(lora_models, "gpt2" if "gpt2" in name else "llama")(), out
    )
    saved = f"{folder}/{at}.saved"
    whole.model.save_pretrained(saved)
    ours, theirs = (safetensors.load_file(f"{path}/adapter_model.safetensors") for path in (out, saved))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours), name
    ids = expected.data["input_ids"][:2]
    with torch.no_grad():
        made = [m.eval()(input_ids=ids, use_cache=False).logits for m in (whole.model, loaded)]
    assert torch.equal(*made), name


@pytest.mark.parametrize("name", covering(["lora", "late_lora", "half_frozen"], ["late_lora", "half_frozen"]))
def test_every_kind_of_schedule(folder, name):
    def work():
        mine = f"{folder}/{name}"
        os.mkdir(mine)
        at = compare(mine, name, SYNCHRONOUS)
        if "lora" in name:
            as_adapters(mine, name, at)

    isolated(work)


WAYS = ["lora_gpt2", "prompt_tuning", "bitfit", "lora_bfloat16", "dora", "ia3", "head_only"]


@pytest.mark.parametrize("name", covering(WAYS, WAYS[:4]))
def test_every_way_to_freeze(folder, name):
    def work():
        mine = f"{folder}/{name}"
        os.mkdir(mine)
        at = compare(mine, name, [SYNCHRONOUS[1], SYNCHRONOUS[2]])
        if name in ("lora_gpt2", "dora", "ia3", "prompt_tuning"):
            as_adapters(mine, name, at)

    isolated(work)


def test_frozen_weights_are_held_against_their_hashes(folder):
    def work():
        mine = f"{folder}/resumed"
        os.mkdir(mine)
        expected.data = data_of(mine)
        capture(mine, "late_lora")
        pipeline = {"schedule": "1f1b", "stages": 2}
        found = train(mine, "resumed", pipeline, then=("pipeline.stages=3",))
        loop.compare("late_lora, resumed", expected("late_lora"), found)
        checkpoint = loop.newest_checkpoint(f"{mine}/resumed")
        with safetensors.safe_open(checkpoint[0], framework="pt") as file:
            keys = {key.partition("/")[0] for key in file.metadata()}
        assert "brought" in keys, "a frozen layer's file has hashes"

        # Another base model, with which the adapters would mean nothing.
        weights = f"{mine}/model/weights.safetensors"
        tensors = safetensors.load_file(weights)
        frozen = next(n for n in tensors if "layers.0.mlp.up_proj" in n)
        tensors[frozen][0, 0] += 1
        safetensors.save_file(tensors, weights)
        for command in (
            ("train", f"{mine}/resumed.json", "--resume", "--set", f"train_steps={loop.STEPS + 1}"),
            ("export", f"{mine}/resumed", "-o", f"{mine}/no.export"),
            ("export", f"{mine}/resumed", "--adapters", "-o", f"{mine}/no.adapters"),
        ):
            code, errors = failed(STAGECRAFT, *command)
            assert code == 2 and "the frozen weight" in errors and frozen in errors, (command, code, errors)

    isolated(work)


def test_adapters_of_a_model_without_any_are_refused(folder):
    def work():
        mine = f"{folder}/none"
        os.mkdir(mine)
        expected.data = data_of(mine)
        capture(mine, "half_frozen")
        train(mine, "run", {"schedule": "1f1b", "stages": 1})
        code, errors = failed(STAGECRAFT, "export", f"{mine}/run", "--adapters", "-o", f"{mine}/out")
        assert code == 2 and "has no adapters" in errors, errors

    isolated(work)


def test_the_plan_and_its_program_say_where_gradients_begin(folder):
    def work():
        mine = f"{folder}/plan"
        os.mkdir(mine)
        expected.data = data_of(mine)
        capture(mine, "late_lora")
        train(
            mine, "run", {"schedule": "1f1b", "stages": 3, "cuts": [3, 5]}
        )  # layer 3 is the first with adapters
        with open(f"{mine}/run/plan.json") as file:
            plan = json.load(file)
        assert plan["gradient_from"] == 1, plan["stages"]
        assert plan["costs"]["stages"][0]["backward_input_ms"] == 0

    isolated(work)
