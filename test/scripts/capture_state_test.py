"""Captures small modules with state of every kind (capture_state_cases.py): each equals eager over two
forwards in training, with all that they changed, or is refused with its own words. Before that, runs of two
such modules beside a loop in eager mode."""

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from capture_cases import CaptureError, capture, check, numbers
from capture_state_cases import CASES, Rounds, is_in_rounds
from forked import isolated, stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, STAGECRAFT, covering

STEPS, OF_STEP, SAMPLES = 3, 4, 2  # micro-batches of two samples


def config(folder, name):
    return {
        "model": {"family": "captured", "path": f"{folder}/{name}.model"},
        "data": {
            "type": "arrays",
            "path": f"{folder}/data.safetensors",
            "inputs": "inputs",
            "shuffle": False,
        },
        "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
        "train_batch_size": OF_STEP * SAMPLES,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": STEPS,
        **MEASURED_ONCE,
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 1},
        "run_dir": f"{folder}/run",
    }


def train(folder, name, *settings):
    Path(f"{folder}/run.json").write_text(json.dumps(config(folder, name)))
    changes = [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(
        [STAGECRAFT, "train", f"{folder}/run.json", *changes],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )


def in_eager_mode(module, data):
    """What a loop makes of the module's state."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.003, fused=True)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(step * OF_STEP, (step + 1) * OF_STEP):
            at = slice(i * SAMPLES, (i + 1) * SAMPLES)
            (
                torch.nn.functional.cross_entropy(
                    module(data["inputs"][at].clone()), data["targets"][at].clone()
                )
                / OF_STEP
            ).backward()
        optimizer.step()
    return module.state_dict()


@pytest.fixture(scope="module")
def data(folder):
    """Of a run, and beside it the modules."""
    generator = torch.Generator().manual_seed(5)
    count = STEPS * OF_STEP * SAMPLES
    data = {
        "inputs": torch.randn(count, 8, generator=generator),
        "targets": torch.randint(5, (count,), generator=generator),
    }
    safetensors.save_file(data, f"{folder}/data.safetensors")
    Path(f"{folder}/mine.py").write_text("from capture_state_cases import Always, Rounds\n")
    return data


def test_runs(folder, data):
    """A run's buffers and weights are eager's, on one stage and on two; a folder that does not equal eager is
    asked for, and says so."""
    done = stagecraft_capture(
        f"{folder}/mine.py:Rounds",
        "--input",
        "8",
        "--loss",
        "cross_entropy",
        "-o",
        f"{folder}/Rounds.model",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    done = train(folder, "Rounds", "activation_checkpointing.recompute=all")
    assert (
        done.returncode == 2 and "reads buffers that it changes" in done.stderr and "none" in done.stderr
    ), done.stderr
    isolated(beside_eager, folder, data)


def test_inexact(folder, data):
    given = (
        f"{folder}/mine.py:Always",
        "--input",
        "8",
        "--loss",
        "cross_entropy",
        "-o",
        f"{folder}/Always.model",
    )
    done = stagecraft_capture(*given)
    for said in (
        "do not equal eager PyTorch",
        "output in evaluation DIFFERS",
        "eager changes 'mean' in evaluation too",
        "--allow-inexact",
    ):
        assert done.returncode == 3 and said in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not os.path.exists(f"{folder}/Always.model"), done.stderr
    done = stagecraft_capture(*given, "--allow-inexact")
    assert done.returncode == 0 and "eager changes 'mean' in evaluation too" in done.stdout, (
        done.stdout + done.stderr
    )
    with open(f"{folder}/Always.model/manifest.json") as file:
        assert json.load(file)["checked"]["evaluation"] == "differs"
    done = train(folder, "Always", f"run_dir={folder}/inexact")
    said = f"{folder}/Always.model does not equal eager PyTorch, its manifest says: evaluation differs"
    assert done.returncode == 0, done.stderr
    assert f"Model: {said}" in done.stdout + done.stderr


def beside_eager(folder, data):
    expected = in_eager_mode(Rounds().train(), data)
    for stages in (1, 2):
        run = f"{folder}/run{stages}"
        done = train(folder, "Rounds", f"run_dir={run}", f"pipeline.stages={stages}")
        assert done.returncode == 0 and "does not equal" not in done.stdout + done.stderr, done
        subprocess.run([STAGECRAFT, "export", run, "-o", f"{run}.export"], check=True, capture_output=True)
        found = safetensors.load_file(f"{run}.export/model.safetensors")
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        differing = [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
        assert not differing, (stages, differing)
    print(
        f"a run: {len(expected)} weights and buffers of {len(Rounds())} modules equal eager's after {STEPS}"
        " steps, on one stage and on two"
    )


# What test_runs has among others, and of which there is no more to say, is not captured alone.
ALONE = [case for case in CASES if case.left_out or not is_in_rounds(case)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in covering(CASES, ALONE)])
def test_case(case):
    """What the capture says of the module, and whether that is as expected."""
    module, batch = case.build(), numbers(8, name="h" if case.alone else "input")
    before = {name: t.clone() for name, t in module.state_dict().items()}
    try:
        model = capture(module, batch)
        checked = check(module, model, batch.at(4))
    except CaptureError as error:
        said = str(error)
        print(f"{case.name}: refused: {said}")
        assert 'File "' in said or "lies in the memory" in said  # of two weights there is no line
        assert case.words
        for word in case.words:
            assert word in said
        return
    for name, t in module.state_dict().items():
        assert torch.equal(t, before[name]), f"{name} is not as it was"
    parts = {part: checked[part] == "equal" for part in ("output", "evaluation")}
    parts["gradients"] = checked["equal"] == checked["gradients"] > 0
    parts["buffers"] = checked["buffers"] == checked["buffers_equal"]
    differs = [part for part, equal in parts.items() if not equal]
    left_out = sorted(path.removeprefix("1.") for path in model.changes.left_out)
    said = f"{' and '.join(differs)} differ" if differs else "equal"
    said += f", {len(model.layers)} layers, {checked['buffers']} buffers"
    print(f"{case.name}: {said}" + (f", left out: {', '.join(left_out)}" if left_out else ""))
    assert case.layers in (None, len(model.layers))
    trained = next(i for i, layer in enumerate(model.layers) if layer.tensors.names["p"])
    for layer in model.layers[trained + 1 :]:  # those before are frozen
        assert any(gradient is not None for gradient in layer.graph["backward_input"]["outputs"])
    assert not case.words, "was captured, and should not be"
    assert differs == ([case.differs] if case.differs else [])
    assert left_out == sorted(case.left_out)
