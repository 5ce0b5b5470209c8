"""Documents of text files: a file is one, a line of a .jsonl file is one."""

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from typing import IO, Any

from stagecraft_tools.json_files import parse_json

from .errors import TokenizeError


def opened(path: str) -> IO[str]:
    """As UTF-8, without the mark that some editors put before it."""
    return (
        gzip.open(path, "rt", encoding="utf-8-sig")
        if path.endswith(".gz")
        else open(path, encoding="utf-8-sig")
    )


def lines_of(file: IO[Any], path: str, key: str) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        record = parse_json(line.rstrip("\r\n"), f"{path}, line {number}", one_line=True)
        if not isinstance(record, dict) or not isinstance(record.get(key), str):
            if isinstance(record, dict) and key in record:
                raise TokenizeError(
                    f"{path}, line {number}: {key!r} is {json.dumps(record[key])[:60]}, not a text; leave the"
                    " line out, or name another --key"
                )
            has = ", ".join(record) if isinstance(record, dict) else type(record).__name__
            raise TokenizeError(f"{path}, line {number}: has no text under {key!r}; it has {has} (--key)")
        yield record[key], len(line.encode())


def documents(paths: list[str], key: str, split: str | None = None) -> Iterator[tuple[str, int]]:
    """(text, bytes read for it) of each document. `split`: a line that ends a document within a text file."""
    for path in paths:
        try:
            with opened(path) as file:
                if path.removesuffix(".gz").endswith(".jsonl"):
                    yield from lines_of(file, path, key)
                elif split is None:
                    text = file.read()
                    yield text, len(text.encode())
                else:
                    yield from pieces_of(file, split)
        except UnicodeDecodeError as error:
            raise TokenizeError(f"{path}: is no UTF-8 at byte {error.start}") from None
        except (EOFError, zlib.error) as error:
            raise TokenizeError(f"{path}: truncated or corrupt gzip file: {error}") from None
        except OSError as error:
            raise TokenizeError(f"{path}: {error.strerror or error}") from None


def pieces_of(file: IO[Any], split: str) -> Iterator[tuple[str, int]]:
    piece: list[str] = []
    read = 0
    for line in file:
        read += len(line.encode())
        if line.rstrip("\n") == split:
            yield "".join(piece), read
            piece, read = [], 0
        else:
            piece.append(line)
    if piece:
        yield "".join(piece), read


def bytes_of(paths: list[str]) -> int | None:
    """How much there is to read; none where that is not known (compressed files)."""
    if any(path.endswith(".gz") for path in paths):
        return None
    try:
        return sum(os.path.getsize(path) for path in paths)
    except OSError as error:
        raise TokenizeError(f"{error.filename}: {error.strerror}") from None
