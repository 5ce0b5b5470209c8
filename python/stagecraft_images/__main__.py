"""stagecraft-images: a folder of images as arrays of bytes that `stagecraft train` reads."""

import argparse
import json
import os
import shutil
import sys
import tempfile

from stagecraft_tools.console import Progress, run

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
WRITTEN = ("classes.txt", "inputs.npy", "targets.npy")


class ImagesError(Exception):
    """What the command refuses: one line, exit code 2."""


def parse(arguments):
    parser = argparse.ArgumentParser("stagecraft-images", description=__doc__.partition(": ")[2])
    parser.add_argument("folder", metavar="FOLDER", help="a folder for each class, with its images in it and below")
    parser.add_argument("--size", type=int, required=True, help="height and width: the shorter side becomes as long, and what is too much of the other is cut off on both ends")
    parser.add_argument("--gray", action="store_true", help="one channel (default: three)")
    parser.add_argument("--classes", metavar="FILE", help="classes.txt of the training images, for those that validate")
    parser.add_argument("--replace", action="store_true", help="replace the folder of an earlier run")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="inputs.npy, targets.npy and classes.txt go there")
    return parser.parse_args(arguments)


def classes_of(options):
    """The names of the folders, in order; the places that targets name."""
    if not os.path.isdir(options.folder):
        raise ImagesError(f"{options.folder} is no folder")
    found = sorted(entry.name for entry in os.scandir(options.folder) if entry.is_dir())
    if not found:
        raise ImagesError(f"{options.folder} has no folder in it; expected one for each class")
    if not options.classes:
        return found, found
    with open(options.classes) as file:
        known = file.read().split("\n")[:-1]
    for name in found:
        if name not in known:
            raise ImagesError(f"{options.folder}/{name}: {options.classes} has no class {name}")
    return found, known


def images_of(folder):
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(ENDINGS):
                yield os.path.join(path, name)


def decoded(path, size, mode):
    """Height, width and channels of bytes."""
    import numpy
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image = ImageOps.exif_transpose(image).convert(mode)
            return numpy.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise ImagesError(f"{path} cannot be decoded: {error}") from error


def write(options, folder):
    """The classes, how many images, and each channel's mean and deviation of x / 255. Nothing is held but one image."""
    import numpy

    if options.size < 1:
        raise ImagesError(f"--size {options.size}: expected at least 1")
    found, classes = classes_of(options)
    rows = [(path, classes.index(name)) for name in found for path in images_of(f"{options.folder}/{name}")]
    if not rows:
        raise ImagesError(f"{options.folder} has no images ({', '.join(ENDINGS)}) in the folders of its classes")
    channels = 1 if options.gray else 3
    inputs = numpy.lib.format.open_memmap(f"{folder}/inputs.npy", "w+", numpy.uint8, (len(rows), channels, options.size, options.size))
    total, squares = numpy.zeros(channels), numpy.zeros(channels)
    progress = Progress()
    try:
        for i, (path, _) in enumerate(rows):
            image = decoded(path, options.size, "L" if options.gray else "RGB").reshape(options.size, options.size, channels)
            inputs[i] = image.transpose(2, 0, 1)
            numbers = image.reshape(-1, channels) / 255
            total += numbers.mean(0)
            squares += (numbers**2).mean(0)
            progress.show(lambda: f"decoded {100 * (i + 1) / len(rows):5.1f} %  {i + 1:,} of {len(rows):,} images")
    finally:
        progress.clear()
    inputs.flush()
    numpy.save(f"{folder}/targets.npy", numpy.array([target for _, target in rows], numpy.int64))
    with open(f"{folder}/classes.txt", "w") as file:
        file.writelines(f"{name}\n" for name in classes)
    mean = total / len(rows)
    deviation = numpy.sqrt(numpy.maximum(squares / len(rows) - mean**2, 1e-12))
    return classes, len(rows), [[round(float(number), 4) for number in numbers] for numbers in (mean, numpy.maximum(deviation, 1e-4))]


def check_output(options):
    """What is there may be replaced where an earlier run wrote all of it."""
    if not os.path.lexists(options.output):
        return
    if not options.replace:
        raise ImagesError(f"{options.output} is there; --replace writes it again")
    if not os.path.isdir(options.output):
        raise ImagesError(f"{options.output} is no folder of an earlier run; choose another -o")
    for name in sorted(os.listdir(options.output)):
        if name not in WRITTEN:
            raise ImagesError(f"{options.output} has {name}, which no earlier run wrote; choose another -o")


def main(arguments=None):
    options = parse(arguments)
    check_output(options)
    into, name = os.path.split(os.path.abspath(options.output))
    os.makedirs(into, exist_ok=True)
    part = tempfile.mkdtemp(prefix=f".{name}.", dir=into)
    try:
        classes, count, (mean, deviation) = write(options, part)
        os.chmod(part, 0o755)
        shutil.rmtree(options.output, ignore_errors=True)
        os.rename(part, options.output)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    size = os.path.getsize(f"{options.output}/inputs.npy")
    print(f"{count:,} images of {len(classes):,} classes: {options.output}, {size / 1e6:.1f} MB")
    if not options.classes:  # those that validate are normalized as those that train
        print('"data": ' + json.dumps({"type": "arrays", "path": options.output, "classes": len(classes), "mean": mean, "deviation": deviation}))
    return 0


def command():
    return run("stagecraft-images", main, ImagesError, "pillow numpy")


if __name__ == "__main__":
    sys.exit(command())
