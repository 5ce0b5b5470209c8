#!/usr/bin/env python3
"""GPT-2's tokenizer and the kernel's documentation in English, for stagecraft-tokenize.

    kernel.py DATA OUT

DATA: the folder of `scripts/fetch_data.sh --kernel`. OUT/tokenizer.json, and OUT/train.jsonl and
OUT/validation.jsonl with a document per line; every 256th, of a random order that is always the same,
validates.
"""

import base64
import gzip
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

END = "<|endoftext|>"
EACH = 256


def tokenizer_of(ranks):
    """Of tokens as bytes, in the order in which they are merged; a pair that makes an earlier token is merged
    first."""
    letters = bytes_to_unicode()

    def text(token):
        return "".join(letters[byte] for byte in token)

    known, merges = set(ranks), []
    for token in ranks:
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += [(text(left), text(right)) for left, right in pairs if left in known and right in known]
    tokenizer = Tokenizer(models.BPE({text(token): rank for rank, token in enumerate(ranks)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    tokenizer.add_special_tokens([AddedToken(END, normalized=False)])
    return tokenizer


def ranks_in(path):
    rows = [line.split() for line in path.read_text().splitlines()]
    assert [int(rank) for _, rank in rows] == list(range(len(rows))), path
    return [base64.b64decode(token) for token, _ in rows]


def text_of(path):
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        return file.read()


def main(data, out):
    data, out = Path(data), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer_of(ranks_in(data / "gpt2.tiktoken")).save(str(out / "tokenizer.json"))

    def is_text(path):
        return path.name.endswith((".rst.gz", ".txt.gz")) and "translations" not in path.parts

    files = sorted(filter(is_text, (data / "Documentation").rglob("*.gz")))
    random.Random(0).shuffle(files)
    documents = list(map(text_of, files))
    for name, part in (
        ("train", [t for i, t in enumerate(documents) if i % EACH]),
        ("validation", documents[::EACH]),
    ):
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in part)
        print(f"{out}/{name}.jsonl: {len(part):,} documents, {sum(map(len, part)):,} characters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
