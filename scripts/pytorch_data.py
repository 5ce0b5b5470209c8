"""Stagecraft's data sets and their shuffled order, written again in Python from docs/guides/data.md: an
independent reader of the same batches. No LibTorch code is shared with models/data."""

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
    """Position -> sample index of one epoch: a Feistel network of six rounds, cycles walked until they are
    below `size`."""
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
    there = Path(path) if os.path.exists(path) else Path(f"{path}.gz")
    found = there.read_bytes()
    return gzip.decompress(found) if there.name.endswith(".gz") else found


class Text:
    """Byte windows; only the training part."""

    def __init__(self, config):
        tokens = numpy.frombuffer(read(config["path"]), dtype=numpy.uint8).astype(numpy.int64)
        if config["tokens"] == "characters":
            points = numpy.array([ord(c) for c in read(config["path"]).decode("utf-8")])
            tokens = numpy.unique(points, return_inverse=True)[1].astype(numpy.int64)
        self.classes = 256 if config["tokens"] == "bytes" else int(tokens.max()) + 1
        self.sequence = config["sequence"]
        self.tokens = torch.from_numpy(tokens[: len(tokens) - int(len(tokens) * config["validation"])])
        self.size = (len(self.tokens) - 1) // self.sequence
        self.shape = [self.sequence]

    def batch(self, indices):
        windows = torch.stack([self.tokens[i * self.sequence : (i + 1) * self.sequence + 1] for i in indices])
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


def mix_arrays(*numbers):
    """mix() of arrays, element by element."""

    def one(x):
        x = x + numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))

    with numpy.errstate(over="ignore"):  # 64 bits are what is wanted
        first, *rest = (numpy.asarray(number).astype(numpy.uint64) for number in numbers)
        state = one(first)
        for number in rest:
            state = one(state ^ number)
    return state


def unit_interval(hashes):
    return (hashes >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53


class Synthetic:
    """Made-up data; only the training part, classification and tokens. The streams are numbered as in
    models/data/synthetic.cpp."""

    LABEL, FEATURE, CENTRE, _MAP, TOKEN, SURPRISE, TABLE = range(7)

    def __init__(self, config):
        if config["task"] not in ("classification", "tokens"):
            raise SystemExit(
                f"pytorch_data.py: synthetic {config['task']} is not made here; use classification or tokens"
            )
        self.task, self.seed = config["task"], config["seed"]
        self.size, self.shape, self.classes = config["samples"], config["shape"], config["classes"]

    def of_sample(self, stream, indices, k=0):
        return mix_arrays(self.seed, stream, 0, indices, k)

    def below_classes(self, hashes):
        return (hashes % numpy.uint64(self.classes)).astype(numpy.int64)

    def batch(self, indices):
        indices = numpy.array(indices)
        return self.tokens(indices) if self.task == "tokens" else self.classification(indices)

    def tokens(self, indices):
        length = self.shape[0]
        out = numpy.zeros((len(indices), length + 1), dtype=numpy.int64)
        token = numpy.zeros(len(indices), dtype=numpy.int64)
        for k in range(length + 1):
            follows = (unit_interval(self.of_sample(self.SURPRISE, indices, k)) < 0.9) & (k > 0)
            hashes = numpy.where(
                follows, mix_arrays(self.seed, self.TABLE, token), self.of_sample(self.TOKEN, indices, k)
            )
            out[:, k] = token = self.below_classes(hashes)
        out = torch.from_numpy(out)
        return out[:, :-1].contiguous(), out[:, 1:].contiguous()

    def classification(self, indices):
        labels = self.below_classes(self.of_sample(self.LABEL, indices))
        k = numpy.arange(numpy.prod(self.shape))
        centres = 2 * unit_interval(mix_arrays(self.seed, self.CENTRE, labels[:, None] * len(k) + k)) - 1
        noise = 2 * unit_interval(self.of_sample(self.FEATURE, indices[:, None], k)) - 1
        images = (centres + 1.5 * noise).astype(numpy.float32).reshape(-1, *self.shape)
        return torch.from_numpy(images), torch.from_numpy(labels)


def open_data(config):
    kinds = {"text": Text, "idx": Idx, "synthetic": Synthetic}
    if config["type"] not in kinds:
        raise SystemExit(
            f"pytorch_data.py: data of type {config['type']} is not read here; use text, idx or synthetic"
        )
    return kinds[config["type"]](config)


def mini_batches(data, config):
    """Endless (inputs, targets), one per step: an epoch's last one is short, or left out with drop_last."""
    size, epoch = config["train_batch_size"], 0
    while True:
        index = shuffled(data.size, config["seed"], epoch, config["data"]["shuffle"])
        for first in range(0, data.size, size):
            last = min(first + size, data.size)
            if last - first == size or not config["data"]["drop_last"]:
                yield data.batch([index(position) for position in range(first, last)])
        epoch += 1
