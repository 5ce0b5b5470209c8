"""stagecraft-images: a folder of images as arrays of bytes that `stagecraft train` reads."""

import argparse
import collections
import functools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from stagecraft_tools.arguments import Parser, whole
from stagecraft_tools.console import Progress, add_traceback, first_line, run
from stagecraft_tools.output import OutputFolder
from stagecraft_tools.refusal import Refused

# ImageFolder's, and .gif
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MOST_NAMED = 20  # broken images, of one run
LARGEST_SIZE = 8192  # an image of it takes 0.2 GB, and a few of that while it is resized


class ImagesError(Refused):
    """What the command refuses: one line, exit code 2."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser("stagecraft-images", __doc__.partition(": ")[2])
    parser.add_argument(
        "folder", metavar="FOLDER", help="a folder for each class, with its images in it and below"
    )
    parser.add_argument(
        "--size",
        type=whole(1, LARGEST_SIZE),
        metavar="PIXELS",
        required=True,
        help=(
            "height and width: the shorter side becomes as long, and what is too much of the other is cut off"
            " on both ends"
        ),
    )
    parser.add_argument("--gray", action="store_true", help="one channel (default: three)")
    parser.add_argument(
        "--classes", metavar="FILE", help="classes.txt of the training images, for those that validate"
    )
    parser.add_argument("--replace", action="store_true", help="replace the folder of an earlier run")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FOLDER",
        help="inputs.npy, targets.npy and classes.txt go there",
    )
    add_traceback(parser)
    return parser.parse_args(arguments)


def classes_of(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The names of the folders, in order; the places that targets name."""
    if not os.path.isdir(options.folder):
        raise ImagesError(f"{options.folder} is no folder")
    found = sorted(entry.name for entry in os.scandir(options.folder) if entry.is_dir())
    if not found:
        raise ImagesError(f"{options.folder} has no folder in it; expected one for each class")
    for name in found:
        if name.splitlines() != [name]:
            raise ImagesError(
                f"{options.folder}: the name of the class {name!r} has a line break, which classes.txt cannot"
                " hold: rename the folder"
            )
    if not options.classes:
        return found, found
    with open(options.classes, encoding="utf-8", errors="surrogateescape") as file:
        known = file.read().split("\n")[:-1]
    for name in found:
        if name not in known:
            raise ImagesError(f"{options.folder}/{name}: {options.classes} has no class {name}")
    return found, known


def files_of(folder: str) -> list[str]:
    """All files in it and below, in ImageFolder's order; links to folders are followed, as it does."""

    def fail(error: OSError) -> NoReturn:
        raise error

    found = []
    for path, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        real = os.path.realpath(path)
        for name in folders:
            inner = os.path.realpath(os.path.join(path, name))
            if f"{real}{os.sep}".startswith(f"{inner}{os.sep}"):
                raise ImagesError(f"{path}/{name} is a link to a folder that it lies in: remove it")
        found.append((path, sorted(names)))
    return [os.path.join(path, name) for path, names in sorted(found) for name in names]


