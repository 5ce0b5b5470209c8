"""Compiles a captured model's stretches, holds pipelined runs against the run of one stage, to the bit, and
tries what is refused."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Of each library this is a second's work less of the compiler: what calls the kernels. The kernels are
# compiled as ever.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
pytest.importorskip("transformers", reason="scripts/setup.sh --models installs it")
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")

from forked import stagecraft_capture
from places import ENVIRONMENT, MEASURED_ONCE, STAGECRAFT
from stagecraft_capture import compile as compiling
from stagecraft_capture.compile import stretches_of

SAMPLES, LENGTH, WORDS = 4, 64, 64
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": WORDS,
    "n_positions": LENGTH,
    "resid_pdrop": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}


def train(folder, name, changes=(), launcher=(), **model):
    """Losses of a run and its exit code, and what it said."""
    model = model if "family" in model else {"family": "captured", "path": f"{folder}/gpt2.model", **model}
    config = {
        "model": model,
        "data": {"type": "arrays", "path": f"{folder}/text.safetensors", "shuffle": False},
        "optimizer": {"type": "AdamW"},
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": SAMPLES,
        "train_steps": 3,
        "threads_per_rank": 1,
        **MEASURED_ONCE,
    }
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(config, file)
    settings = [part for setting in (f"run_dir={folder}/{name}", *changes) for part in ("--set", setting)]
    done = subprocess.run(
        [*launcher, STAGECRAFT, "train", f"{folder}/{name}.json", *settings],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        check=False,
    )
    lines = Path(f"{folder}/{name}/metrics.jsonl")
    records = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    losses = [(record["loss"], record.get("gradient_norm")) for record in records]
    return losses, done.returncode, done.stdout + done.stderr


def refused(folder, name, *said, **model):
    losses, code, text = train(folder, name, **{"compiled": "allow", **model})
    assert code == 2 and not losses and all(part in text for part in said), (code, text)


def test_stretches():
    """A view of a result that another step reads stays a step; one that only the stretch reads does not."""
    steps = [
        ["aten::mul.Tensor", ["%0 f32[b,4]"], ["in0", "in0"]],
        ["aten::view", ["%1 f32[4*b]"], ["%0", [-1]]],
        ["aten::tanh", ["%2 f32[4*b]"], ["%1"]],
        ["aten::view", ["%3 f32[b,4]"], ["%2", [-1, 4]]],
        ["aten::mm", ["%4 f32[b,4]"], ["%3", "p0"]],
        ["aten::relu", ["%5 f32[b,4]"], ["%4"]],
    ]
    (found,) = stretches_of(
        {
            "forward": {
                "steps": steps,
                "outputs": ["%5"],
                "buffers": [],
                "keep_input": ["%1"],
                "keep_weight": [],
            }
        },
        "forward",
    )
    assert (found.replaced, found.computed, found.inputs, found.outputs) == (
        [0, 2],
        [0, 1, 2, 3],
        ["in0"],
        ["%0", "%2"],
    ), found


@pytest.fixture(scope="module", autouse=True)
def gpt2(folder):
    """Of the long stretches, of every part, all taken for faster, whatever a loaded machine measures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "LEAST", 5)
        patch.setattr(compiling, "GAIN", 1e9)
        with open(f"{folder}/gpt2.json", "w") as file:
            json.dump(GPT2, file)
        safetensors.save_file(
            {"inputs": torch.randint(WORDS, (64, LENGTH)), "targets": torch.randint(WORDS, (64, LENGTH))},
            f"{folder}/text.safetensors",
        )
        done = stagecraft_capture(
            "--hf",
            f"{folder}/gpt2.json",
            "--sequence",
            str(LENGTH),
            "--compile",
            str(SAMPLES),
            "-o",
            f"{folder}/gpt2.model",
        )
        assert done.returncode == 0 and f"compiled for micro-batches of {SAMPLES}" in done.stdout, (
            done.stdout + done.stderr
        )
        print(done.stdout.splitlines()[-2])


def test_runs(folder):
    plain, code, text = train(folder, "plain")
    assert code == 0, text
    one, code, text = train(folder, "one", ["pipeline.stages=1"], compiled="require")
    assert code == 0 and f"Compiled: micro-batches of {SAMPLES} samples with 1 thread per rank" in text, text
    assert len(one) >= 3 and one != plain, "nothing ran compiled"
    assert all(abs(a[0] - b[0]) < 1e-4 * abs(b[0]) for a, b in zip(one, plain)), (one, plain)
    for name, *changes in (
        ("zb", "pipeline.stages=2", "pipeline.schedule=zb_h1"),
        ("again", "pipeline.stages=2", "activation_checkpointing.recompute=all"),
        ("three", "pipeline.stages=3", "pipeline.schedule=fill_drain"),
    ):
        found, code, text = train(folder, name, changes, compiled="require")
        assert code == 0 and found == one, (name, text, found, one)
    found, code, text = train(
        folder, "two_threads", ["pipeline.stages=1", "threads_per_rank=2"], compiled="allow"
    )
    assert code == 0 and "code is not run: it is for 1 thread per rank, and this run has 2" in text, text
    found, code, text = train(
        folder,
        "processes",
        ["pipeline.stages=2"],
        ["mpirun", "-np", "2", "--oversubscribe"],
        compiled="require",
    )
    assert code == 0 and found == one, (text, found, one)
    other, code, text = train(
        folder, "onednn", ["pipeline.stages=1", "matrix_products=onednn"], compiled="require"
    )
    split, more, words = train(
        folder, "onednn_2", ["pipeline.stages=2", "matrix_products=onednn"], compiled="require"
    )
    assert code == more == 0 and other == split and other, (text, words)
    print(f"gpt2: compiled runs of 1, 2 and 3 stages are equal: {one}; interpreted: {plain}")


