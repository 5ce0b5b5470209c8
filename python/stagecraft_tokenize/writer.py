"""Megatron's form of a file of tokens: FILE.bin has the tokens, FILE.idx says where documents begin."""

import os
import struct

import numpy

from .errors import TokenizeError

TYPES = {"uint16": 8, "int32": 4}  # Megatron's numbers for them


def type_for(vocabulary):
    return "uint16" if vocabulary < 65500 else "int32"


class Writer:
    """Both files have their names when they are complete, and not before."""

    def __init__(self, stem, vocabulary, replace=False):
        self.stem, self.type = stem, type_for(vocabulary)
        for name in (f"{stem}.bin", f"{stem}.idx"):
            if os.path.lexists(name) and not replace:
                raise TokenizeError(f"{name}: is there already; choose another -o, or give --replace")
        self.lengths, self.tokens = [], 0
        self.part = f"{stem}.bin.part"
        try:
            os.makedirs(os.path.dirname(os.path.abspath(stem)), exist_ok=True)
            self.file = open(self.part, "wb")
        except OSError as error:
            raise TokenizeError(f"{self.part}: {error.strerror}") from None

    def add(self, tokens):
        self.file.write(numpy.asarray(tokens, dtype=self.type).tobytes())
        self.lengths.append(len(tokens))
        self.tokens += len(tokens)

    def finish(self):
        close_synced(self.file)
        lengths = numpy.array(self.lengths, dtype=numpy.int32)
        begins = (numpy.cumsum(lengths, dtype=numpy.int64) - lengths) * numpy.dtype(self.type).itemsize
        with open(f"{self.stem}.idx.part", "wb") as index:
            index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, TYPES[self.type], len(lengths), len(lengths) + 1))
            for array in (lengths, begins, numpy.arange(len(lengths) + 1, dtype=numpy.int64)):
                index.write(array.tobytes())
            close_synced(index)
        # The tokens first: an index never stands beside tokens of another file.
        if os.path.lexists(f"{self.stem}.idx"):
            os.remove(f"{self.stem}.idx")
        os.replace(self.part, f"{self.stem}.bin")
        os.replace(f"{self.stem}.idx.part", f"{self.stem}.idx")

    def give_up(self):
        self.file.close()
        for name in (self.part, f"{self.stem}.idx.part"):
            if os.path.lexists(name):
                os.remove(name)


def close_synced(file):
    file.flush()
    os.fsync(file.fileno())
    file.close()
