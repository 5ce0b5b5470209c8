"""Megatron's form of a file of tokens: FILE.bin has the tokens, FILE.idx says where documents begin."""

import contextlib
import os
import struct
import sys
from collections.abc import Iterator
from typing import IO, Any

import numpy

from stagecraft_tools.files import aside_of, leftovers, put_in_place

from .errors import TokenizeError

TYPES = {"uint16": 8, "int32": 4}  # Megatron's numbers for them
MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<QBQQ")  # version, type, sequences, documents


def type_for(vocabulary: int) -> str:
    return "uint16" if vocabulary < 65500 else "int32"


def strange(tokens: str, index: str) -> str | None:
    """What of the two files is no file of tokens with its index, or None: what is replaced is known by its
    contents."""
    for name in (tokens, index):
        if os.path.lexists(name) and (os.path.islink(name) or not os.path.isfile(name)):
            return name
    if not os.path.lexists(index):
        return tokens if os.path.lexists(tokens) else None
    with open(index, "rb") as file:
        begin = file.read(len(MAGIC) + HEADER.size)
        if len(begin) < len(MAGIC) + HEADER.size or not begin.startswith(MAGIC):
            return index
        _, kind, count, _ = HEADER.unpack(begin[len(MAGIC) :])
        sizes = {number: numpy.dtype(name).itemsize for name, number in TYPES.items()}
        lengths = (
            numpy.fromfile(file, numpy.int32, count)
            if kind in sizes and count <= os.path.getsize(index) // 4
            else numpy.zeros(0, numpy.int32)
        )
    if len(lengths) != count:
        return index
    whole = (
        not os.path.lexists(tokens)
        or os.path.getsize(tokens) == int(lengths.sum(dtype=numpy.int64)) * sizes[kind]
    )
    return None if whole else tokens


class Writer:
    """Both files have their names when they are complete, and not before; those that they replace go last."""

    def __init__(self, stem: str, vocabulary: int, replace: bool = False) -> None:
        self.tokens_name, self.index_name, self.type = f"{stem}.bin", f"{stem}.idx", type_for(vocabulary)
        for name in (self.tokens_name, self.index_name):
            if os.path.lexists(name) and not replace:
                raise TokenizeError(f"{name}: is there already; choose another -o, or give --replace")
        if other := strange(self.tokens_name, self.index_name):
            raise TokenizeError(
                f"{other}: is no file of tokens with its index, as {self.tokens_name} and {self.index_name}"
                " would be: choose another -o, or remove it yourself"
            )
        for left in [*leftovers(self.tokens_name), *leftovers(self.index_name)]:
            print(
                f"stagecraft-tokenize: note: {left}: a run that was killed left it, or another is writing"
                " it now",
                file=sys.stderr,
            )
        self.lengths: list[int] = []
        self.tokens = 0
        self.part, self.index_part = aside_of(self.tokens_name), aside_of(self.index_name)
        try:
            os.makedirs(os.path.dirname(os.path.abspath(stem)), exist_ok=True)
            self.file = open(self.part, "xb")  # noqa: SIM115  # finish() or give_up() closes it
        except OSError as error:
            raise TokenizeError(f"{self.part}: {error.strerror}") from None

    def add(self, tokens: list[int]) -> None:
        with named(self.part):
            self.file.write(numpy.asarray(tokens, dtype=self.type).tobytes())
        self.lengths.append(len(tokens))
        self.tokens += len(tokens)

    def finish(self) -> None:
        with named(self.part):
            close_synced(self.file)
        lengths = numpy.array(self.lengths, dtype=numpy.int32)
        begins = (numpy.cumsum(lengths, dtype=numpy.int64) - lengths) * numpy.dtype(self.type).itemsize
        with named(self.index_part), open(self.index_part, "xb") as index:
            index.write(MAGIC + HEADER.pack(1, TYPES[self.type], len(lengths), len(lengths) + 1))
            index.writelines(
                array.tobytes()
                for array in (lengths, begins, numpy.arange(len(lengths) + 1, dtype=numpy.int64))
            )
            close_synced(index)
        # The index goes first and comes last: it never stands beside tokens of another file.
        for before in put_in_place([(self.part, self.tokens_name), (self.index_part, self.index_name)]):
            os.remove(before)

    def give_up(self) -> None:
        self.file.close()
        for name in (self.part, self.index_part):
            if os.path.lexists(name):
                os.remove(name)


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Errors of writing, which know no file, get its name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def close_synced(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
