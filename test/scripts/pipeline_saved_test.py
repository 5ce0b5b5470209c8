"""Checkpoints of stagecraft.pipeline(): who may write where; the command line and Python go on from each
other's."""

import os
import resource
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import require_package

require_package()

import stagecraft as sc
from pipeline_cases import Net, pairs, pipeline


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


def trained(config, *more):
    import subprocess

    from places import ENVIRONMENT, STAGECRAFT

    command = [STAGECRAFT, "train", config, "--resume", *more]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


def test_a_rate_that_was_set_is_the_rate_of_whoever_goes_on(scratch):
    data, step = pairs(6), pipeline(learning_rate=lambda number: 1e-2 / (1 + number))
    step(data[0])
    step.set_lr(3e-3)
    assert step.config["optimizer"]["params"]["lr"] == 3e-3
    step(data[1])
    step.save(scratch / "run")
    losses = [step(batch).loss for batch in data[2:]]
    again = sc.load(scratch / "run")
    said = again(data[2])
    assert (said.learning_rate, said.loss) == (3e-3, losses[0])
    again.save(scratch / "run")
    done = trained(as_run(scratch, again, data, 5))
    assert done.returncode == 0, done.stderr
    last = sc.load(scratch / "run")
    assert (last.steps, last(data[5]).loss) == (5, losses[3])
    other = as_run(scratch, pipeline(), data, 6)  # which has another rate
    assert "optimizer.params.lr" in trained(other).stderr


def test_a_function_that_gave_the_rates_is_asked_for_again(scratch):
    def rate(number):
        return 1e-2 / (1 + number)

    data, step = pairs(4), pipeline(learning_rate=rate)
    for batch in data[:2]:
        step(batch)
    step.save(scratch / "run")
    losses = [step(batch).loss for batch in data[2:]]
    with pytest.raises(
        sc.InputError, match=r"its learning rate, 0\.005 in the last step.*give learning_rate="
    ):
        sc.load(scratch / "run")
    again = sc.load(scratch / "run", learning_rate=rate)
    assert [again(batch).loss for batch in data[2:]] == losses
    constant = sc.load(scratch / "run", config={"scheduler": {"type": "constant"}})
    assert constant(data[2]).learning_rate == 1e-3
    config = as_run(scratch, step, data, 4)
    refused = trained(config)
    assert refused.returncode == 2
    assert "no file has it; --allow scheduler goes on" in refused.stderr
    allowed = trained(config, "--allow", "scheduler")
    assert allowed.returncode == 0, allowed.stderr


def test_a_disk_that_is_full_is_told_in_one_line(scratch, monkeypatch):
    def full(source, target, **_more):
        reason = f"[Errno 28] No space left on device: '{target}/a.json'"
        raise shutil.Error([(source, target, reason), (source, target, reason)])

    step = pipeline()
    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(sc.InputError) as told:
        step.save(scratch / "run")
    assert "kept beside the checkpoint: [Errno 28] No space left" in str(told.value)
    assert len(str(told.value)) < 300
    assert not [name for name in os.listdir(scratch / "run") if name.startswith("model")]


class Placed(Net):
    """Its first layer reads a constant that is made of a buffer, as the tables of places in Swin are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.arange(16).flip(0))
        self.body.register_buffer("shared", self.places)

    def forward(self, x):
        return super().forward(x[:, self.places.view(4, 4).t().flatten()])


def test_what_was_loaded_has_the_buffers_that_constants_were_made_of(scratch):
    torch.manual_seed(0)
    module = Placed()
    step = pipeline(module)
    step.save(scratch / "run")
    again = sc.load(scratch / "run").state_dict()
    assert again.keys() == module.state_dict().keys()
    assert torch.equal(again["places"], module.places)
    assert torch.equal(again["body.shared"], module.places)