@pytest.mark.by_hand  # minutes of compiling, for 1 to 8 % of a step
def test_narrow(folder, monkeypatch):
    """In bfloat16 with two threads per rank, long stretches all taken for faster, whatever is measured:
    runs of one and of two stages are equal, and other sizes of micro-batch are interpreted, a short last one
    too."""
    with open(f"{folder}/small.json", "w") as file:
        json.dump({**GPT2, "n_layer": 1}, file)
    monkeypatch.setattr(compiling, "GAIN", 1e9)
    monkeypatch.setattr(compiling, "LEAST", 4)
    done = stagecraft_capture(
        "--hf",
        f"{folder}/small.json",
        "--sequence",
        str(LENGTH),
        "--compile",
        str(SAMPLES),
        "--threads",
        "2",
        "--dtype",
        "bfloat16",
        "--keep",
        "all",
        "-o",
        f"{folder}/small.model",
    )
    assert done.returncode == 0, done.stdout + done.stderr

    def run(name, *changes, compiled="allow"):
        losses, code, text = train(
            folder,
            f"narrow.{name}",
            ['bf16={"enabled":true}', "threads_per_rank=2", *changes],
            path=f"{folder}/small.model",
            compiled=compiled,
        )
        assert code == 0 and len(losses) >= 3, (name, code, text)
        return losses

    one, two = ("pipeline.stages=1",), ("pipeline.stages=2", "pipeline.schedule=zb_h1")
    eight, short = "train_micro_batch_size_per_gpu=8", "train_batch_size=14"  # the latter is 4 + 4 + 4 + 2
    assert run("one", *one) == run("two", *two) != run("interpreted", *one, compiled="off")
    assert run("eights", *one, eight) == run("eights.interpreted", *one, eight, compiled="off")
    assert (
        run("short", *one, short)
        == run("short.zb", *two, short)
        != run("short.interpreted", *one, short, compiled="off")
    )


def test_refusals(folder):
    where = f"{folder}/gpt2.model/compiled"
    with open(f"{where}/index.json") as file:
        index = json.load(file)

    def changed(change, name, *said, **model):
        other = json.loads(json.dumps(index))
        change(other)
        with open(f"{where}/index.json", "w") as file:
            json.dump(other, file)
        refused(folder, name, "index.json", *said, **model)

    graph = next(i for i, g in enumerate(index["graphs"]) if g["runs"])

    def run(i):
        return i["graphs"][graph]["runs"][0]

    at = f"/graphs/{graph}/runs/0"
    changed(lambda i: i.update(format=2), "format", "/format")
    changed(lambda i: i.update(more=1), "more", "more")
    changed(lambda i: run(i).update(part="sideways"), "part", f"{at}/part")
    changed(lambda i: run(i)["steps"].append(99999), "steps", f"{at}/steps")
    changed(lambda i: run(i)["steps"].reverse(), "order", f"{at}/steps")
    changed(
        lambda i: run(i)["inputs"].__setitem__(0, "%9999"), "input", f"{at}/inputs/0", "there is no value"
    )
    changed(lambda i: run(i)["strides"].__setitem__(0, [1]), "strides", f"{at}/strides/0")
    changed(lambda i: run(i)["outputs"].__setitem__(0, run(i)["inputs"][0]), "output", f"{at}/outputs/0")
    changed(
        lambda i: run(i)["outputs"].pop(),
        "fewer",
        "where no step and no run has made it" if len(run(index)["outputs"]) > 1 else f"{at}/outputs",
    )
    changed(lambda i: run(i).update(file="../../../etc/x"), "file", f"{at}/file")
    changed(lambda i: i["files"].update({"../x": "00"}), "path", "/files/")
    changed(lambda i: i["graphs"][graph].update(graph="0" * 16), "graph", f"/graphs/{graph}/graph")
    changed(
        lambda i: i.update(capability="AVX9"),
        "required",
        'model.compiled is "require"',
        "AVX9",
        compiled="require",
    )
    losses, code, text = train(folder, "allowed", compiled="allow")
    assert code == 0 and losses and "AVX9" in text and "all is interpreted" in text, text
    changed(
        lambda i: i["graphs"][graph].update(samples=5), "size", "for micro-batches of 4", compiled="require"
    )
    changed(
        lambda i: i.update(threads=7),
        "threads",
        "with 1 thread per rank on cpu",
        "with 7 threads per rank on the CPU",
        compiled="require",
    )
    with open(f"{where}/index.json", "w") as file:
        json.dump(index, file)
    library = f"{where}/{run(index)['file']}.so"
    with open(library, "ab") as file:
        file.write(b"x")
    refused(folder, "hash", os.path.basename(library), "its SHA-256 is")
    losses, code, text = train(folder, "off")
    assert code == 0 and losses, text
    os.remove(library)
    refused(folder, "missing", os.path.basename(library))
    shutil.rmtree(where)
    refused(folder, "none", "the folder has none", "--compile", compiled="require")
    losses, code, text = train(folder, "none_allowed", compiled="allow")
    assert code == 0 and losses and "the folder has none" in text, text