def images_of(
    options: argparse.Namespace, classes: list[str]
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """(path, class) of every image, and how many files of each other ending there are."""
    rows: list[tuple[str, str]] = []
    others: collections.Counter[str] = collections.Counter()
    for name in classes:
        files = files_of(f"{options.folder}/{name}")
        images = [path for path in files if path.lower().endswith(ENDINGS)]
        if not images:
            raise ImagesError(
                f"{options.folder}/{name} has no images ({', '.join(ENDINGS)}): remove the folder if there is"
                " no such class"
            )
        rows += [(path, name) for path in images]
        others.update(
            os.path.splitext(path)[1].lower() or "no ending"
            for path in files
            if not path.lower().endswith(ENDINGS)
        )
    return rows, others


def decoded(path: str, size: int, mode: str) -> tuple[Any, list[str]]:
    """Height, width and channels of bytes; and what Pillow warned of."""
    import numpy
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(record=True) as warned, Image.open(path) as image:
            warnings.simplefilter("always")
            upright = ImageOps.exif_transpose(image).convert(mode)
            pixels = numpy.asarray(ImageOps.fit(upright, (size, size), Image.Resampling.BILINEAR))
            return pixels, [str(warning.message) for warning in warned]
    except Exception as error:  # Pillow's decoders have many types of their own
        raise ImagesError(f"{path} cannot be decoded: {first_line(error)}") from error


class Broken:
    """Images that cannot be decoded, each named where it is met."""

    def __init__(self) -> None:
        self.count = 0
        self.warned: list[str] = []

    def add(self, error: Exception) -> None:
        print(f"stagecraft-images: {error}", file=sys.stderr)
        self.count += 1
        if self.count == MOST_NAMED:
            self.refuse(f"{MOST_NAMED} images cannot be decoded, and more may be behind them")

    def refuse(self, what: str) -> None:
        raise ImagesError(f"{what}: remove or mend what is named above; nothing was written")


def share(done: int, of: int) -> str:
    return f"decoded {100 * done / of:5.1f} %  {done:,} of {of:,} images"


def write(
    options: argparse.Namespace, folder: str
) -> tuple[list[str], int, list[list[float]], Iterator[str]]:
    """The classes, how many images, each channel's mean and deviation of x / 255, and notes. Nothing is held
    but one image."""
    import numpy

    found, classes = classes_of(options)
    rows, others = images_of(options, found)
    channels = 1 if options.gray else 3
    total, squares = numpy.zeros(channels), numpy.zeros(channels)
    progress, broken = Progress(), Broken()
    with open(f"{folder}/inputs.npy", "wb") as inputs:
        shape = (len(rows), channels, options.size, options.size)
        numpy.lib.format.write_array_header_1_0(
            inputs, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )
        try:
            for i, (path, _) in enumerate(rows):
                progress.show(functools.partial(share, i + 1, len(rows)))
                try:
                    image, warned = decoded(path, options.size, "L" if options.gray else "RGB")
                except ImagesError as error:
                    progress.clear()
                    broken.add(error)
                    continue
                broken.warned += [f"{path}: {text}" for text in warned]
                image = image.reshape(options.size, options.size, channels)
                inputs.write(image.transpose(2, 0, 1).tobytes())
                numbers = image.reshape(-1, channels) / 255
                total += numbers.mean(0)
                squares += (numbers**2).mean(0)
        finally:
            progress.clear()
    if broken.count:
        broken.refuse(f"{broken.count} of {len(rows)} images cannot be decoded")
    with open(f"{folder}/targets.npy", "wb") as targets:
        numpy.lib.format.write_array_header_1_0(
            targets, {"descr": "<i8", "fortran_order": False, "shape": (len(rows),)}
        )
        targets.write(numpy.array([classes.index(name) for _, name in rows], "<i8").tobytes())
    with open(f"{folder}/classes.txt", "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{name}\n" for name in classes)
    mean = total / len(rows)
    deviation = numpy.sqrt(numpy.maximum(squares / len(rows) - mean**2, 1e-12))
    return (
        classes,
        len(rows),
        [
            [round(float(number), 4) for number in numbers]
            for numbers in (mean, numpy.maximum(deviation, 1e-4))
        ],
        notes(others, broken.warned),
    )


def notes(others: dict[str, int], warned: list[str]) -> Iterator[str]:
    """What a reader of the arrays should know of the files."""
    if others:
        yield (
            f"left out: {sum(others.values())} files that are no images by their names"
            f" ({', '.join(f'{count} of {ending}' for ending, count in sorted(others.items()))})"
        )
    if warned:
        yield f"Pillow warned {len(warned)} times, first of {' '.join(warned[0].split())}"


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if os.path.lexists(options.output) and not options.replace:
        raise ImagesError(f"{options.output} is there; --replace writes it again")
    if f"{os.path.realpath(options.output)}{os.sep}".startswith(
        f"{os.path.realpath(options.folder)}{os.sep}"
    ):
        raise ImagesError(
            f"-o {options.output}: lies in {options.folder}, whose folders are classes: name another folder"
        )
    os.makedirs(os.path.dirname(os.path.abspath(options.output)), exist_ok=True)
    with OutputFolder("stagecraft-images", options.output) as output:
        classes, count, (mean, deviation), noted = write(options, output.aside)
        output.publish()
    size = os.path.getsize(f"{options.output}/inputs.npy")
    print(
        "\n".join(
            [f"{count:,} images of {len(classes):,} classes: {options.output}, {size / 1e6:.1f} MB", *noted]
        )
    )
    if not options.classes:  # those that validate are normalized as those that train
        print(
            '"data": '
            + json.dumps(
                {
                    "type": "arrays",
                    "path": options.output,
                    "classes": len(classes),
                    "mean": mean,
                    "deviation": deviation,
                },
                allow_nan=False,
            )
        )
    return 0


def command() -> int:
    return run("stagecraft-images", main, "pillow numpy")


if __name__ == "__main__":
    sys.exit(command())
