"""stagecraft-images: folders of images as arrays, which `stagecraft train` reads."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

numpy = pytest.importorskip("numpy", reason="scripts/setup.sh --models installs it")
pytest.importorskip("PIL", reason="scripts/setup.sh --models installs it")

from PIL import Image

from places import ENVIRONMENT, STAGECRAFT


def convert(*arguments, **how):
    command = [sys.executable, "-m", "stagecraft_images", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, **how)


def images(*arguments):
    done = convert(*arguments)
    return done.returncode, done.stdout + done.stderr


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def draw(path, width, height, color):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Image.new("RGB", (width, height), color).save(path)


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """What a config says of the images, which all tests here find in their folder."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("images"))
    for i in range(8):
        draw(f"train/cat/{i}.png", 12, 8, (255, 16 * i, 0))
        draw(f"train/dog/deep/{i}.jpg", 8, 20, (0, 16 * i, 255))
        draw(f"val/dog/{i}.png", 8, 8, (0, 16 * i, 255))
    code, text = images("train", "--size", 8, "-o", "made")
    assert code == 0, text
    assert "16 images of 2 classes" in text
    yield json.loads("{" + text.splitlines()[-1] + "}")["data"]
    os.chdir(before)


def test_arrays(data):
    inputs, targets = numpy.load("made/inputs.npy"), numpy.load("made/targets.npy")
    assert (
        inputs.shape == (16, 3, 8, 8)
        and inputs.dtype == numpy.uint8
        and targets.tolist() == [0] * 8 + [1] * 8
    )
    # JPEG's own loss
    assert (
        (inputs[:8, 0] == 255).all() and (inputs[3, 1] == 48).all() and abs(int(inputs[8, 2].min()) - 255) < 4
    )
    seen = inputs.transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert (
        numpy.abs(seen.mean(1) - data["mean"]).max() < 1e-3
        and numpy.abs(seen.std(1) - data["deviation"]).max() < 1e-3
    )


def test_a_full_disk():
    """A file that cannot grow: one line that names the output, and nothing is left."""
    done = convert("train", "--size", 64, "-o", "full", preexec_fn=small_files)
    assert done.returncode == 2
    assert done.stderr == "stagecraft-images: full: File too large\n"
    assert not [name for name in os.listdir() if name.startswith("full")]


def test_classes_keep_their_numbers():
    """Also one that has no validation images."""
    code, text = images("val", "--size", 8, "--classes", "made/classes.txt", "-o", "made_val")
    assert code == 0 and numpy.load("made_val/targets.npy").tolist() == [1] * 8, text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("train", "--size", 8, "-o", "made"), "made is there; --replace"),
        (("none", "--size", 8, "-o", "x"), "none is no folder"),
        (("train", "--size", 100000, "-o", "x"), "--size: expected a whole number from 1 to 8192"),
        (("train", "--size", 0, "-o", "x"), "--size: expected a whole number from 1 to 8192, found '0'"),
        (("train/cat", "--size", 8, "-o", "x"), "expected one for each class"),
        (("train", "--size", 8, "--classes", "made_val/none.txt", "-o", "x"), "made_val/none.txt"),
    ],
)
def test_refused(arguments, why):
    code, text = images(*arguments)
    assert code == 2
    assert why in text
    assert not os.path.exists("x")
    assert not os.path.exists("x.part")


def test_replaced():
    code, text = images("train", "--size", 8, "--replace", "-o", "made")
    assert code == 0 and sorted(os.listdir("made")) == [
        "classes.txt",
        "inputs.npy",
        "stagecraft_images.json",
        "targets.npy",
    ], text
    # Nothing that another wrote is removed: arrays of one's own have the same names.
    shutil.copytree("made", "mine", ignore=shutil.ignore_patterns("*.json"))
    code, text = images("train", "--size", 8, "--replace", "-o", "mine")
    assert code == 2 and "stagecraft-images did not make it" in text and len(os.listdir("mine")) == 3, text
    shutil.rmtree("mine")
    code, text = images("train", "--size", 8, "--replace", "-o", "train/x")
    assert code == 2 and "-o train/x: lies in train, whose folders are classes" in text, text


