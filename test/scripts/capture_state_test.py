#!/usr/bin/env python3
"""Captures small modules with state of every kind (capture_state_cases.py): each equals eager over two
forwards in training, with all that they changed, or is refused with its own words. Prints the table of
outcomes. Before that, runs of two such modules beside a loop in eager mode.

    capture_state_test.py SOURCE_DIR STAGECRAFT [NAME...]          exits with 77 where torch or safetensors is
    missing; NAME: of cases alone
"""

import json
import os
import subprocess
import sys
import tempfile
import traceback

import uncollected  # noqa: F401  # before PyTorch

from capture_cases import CaptureError, capture, check, numbers, torch
from capture_state_cases import CASES, Rounds
from forked import isolated, stagecraft_capture

try:
    import safetensors.torch
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

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
        "threads_per_rank": 1,
        "pipeline": {"schedule": "1f1b", "stages": 1},
        "run_dir": f"{folder}/run",
    }


def train(stagecraft, folder, name, *settings):
    with open(f"{folder}/run.json", "w") as file:
        json.dump(config(folder, name), file)
    changes = [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(
        [stagecraft, "train", f"{folder}/run.json", *changes],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
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


def test_runs(stagecraft):
    """A run's buffers and weights are eager's, on one stage and on two; a folder that does not equal eager is
    asked for, and says so."""
    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(5)
        count = STEPS * OF_STEP * SAMPLES
        data = {
            "inputs": torch.randn(count, 8, generator=generator),
            "targets": torch.randint(5, (count,), generator=generator),
        }
        safetensors.torch.save_file(data, f"{folder}/data.safetensors")
        with open(f"{folder}/mine.py", "w") as file:
            file.write("from capture_state_cases import Always, Rounds\n")
        test_inexact(stagecraft, folder)
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
        done = train(stagecraft, folder, "Rounds", "activation_checkpointing.recompute=all")
        assert (
            done.returncode == 2 and "reads buffers that it changes" in done.stderr and "none" in done.stderr
        ), done.stderr
        isolated(beside_eager, stagecraft, folder, data)


def test_inexact(stagecraft, folder):
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
    done = train(stagecraft, folder, "Always", f"run_dir={folder}/inexact")
    assert (
        done.returncode == 0
        and f"Model: {folder}/Always.model does not equal eager PyTorch, its manifest says: evaluation differs"
        in done.stdout + done.stderr
    ), done


def beside_eager(stagecraft, folder, data):
    expected = in_eager_mode(Rounds().train(), data)
    for stages in (1, 2):
        run = f"{folder}/run{stages}"
        done = train(stagecraft, folder, "Rounds", f"run_dir={run}", f"pipeline.stages={stages}")
        assert done.returncode == 0 and "does not equal" not in done.stdout + done.stderr, done
        subprocess.run([stagecraft, "export", run, "-o", f"{run}.export"], check=True, capture_output=True)
        found = safetensors.torch.load_file(f"{run}.export/model.safetensors")
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        differing = [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
        assert not differing, (stages, differing)
    print(
        f"a run: {len(expected)} weights and buffers of {len(Rounds())} modules equal eager's after {STEPS}"
        " steps, on one stage and on two"
    )


def outcome(case):
    """What the capture says of the module, and whether that is as expected."""
    module, batch = case.build(), numbers(8, name="h" if case.alone else "input")
    before = {name: t.clone() for name, t in module.state_dict().items()}
    try:
        model = capture(module, batch)
        checked = check(module, model, batch.at(4))
    except CaptureError as error:
        # of two weights there is no line
        has_line = 'File "' in str(error) or "lies in the memory" in str(error)
        return f"refused: {error}", has_line and bool(case.words) and all(
            word in str(error) for word in case.words
        )
    except Exception:
        traceback.print_exc()
        return "failed", False
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items()), (
        f"{case.name}: the module is not as it was"
    )
    parts = {part: checked[part] == "equal" for part in ("output", "evaluation")}
    parts |= {
        "gradients": checked["equal"] == checked["gradients"] > 0,
        "buffers": checked["buffers"] == checked["buffers_equal"],
    }
    differs = [part for part, equal in parts.items() if not equal]
    left_out = sorted(path.removeprefix("1.") for path in model.changes.left_out)
    said = f"{' and '.join(differs)} differ" if differs else "equal"
    said += f", {len(model.layers)} layers, {checked['buffers']} buffers" + (
        f", left out: {', '.join(left_out)}" if left_out else ""
    )
    as_many = case.layers in (None, len(model.layers)) and all(
        any(g is not None for g in layer.graph["backward_input"]["outputs"]) for layer in model.layers[1:]
    )
    return said, as_many and not case.words and differs == (
        [case.differs] if case.differs else []
    ) and left_out == sorted(case.left_out)


def main(names):
    wrong, chosen = [], [case for case in CASES if not names or any(name in case.name for name in names)]
    width = max(len(case.name) for case in chosen)
    for case in chosen:
        said, expected = outcome(case)
        print(f"{'  ' if expected else 'X '}{case.name:<{width}}  {said}", flush=True)
        wrong += [] if expected else [case.name]
    print(f"{len(chosen)} modules, {len(wrong)} not as expected{': ' if wrong else ''}{'; '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if not sys.argv[3:]:
        test_runs(sys.argv[2])
    sys.exit(main(sys.argv[3:]))
