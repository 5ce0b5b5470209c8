#!/usr/bin/env python3
"""Profiles a PyTorch model, plans with the profile, and splits the model where the plan says: PyTorch's own pipeline() must take the split and make
the plan's stages. Then wrong inputs.

    profile_torch_test.py SOURCE_DIR STAGECRAFT
"""

import json
import os
import subprocess
import sys
import tempfile

import uncollected  # noqa: F401: before PyTorch

import torch
from torch.distributed.pipelining import pipeline

from forked import script
from torch_model import convnet

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MODEL = f"{SOURCE}/test/scripts/torch_model.py"
TOOL = f"{SOURCE}/scripts/profile_torch.py"


def tool(*arguments):
    done = script(TOOL, *arguments)
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run(*command):
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def read(path):
    with open(path) as file:
        return json.load(file)


def test_profile(folder):
    tool("profile", f"{MODEL}:convnet", "--input", "1,28,28", "--micro-batch", 2, 4, "--loss", "cross_entropy", "--repeats", 3, "-o", f"{folder}/profile.json")
    profile = read(f"{folder}/profile.json")
    assert [m["micro_batch"] for m in profile["measurements"]] == [2, 4]
    rows = {row["name"]: row for row in profile["measurements"][1]["layers"]}
    assert list(rows)[:3] == ["features.0", "features.1", "features.2"] and list(rows)[-1] == "loss"

    def has(name, **wanted):
        for key, value in wanted.items():
            assert rows[name][key] == value, (name, key, rows[name][key], value)

    has("features.0", parameter_bytes=4 * (8 * 9 + 8), output_bytes=4 * 4 * 8 * 28 * 28, keeps_input=True, keeps_output=False, kept_for_input_bytes=0)
    assert rows["features.0"]["backward_input"]["median_ms"] == 0, "the data has no gradient"
    has("features.1", parameter_bytes=4 * 16, buffer_bytes=4 * 16 + 8, keeps_input=True)
    has("features.2", parameter_bytes=0, keeps_input=False, keeps_output=True, kept_for_input_bytes=0)
    has("features.3", keeps_input=True, kept_for_input_bytes=8 * 4 * 8 * 14 * 14)  # the indices of the largest
    has("flatten", output_is_input=True, kept_for_input_bytes=0)
    has("classifier.0", parameter_bytes=4 * (16 * 49 * 64 + 64), keeps_input=True)
    has("loss", output_bytes=0)
    assert rows["classifier.0"]["backward_weight"]["median_ms"] > 0 and rows["classifier.0"]["step"]["median_ms"] > 0
    return rows


def test_tokens(folder):
    """In a process of its own, as users call it."""
    run(sys.executable, TOOL, "profile", f"{MODEL}:tokens", "--input", 12, "--input-dtype", "int64", "--below", 50, "--micro-batch", 3, "--loss", "cross_entropy",
        "--optimizer", "momentum", "--repeats", 2, "-o", f"{folder}/tokens.json")  # fmt: skip
    tokens = read(f"{folder}/tokens.json")
    assert tokens["optimizer_bytes_per_parameter_byte"] == 1
    assert [row["backward_input"]["median_ms"] > 0 for row in tokens["measurements"][0]["layers"]] == [False, True, True, True]


def test_split(folder, rows):
    given = (f"{folder}/plan.json", f"{folder}/profile.json")
    run(STAGECRAFT, "plan", "--profile", given[1], "--cluster", f"{SOURCE}/configs/clusters/one-machine-4-pcie.json", "--micro-batch-size", 4, "--micro-batches", 4, "--stages", 3, "-o", given[0])
    run(STAGECRAFT, "check", given[0])
    split, text = json.loads(tool("split", *given, "--json")), {}
    exec(tool("split", *given).replace("pipe = ", "# "), text)
    assert list(text["split_spec"]) == split["split_before"] and len(split["stages"]) == 3, split
    pipe = pipeline(convnet(), mb_args=(torch.randn(4, 1, 28, 28),), split_spec=text["split_spec"])
    assert pipe.num_stages == 3
    names = [name for name in rows if name != "loss"]
    bounds = [0, *(names.index(cut) for cut in split["split_before"]), len(names)]
    for stage, (first, last) in enumerate(zip(bounds, bounds[1:])):
        assert split["stages"][stage]["first"] == names[first] and split["stages"][stage]["last"] == names[last - 1]
        wanted = sum(rows[name]["parameter_bytes"] for name in names[first:last])
        made = sum(p.numel() * p.element_size() for p in pipe.get_stage_module(stage).parameters())
        assert made == wanted, (stage, made, wanted)


def test_refusals(folder):
    none = f"{folder}/none.json"
    for said, *arguments in (
        ("has no 'absent'", "profile", f"{MODEL}:absent", "--input", "1,28,28", "--micro-batch", 1),
        ("without arguments", "profile", f"{MODEL}:needs_arguments", "--input", 4, "--micro-batch", 1),
        ("layer 'classifier.0' does not take (1, 256)", "profile", f"{MODEL}:convnet", "--input", "1,16,16", "--micro-batch", 1, "-o", none),
        ("layer '0' returns a tuple", "profile", f"{MODEL}:two_outputs", "--input", "3,4", "--micro-batch", 1, "-o", none),
        ("expected an nn.Sequential", "profile", "torch.nn:Identity", "--input", 4, "--micro-batch", 1),
        ("--below", "profile", f"{MODEL}:tokens", "--input", 12, "--input-dtype", "int64", "--micro-batch", 1),
        ("no such folder", "profile", f"{MODEL}:convnet", "--input", "1,28,28", "--micro-batch", 1, "-o", f"{folder}/no/profile.json"),
        ("not a plan", "split", f"{folder}/profile.json", f"{folder}/profile.json"),
        ("expected the profile that the plan was made from", "split", f"{folder}/plan.json", f"{folder}/tokens.json"),
    ):
        done = script(TOOL, *arguments)
        texts = done.stdout + done.stderr
        assert done.returncode == 2 and said in texts and "Traceback" not in texts, (arguments, done.returncode, said, texts)
    assert not os.path.exists(none), "a refused profile was written"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rows = test_profile(folder)
        test_tokens(folder)
        test_split(folder, rows)
        test_refusals(folder)