def test_as_torchvision():
    """What torchvision's ImageFolder reads is read, in its order."""
    draw("more/a/z.pgm", 8, 8, (9, 9, 9))
    draw("more/a/deep/sub/1.png", 8, 8, (1, 1, 1))
    draw("more/a/deep-2/2.PNG", 8, 8, (2, 2, 2))
    draw("more/b/3.webp", 8, 8, (3, 3, 3))
    draw("elsewhere/4.bmp", 8, 8, (4, 4, 4))
    os.symlink("../../elsewhere", "more/b/linked")
    os.symlink("../elsewhere", "more/c")
    for name in ("a/notes.txt", "a/README", "c/5.heic"):
        with open(f"more/{name}", "w") as file:
            file.write("no image")
    code, text = images("more", "--size", 8, "-o", "made_more")
    assert (
        code == 0
        and "6 images of 3 classes" in text
        and "left out: 4 files that are no images by their names (2 of .heic, 1 of .txt, 1 of no ending)"
        in text
    ), text
    expected = [(9, 0), (2, 0), (1, 0), (3, 1), (4, 1), (4, 2)]
    assert (
        list(
            zip(
                numpy.load("made_more/inputs.npy")[:, 0, 0, 0].tolist(),
                numpy.load("made_more/targets.npy").tolist(),
            )
        )
        == expected
    )
    try:
        from torchvision.datasets import ImageFolder
    except ImportError as error:
        print(f"not compared with torchvision: {error}")
    else:
        assert [(image.getpixel((0, 0))[0], target) for image, target in ImageFolder("more")] == expected


def bomb(folder):
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    with open(f"{folder}/bomb.png", "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def cut(folder):
    whole = Path("train/dog/deep/0.jpg").read_bytes()
    for i in range(25):
        with open(f"{folder}/{i:02}.jpg", "wb") as file:
            file.write(whole[: 30 + 5 * i])


# What would be lost in silence: what is done to a folder of images, and what is said of it.
ODD = {
    "an empty class": (lambda folder: os.mkdir("odd/empty"), "odd/empty has no images"),
    "a class of other files": (
        lambda folder: shutil.copytree("more/a", "odd/b", ignore=lambda *_: ["deep", "deep-2", "z.pgm"]),
        "odd/b has no images",
    ),
    "a line break": (lambda folder: draw("odd/two\nlines/1.png", 8, 8, 0), "'two\\nlines' has a line break"),
    "a loop of links": (
        lambda folder: os.symlink("..", "odd/a/up"),
        "odd/a/up is a link to a folder that it lies in",
    ),
    "a decompression bomb": (
        bomb,
        "odd/a/bomb.png cannot be decoded: DecompressionBombError",
        "1 of 2 images cannot be decoded",
    ),
    "many cut ones": (
        cut,
        "odd/a/00.jpg cannot be",
        "odd/a/19.jpg cannot be",
        "20 images cannot be decoded, and more may be",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_folders(name):
    break_, *whys = ODD[name]
    draw("odd/a/whole.png", 8, 8, (0, 0, 0))
    break_("odd/a")
    code, text = images("odd", "--size", 8, "-o", "x")
    shutil.rmtree("odd")
    assert code == 2
    assert all(why in text for why in whys), text
    assert all(line.startswith("stagecraft-images: ") for line in text.strip().splitlines()), text
    assert not os.path.exists("x")


def test_broken_images():
    for i in (3, 9):
        with open(f"train/cat/{i}.png", "w") as file:
            file.write("no image")
    code, text = images("train", "--size", 8, "-o", "x")
    assert (
        code == 2
        and "train/cat/3.png cannot be decoded" in text
        and "train/cat/9.png cannot be decoded" in text
    ), text
    assert "2 of 17 images cannot be decoded" in text, text
    assert sorted(os.listdir(".")) == [
        "elsewhere",
        "made",
        "made_more",
        "made_val",
        "more",
        "train",
        "val",
    ], os.listdir(".")


def test_training(data):
    with open("run.json", "w") as file:
        model = {"family": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "features": 2}]}
        json.dump(
            {
                "model": model,
                "data": {**data, "validation_path": "made_val"},
                "loss": {"type": "cross_entropy"},
                "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
                "train_batch_size": 8,
                "train_micro_batch_size_per_gpu": 4,
                "train_steps": 12,
                "validation": {"every_steps": 12},
                "pipeline": {"stages": 1},
                "profiler": {"repeats": 1},
                "run_dir": "run",
            },
            file,
        )
    done = subprocess.run([STAGECRAFT, "train", "run.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    with open("run/metrics.jsonl") as file:
        losses = [record["loss"] for record in map(json.loads, file) if "loss" in record]
    assert losses[-1] < 0.2 < losses[0], losses
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
