#!/usr/bin/env python3
"""stagecraft-images: folders of images as arrays, which `stagecraft train` reads.

    images_test.py SOURCE_DIR STAGECRAFT

Exits with 77 where numpy or Pillow is missing.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    from PIL import Image
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

SOURCE, STAGECRAFT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}/python"}


def images(*arguments):
    done = subprocess.run([sys.executable, "-m", "stagecraft_images", *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT)
    return done.returncode, done.stdout + done.stderr


def draw(path, width, height, color):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.new("RGB", (width, height), color).save(path)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for i in range(8):
        draw(f"train/cat/{i}.png", 12, 8, (255, 16 * i, 0))
        draw(f"train/dog/deep/{i}.jpg", 8, 20, (0, 16 * i, 255))
        draw(f"val/dog/{i}.png", 8, 8, (0, 16 * i, 255))
    code, text = images("train", "--size", 8, "-o", "made")
    assert code == 0 and "16 images of 2 classes" in text, text
    data = json.loads("{" + text.splitlines()[-1] + "}")["data"]
    inputs, targets = numpy.load("made/inputs.npy"), numpy.load("made/targets.npy")
    assert inputs.shape == (16, 3, 8, 8) and inputs.dtype == numpy.uint8 and targets.tolist() == [0] * 8 + [1] * 8
    assert (inputs[:8, 0] == 255).all() and (inputs[3, 1] == 48).all() and abs(int(inputs[8, 2].min()) - 255) < 4  # JPEG's own loss
    seen = inputs.transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert numpy.abs(seen.mean(1) - data["mean"]).max() < 1e-3 and numpy.abs(seen.std(1) - data["deviation"]).max() < 1e-3

    # A class that has no validation images keeps its number.
    code, text = images("val", "--size", 8, "--classes", "made/classes.txt", "-o", "made_val")
    assert code == 0 and numpy.load("made_val/targets.npy").tolist() == [1] * 8, text

    for arguments, why in (
        (("train", "--size", 8, "-o", "made"), "made is there; --replace"),
        (("none", "--size", 8, "-o", "x"), "none is no folder"),
        (("train/cat", "--size", 8, "-o", "x"), "expected one for each class"),
        (("train", "--size", 8, "--classes", "made_val/none.txt", "-o", "x"), "made_val/none.txt"),
    ):
        code, text = images(*arguments)
        assert code == 2 and why in text and not os.path.exists("x") and not os.path.exists("x.part"), text
    code, text = images("train", "--size", 8, "--replace", "-o", "made")
    assert code == 0 and sorted(os.listdir("made")) == ["classes.txt", "inputs.npy", "targets.npy"], text
    # Nothing that another wrote is removed.
    before = sorted(os.listdir("train"))
    code, text = images("train", "--size", 8, "--replace", "-o", "train")
    assert code == 2 and "train has cat, which no earlier run wrote" in text and sorted(os.listdir("train")) == before, text
    with open("train/cat/9.png", "w") as file:
        file.write("no image")
    code, text = images("train", "--size", 8, "-o", "x")
    assert code == 2 and "train/cat/9.png cannot be decoded" in text and not os.path.exists("x.part"), text
    assert sorted(os.listdir(".")) == ["made", "made_val", "train", "val"], os.listdir(".")

    with open("run.json", "w") as file:
        model = {"family": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "features": 2}]}
        json.dump({"model": model, "data": {**data, "validation_path": "made_val"}, "loss": {"type": "cross_entropy"}, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "train_steps": 12, "validation": {"every_steps": 12}, "pipeline": {"stages": 1}, "profiler": {"repeats": 1}, "run_dir": "run"}, file)
    done = subprocess.run([STAGECRAFT, "train", "run.json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    with open("run/metrics.jsonl") as file:
        losses = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    assert losses[-1] < 0.2 < losses[0], losses
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
