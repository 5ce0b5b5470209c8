"""Stagecraft's data sets and their shuffled order, written again in Python from docs/data.md: an independent reader of the same
batches. No LibTorch code is shared with models/data."""

import gzip
import os
from pathlib import Path

import numpy
import torch

MASK = (1 << 64) - 1


def mix(first, *rest):
    """SplitMix64's finalizer, chained over several numbers."""
    def one(x):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)

    state = one(first & MASK)
    for number in rest:
        state = one(state ^ (number & MASK))
    return state


def shuffled(size, seed, epoch, shuffle=True):
    """Position -> sample index of one epoch: a Feistel network of six rounds, cycles walked until they are below `size`."""
    if not shuffle:
        return lambda position: position
    key = mix(seed, epoch)
    half_bits = 0
    while 1 << (2 * half_bits) < size:
        half_bits += 1
    mask = (1 << half_bits) - 1

    def index(position):
        while True:
            left, right = position >> half_bits, position & mask
            for round_number in range(6):
                left, right = right, left ^ (mix(key, round_number, right) & mask)
            position = (left << half_bits) | right
            if position < size:
                return position

    return index


def read(path):
    """All bytes of `path`, or of `path`.gz where only that exists."""
    if os.path.exists(path):
        opened = gzip.open(path) if str(path).endswith(".gz") else open(path, "rb")
    else:
        opened = gzip.open(f"{path}.gz")
    with opened as file:
        return file.read()


class Text:
    """Byte windows; only the training part."""

    def __init__(self, config):
        tokens = numpy.frombuffer(read(config["path"]), dtype=numpy.uint8).astype(numpy.int64)
        if config["tokens"] == "characters":
            points = numpy.array([ord(c) for c in read(config["path"]).decode("utf-8")])
            tokens = numpy.unique(points, return_inverse=True)[1].astype(numpy.int64)
        self.classes = 256 if config["tokens"] == "bytes" else int(tokens.max()) + 1
        self.sequence = config["sequence"]
        self.tokens = torch.from_numpy(tokens[:len(tokens) - int(len(tokens) * config["validation"])])
        self.size = (len(self.tokens) - 1) // self.sequence
        self.shape = [self.sequence]

    def batch(self, indices):
        windows = torch.stack([self.tokens[i * self.sequence:(i + 1) * self.sequence + 1] for i in indices])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


class Idx:
    """Images as MNIST has them; only the training part."""

    def __init__(self, config):
        folder = Path(config["path"])
        images = read(folder / "train-images-idx3-ubyte")
        _, count, rows, columns = numpy.frombuffer(images, dtype=">u4", count=4).tolist()
        values = (numpy.arange(256) / 255 - 0.2860) / 0.3530
        pixels = numpy.frombuffer(images, dtype=numpy.uint8, offset=16).reshape(count, 1, rows, columns)
        self.images = torch.from_numpy(values.astype(numpy.float32)[pixels])
        labels = numpy.frombuffer(read(folder / "train-labels-idx1-ubyte"), dtype=numpy.uint8, offset=8)
        self.labels = torch.from_numpy(labels.astype(numpy.int64))
        self.size, self.shape, self.classes = count, [1, rows, columns], int(labels.max()) + 1

    def batch(self, indices):
        return self.images[indices], self.labels[indices]


def open_data(config):
    kinds = {"text": Text, "idx": Idx}
    if config["type"] not in kinds:
        raise SystemExit(f"pytorch_reference.py: data of type {config['type']} is not read here; use text or idx")
    return kinds[config["type"]](config)


def mini_batches(data, config):
    """Endless (inputs, targets), one a step: an epoch's last one is short, or left out with drop_last."""
    size, epoch = config["train_batch_size"], 0
    while True:
        index = shuffled(data.size, config["seed"], epoch, config["data"]["shuffle"])
        for first in range(0, data.size, size):
            last = min(first + size, data.size)
            if last - first == size or not config["data"]["drop_last"]:
                yield data.batch([index(position) for position in range(first, last)])
        epoch += 1
