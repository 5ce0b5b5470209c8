#!/usr/bin/env python3
"""examples/translator: verses are read from SWORD's files, tokenized into rows, and decoded greedily; without
a network.

    translator_test.py SOURCE_DIR

Exits with 77 where torch, safetensors or tokenizers is missing.
"""

import os
import struct
import sys
import tempfile
import zlib

import uncollected  # noqa: F401  # before PyTorch

try:
    import safetensors.torch
    import tokenizers
    import torch
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --models installs it")
    sys.exit(77)

sys.path.insert(0, f"{os.path.abspath(sys.argv[1])}/examples/translator")
import translate
import verses
from translator import BEGIN, END, PAD, SOURCE, TARGET

# A book's and a chapter's head, a verse with notes, one that a language lacks, and enough that one of them
# validates.
ENGLISH = [
    "<title>Genesis</title>",
    "<chapter n='1'/>",
    "In the <w lemma='x'>beginning</w><note n='a'>a note</note> , God.",
    "",
    *(f"verse {i} ." for i in range(40)),
]
SPANISH = [
    "",
    "",
    "EN el principio , <w>Dios</w>.",
    "nada",
    *(f"el verso {i}." for i in range(39)),
    " ".join(["largo"] * 200),
]


def write_module(folder, texts):
    os.makedirs(folder)
    for testament, part in (("ot", texts), ("nt", ["the last verse"])):
        encoded = [text.encode() for text in part]
        block = b"".join(encoded)
        packed = zlib.compress(block)
        starts = [sum(map(len, encoded[:i])) for i in range(len(encoded))]
        files = {
            "bzz": packed,
            "bzs": struct.pack("<III", 0, len(packed), len(block)),
            "bzv": b"".join(struct.pack("<IIH", 0, at, len(text)) for at, text in zip(starts, encoded)),
        }
        for name, contents in files.items():
            with open(f"{folder}/{testament}.{name}", "wb") as file:
                file.write(contents)


class Parrot(torch.nn.Module):
    """Says each source token again, then END."""

    def forward(self, tokens):
        following = torch.where(tokens[:, :SOURCE] == PAD, END, tokens[:, :SOURCE])
        return torch.nn.functional.one_hot(following, 3000).float()


with tempfile.TemporaryDirectory() as folder:
    write_module(f"{folder}/verses/english", ENGLISH)
    write_module(f"{folder}/verses/spanish", SPANISH)
    read = verses.verses_of(f"{folder}/verses/english")
    assert read[:5] == ["", "", "In the beginning, God.", "", "verse 0."] and read[-1] == "the last verse", (
        read
    )
    verses.main(f"{folder}/verses", f"{folder}/data")
    train, validation = (
        safetensors.torch.load_file(f"{folder}/data/{part}.safetensors") for part in ("train", "validation")
    )
    # 42 pairs, of which the first and the 33rd validate and one is too long.
    assert (len(train["input_ids"]), len(validation["input_ids"])) == (39, 2)
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/data/tokenizer.json")
    row, labels = train["input_ids"][0], train["labels"][0]
    target = row[SOURCE:]
    count = int((labels >= 0).sum())
    assert (
        row.shape == (SOURCE + TARGET,)
        and target[0] == BEGIN
        and labels[count - 1] == END
        and (labels[count:] == -100).all()
    )
    assert torch.equal(target[1:count], labels[: count - 1]) and (target[count:] == PAD).all()
    english = tokenizer.decode([token for token in row[:SOURCE].tolist() if token])
    assert english.replace(" ", "") == "verse0.", english
    spanish = tokenizer.decode(labels[: count - 1].tolist())
    assert spanish.replace(" ", "") == "elverso0.", spanish
    assert translate.greedy(Parrot(), [[5, 6, 7], [9]]) == [[5, 6, 7], [9]]
