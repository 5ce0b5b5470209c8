#!/usr/bin/env python3
"""Compiles a captured model's stretches and the layers of the library's own GPT, holds pipelined runs against the run of one stage, to the bit, and
tries what is refused.

    capture_compile_test.py SOURCE_DIR STAGECRAFT          exits with 77 where transformers, safetensors or g++ is missing
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import uncollected  # noqa: F401: before PyTorch

# Of each library this is a second's work less of the compiler: what calls the kernels. The kernels are compiled as ever.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"

try:
    import safetensors.torch
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)
if not shutil.which("g++"):
    print("skipped: there is no g++")
    sys.exit(77)

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path.insert(0, f"{SOURCE}/python")
from stagecraft_capture import compile as compiling
from stagecraft_capture.compile import stretches_of

from forked import stagecraft_capture

SAMPLES, LENGTH, WORDS = 4, 64, 64
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "n_positions": LENGTH, "resid_pdrop": 0.1, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def train(folder, name, changes=(), launcher=(), **model):
    """Losses of a run and its exit code, and what it said."""
    model = model if "family" in model else {"family": "captured", "path": f"{folder}/gpt2.model", **model}
    config = {
        "model": model, "data": {"type": "arrays", "path": f"{folder}/text.safetensors", "shuffle": False}, "optimizer": {"type": "AdamW"},
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": SAMPLES, "train_steps": 3, "threads_per_rank": 1, "profiler": {"repeats": 1, "warmup_ms": 0},
    }  # fmt: skip
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(config, file)
    settings = [part for setting in (f"run_dir={folder}/{name}", *changes) for part in ("--set", setting)]
    done = subprocess.run([*launcher, STAGECRAFT, "train", f"{folder}/{name}.json", *settings], capture_output=True, text=True, env=ENVIRONMENT)
    lines = f"{folder}/{name}/metrics.jsonl"
    losses = [(record["loss"], record.get("gradient_norm")) for record in map(json.loads, open(lines))] if os.path.exists(lines) else []
    return losses, done.returncode, done.stdout + done.stderr


def refused(folder, name, *said, **model):
    losses, code, text = train(folder, name, **{"compiled": "allow", **model})
    assert code == 2 and not losses and all(part in text for part in said), (code, text)


def test_stretches():
    """A view of a result that another step reads stays a step; one that only the stretch reads does not."""
    steps = [
        ["aten::mul.Tensor", ["%0 f32[b,4]"], ["in0", "in0"]], ["aten::view", ["%1 f32[4*b]"], ["%0", [-1]]], ["aten::tanh", ["%2 f32[4*b]"], ["%1"]],
        ["aten::view", ["%3 f32[b,4]"], ["%2", [-1, 4]]], ["aten::mm", ["%4 f32[b,4]"], ["%3", "p0"]], ["aten::relu", ["%5 f32[b,4]"], ["%4"]],
    ]  # fmt: skip
    (found,) = stretches_of({"forward": {"steps": steps, "outputs": ["%5"], "buffers": [], "keep_input": ["%1"], "keep_weight": []}}, "forward")
    assert (found.replaced, found.computed, found.inputs, found.outputs) == ([0, 2], [0, 1, 2, 3], ["in0"], ["%0", "%2"]), found


def test_runs(folder):
    plain, code, text = train(folder, "plain")
    assert code == 0, text
    one, code, text = train(folder, "one", ["pipeline.stages=1"], compiled="require")
    assert code == 0 and f"Compiled: micro-batches of {SAMPLES} samples with 1 thread per rank" in text, text
    assert len(one) >= 3 and one != plain, "nothing ran compiled"
    assert all(abs(a[0] - b[0]) < 1e-4 * abs(b[0]) for a, b in zip(one, plain)), (one, plain)
    for name, *changes in (
        ("zb", "pipeline.stages=2", "pipeline.schedule=zb_h1"), ("again", "pipeline.stages=2", "activation_checkpointing.recompute=all"), ("three", "pipeline.stages=3", "pipeline.schedule=fill_drain"),
    ):  # fmt: skip
        found, code, text = train(folder, name, changes, compiled="require")
        assert code == 0 and found == one, (name, text, found, one)
    found, code, text = train(folder, "two_threads", ["pipeline.stages=1", "threads_per_rank=2"], compiled="allow")
    assert code == 0 and "code is not run: it is for 1 thread per rank, and this run has 2" in text, text
    found, code, text = train(folder, "processes", ["pipeline.stages=2"], ["mpirun", "-np", "2", "--oversubscribe"], compiled="require")
    assert code == 0 and found == one, (text, found, one)
    other, code, text = train(folder, "onednn", ["pipeline.stages=1", "matrix_products=onednn"], compiled="require")
    split, more, words = train(folder, "onednn_2", ["pipeline.stages=2", "matrix_products=onednn"], compiled="require")
    assert code == more == 0 and other == split and other, (text, words)
    print(f"gpt2: compiled runs of 1, 2 and 3 stages are equal: {one}; interpreted: {plain}")


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
    run = lambda i: i["graphs"][graph]["runs"][0]
    at = f"/graphs/{graph}/runs/0"
    changed(lambda i: i.update(format=2), "format", "/format")
    changed(lambda i: i.update(more=1), "more", "more")
    changed(lambda i: run(i).update(part="sideways"), "part", f"{at}/part")
    changed(lambda i: run(i)["steps"].append(99999), "steps", f"{at}/steps")
    changed(lambda i: run(i)["steps"].reverse(), "order", f"{at}/steps")
    changed(lambda i: run(i)["inputs"].__setitem__(0, "%9999"), "input", f"{at}/inputs/0", "there is no value")
    changed(lambda i: run(i)["strides"].__setitem__(0, [1]), "strides", f"{at}/strides/0")
    changed(lambda i: run(i)["outputs"].__setitem__(0, run(i)["inputs"][0]), "output", f"{at}/outputs/0")
    changed(lambda i: run(i)["outputs"].pop(), "fewer", "where no step and no run has made it" if len(run(index)["outputs"]) > 1 else f"{at}/outputs")
    changed(lambda i: run(i).update(file="../../../etc/x"), "file", f"{at}/file")
    changed(lambda i: i["files"].update({"../x": "00"}), "path", "/files/")
    changed(lambda i: i["graphs"][graph].update(graph="0" * 16), "graph", f"/graphs/{graph}/graph")
    changed(lambda i: i.update(capability="AVX9"), "required", 'model.compiled is "require"', "AVX9", compiled="require")
    losses, code, text = train(folder, "allowed", compiled="allow")
    assert code == 0 and losses and "AVX9" in text and "all is interpreted" in text, text
    changed(lambda i: i["graphs"][graph].update(samples=5), "size", "for micro-batches of 4", compiled="require")
    changed(lambda i: i.update(threads=7), "threads", "with 1 thread per rank on cpu", "with 7 threads per rank on the CPU", compiled="require")
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


NUMBERS = {"blocks": 2, "width": 64, "heads": 4, "dropout": 0.1, "attention_dropout": 0.1}
TEXT = ["loss.type=token_cross_entropy", f"data={json.dumps({'type': 'synthetic', 'task': 'tokens', 'samples': 64, 'shape': [LENGTH], 'classes': WORDS})}", "validation.every_steps=2"]


def captured_gpt(folder, name, *more, **numbers):
    """Each stretch is taken for faster, whatever this machine measures."""
    text = ",".join(f"{key}={value}" for key, value in {**NUMBERS, **numbers}.items())
    measured, compiling.GAIN = compiling.GAIN, 1e9
    done = stagecraft_capture("--gpt", text, "--sequence", str(LENGTH), "--vocabulary", str(WORDS), "--compile", str(SAMPLES), *more, "-o", f"{folder}/{name}")
    compiling.GAIN = measured
    assert done.returncode == 0 and not os.path.exists(f"{folder}/{name}/weights.safetensors"), done.stdout + done.stderr
    return f"{folder}/{name}"


def without_code(folder, copy):
    """As where no stretch gains."""
    shutil.copytree(folder, copy)
    with open(f"{copy}/compiled/index.json") as file:
        index = json.load(file)
    for graph in index["graphs"]:
        graph["runs"] = []
    with open(f"{copy}/compiled/index.json", "w") as file:
        json.dump({**index, "files": {}}, file)
    return copy


def test_own_family(folder):
    """From the same initial weights: without dropout the same losses as the library's own layers up to rounding, and the same bits where no code
    runs. With two threads per rank and in bfloat16, too."""
    run = lambda name, changes=(), launcher=(), **model: train(folder, f"own.{name}", [*TEXT, *changes], launcher, **{"family": "gpt", **NUMBERS, **model})
    code_of = lambda done: (done[1], done[2])
    no_dropout, threads = {"dropout": 0, "attention_dropout": 0}, ["threads_per_rank=2", "pipeline.stages=1"]
    two_threads = captured_gpt(folder, "plain.code", "--threads", "2", **no_dropout)
    plain, same = run("plain", threads, **no_dropout), run("same", threads, **no_dropout, compiled=two_threads)
    said = "layers, in micro-batches of 4 samples with 2 threads per rank; the library's own layers compute the rest"
    assert plain[1] == same[1] == 0 and said in same[2], (code_of(plain), code_of(same))
    assert len(plain[0]) == len(same[0]) > 3 and same[0] != plain[0] and all(abs(a - b) < 1e-4 * abs(b) for pair in zip(same[0], plain[0]) for a, b in zip(*pair) if b), (same[0], plain[0])
    cut = run("same.cut", [*threads, "pipeline.stages=2"], **no_dropout, compiled=two_threads)
    assert cut[1] == 0 and cut[0] == same[0], code_of(cut)
    nothing_runs = without_code(two_threads, f"{folder}/none.code")
    none = run("none", threads, **no_dropout, compiled=nothing_runs)
    assert none[1] == 0 and none[0] == plain[0] and "Compiled: nothing: no layer gains by code; the library's own layers compute all" in none[2], (code_of(none), none[0], plain[0])
    code = captured_gpt(folder, "gpt.code", "--dtype", "bfloat16")
    found = run("wide", compiled=code)
    assert found[1] == 2 and 'set "bf16": {"enabled": true}' in found[2], code_of(found)
    fp32, run = run, lambda name, changes=(), launcher=(), **model: fp32(name, ['bf16={"enabled":true}', *changes], launcher, **model)
    sizes = ["train_micro_batch_size_per_gpu=8"]
    own, none = run("eights", sizes), run("eights.code", sizes, compiled=code)
    assert none[1] == 0 and none[0] == own[0] and own[0], (code_of(none), none[0], own[0])
    one = run("one", ["pipeline.stages=1"], compiled=code)
    assert one[1] == 0 and one[0] and one[0] != run("narrow", ["pipeline.stages=1"])[0], code_of(one)
    for name, launcher, *changes in (("zb", [], "pipeline.schedule=zb_h1"), ("three", [], "pipeline.stages=3", "activation_checkpointing.recompute=all"), ("processes", ["mpirun", "-np", "2", "--oversubscribe"])):
        found = run(name, ["pipeline.stages=2", *changes], launcher, compiled=code)
        assert found[1] == 0 and found[0] == one[0], (name, code_of(found), found[0], one[0])
    short = ["train_batch_size=14"]  # 4 + 4 + 4 + 2: the last by the library's own layers
    by_one, by_two = run("short", [*short, "pipeline.stages=1"], compiled=code), run("short.zb", [*short, "pipeline.stages=2", "pipeline.schedule=zb_h1"], compiled=code)
    assert by_one[1] == by_two[1] == 0 and by_one[0] == by_two[0] != [], (code_of(by_one), code_of(by_two))
    print(f"gpt: compiled runs of 1, 2 and 3 stages are equal: {one[0]}; without dropout {same[0]}, interpreted {plain[0]}")
    command = "stagecraft-capture --gpt blocks=2,width=64,heads={},feed_forward=256,dropout=0.1,attention_dropout=0.1 --sequence 64 --vocabulary {} --compile MICRO_BATCH"
    for name, said, changes, model in (
        ("absent", ["/model/compiled", "there is no folder", command.format(4, WORDS)], [], {"compiled": "nowhere"}),
        ("heads", ["/model/compiled", "heads=4", command.format(2, WORDS)], [], {"heads": 2}),
        ("words", ['layer "embedding"', "[64, 64]", "[65, 64]", command.format(4, 65)], ["data.classes=65"], {}),
        ("other", ["/model/compiled", "GPT2LMHeadModel"], [], {"compiled": f"{folder}/gpt2.model"}),
    ):  # fmt: skip
        losses, exit_code, text = run(name, changes, **{"compiled": code, **model})
        assert exit_code == 2 and not losses and all(part in text for part in said), (name, exit_code, text)
    for arguments, said in ((["--gpt", "blocks=2,width=64"], "heads"), (["--gpt", "blocks=2,wide=64"], "wide=64"), (["--gpt", "blocks=2,width=64,heads=5"], "not a multiple"), (["--gpt", "blocks=2,width=64,heads=4", "--loss", "mse"], "--gpt is cut"), (["--gpt", "blocks=2,width=64,heads=4", "--dtype", "bfloat16", "--full", "Linear"], "--full is not for --gpt")):
        done = stagecraft_capture(*arguments, "--sequence", "8", "--vocabulary", "9", "--compile", "2", "-o", f"{folder}/refused.code")
        assert done.returncode == 2 and said in done.stderr and not os.path.exists(f"{folder}/refused.code"), (arguments, done.stderr)


def main():
    test_stretches()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/gpt2.json", "w") as file:
            json.dump(GPT2, file)
        safetensors.torch.save_file({"inputs": torch.randint(WORDS, (64, LENGTH)), "targets": torch.randint(WORDS, (64, LENGTH))}, f"{folder}/text.safetensors")
        compiling.LEAST, least = 5, compiling.LEAST  # the long stretches, of every part: test_own_family() has short ones, each compiled in seconds
        done = stagecraft_capture("--hf", f"{folder}/gpt2.json", "--sequence", str(LENGTH), "--compile", str(SAMPLES), "-o", f"{folder}/gpt2.model")
        compiling.LEAST = least
        assert done.returncode == 0 and f"compiled for micro-batches of {SAMPLES}" in done.stdout, done.stdout + done.stderr
        print(done.stdout.splitlines()[-2])
        test_runs(folder)
        test_own_family(folder)
        test_refusals(folder)


if __name__ == "__main__":
    main()
