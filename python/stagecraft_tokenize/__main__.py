"""stagecraft-tokenize: text files as a file of tokens that `stagecraft train` reads."""

import argparse
import json
import os
import sys

from stagecraft_tools.arguments import Parser
from stagecraft_tools.console import Progress, add_traceback, run

from .documents import bytes_of, documents
from .errors import TokenizeError
from .tokenizer import Tokenizer
from .writer import Writer

BATCH = 1 << 20  # bytes of text that are encoded at once


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser("stagecraft-tokenize", __doc__.partition(": ")[2])
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="text in UTF-8, a document each, or .jsonl with a document per line; .gz too",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="PATH",
        help="tokenizer.json of Hugging Face, or a folder with one",
    )
    parser.add_argument("--key", default="text", help="of the text in a line of .jsonl (default: text)")
    parser.add_argument("--split", metavar="LINE", help="a line that ends a document within a text file")
    parser.add_argument(
        "--end",
        default="",
        metavar="TOKEN",
        help='put behind each document, as in "<|endoftext|>" (default: none)',
    )
    parser.add_argument("--replace", action="store_true", help="replace files of an earlier run")
    parser.add_argument(
        "-o", "--output", required=True, metavar="STEM", help="STEM.bin and STEM.idx are written"
    )
    add_traceback(parser)
    return parser.parse_args(arguments)


class Tokenized:
    """How far the text is."""

    def __init__(self, all_bytes: int | None) -> None:
        self.all, self.done, self.progress = all_bytes, 0, Progress()

    def add(self, count: int, tokens: int) -> None:
        self.done += count
        share = f" {100 * self.done / self.all:5.1f} %" if self.all else ""
        self.progress.show(lambda: f"tokenized{share}  {self.done / 1e6:.1f} MB  {tokens:,} tokens")


def tokenize(options: argparse.Namespace) -> tuple[Tokenizer, Writer]:
    tokenizer = Tokenizer(options.tokenizer, options.end)
    tokenized = Tokenized(bytes_of(options.files))
    writer = Writer(options.output, tokenizer.vocabulary, options.replace)
    try:
        texts: list[str] = []
        size = 0

        def write() -> None:
            for tokens in tokenizer.encode(texts):
                writer.add(tokens)
            tokenized.add(size, writer.tokens)

        for text, count in documents(options.files, options.key, options.split):
            texts.append(text)
            size += count
            if size >= BATCH:
                write()
                texts, size = [], 0
        write()
        if not writer.tokens:
            raise TokenizeError("the files have no tokens")
        writer.finish()
    except BaseException:
        writer.give_up()
        raise
    finally:
        tokenized.progress.clear()
    return tokenizer, writer


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    tokenizer, writer = tokenize(options)
    name = f"{options.output}.bin"
    count = len(writer.lengths)
    print(
        f"{count:,} document{'' if count == 1 else 's'}, {writer.tokens:,} tokens of"
        f" {tokenizer.vocabulary:,}: {name}, {os.path.getsize(name) / 1e6:.1f} MB"
    )
    print(
        '"data": '
        + json.dumps(
            {
                "type": "tokens",
                "path": name,
                "sequence": 1024,
                "vocabulary": tokenizer.vocabulary,
                "validation": 0.01,
            },
            allow_nan=False,
        )
    )
    return 0


def command() -> int:
    return run("stagecraft-tokenize", main, "tokenizers numpy")


if __name__ == "__main__":
    sys.exit(command())
