"""examples/translator: verses are read from SWORD's files, tokenized into rows, and decoded greedily; without
a network."""

import os
import struct
import zlib

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")
tokenizers = pytest.importorskip("tokenizers", reason="scripts/setup.sh --models installs it")

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


@pytest.fixture(scope="module")
def english(folder):
    write_module(f"{folder}/verses/english", ENGLISH)
    write_module(f"{folder}/verses/spanish", SPANISH)
    return verses.verses_of(f"{folder}/verses/english")


def test_verses(english):
    assert english[:5] == ["", "", "In the beginning, God.", "", "verse 0."]
    assert english[-1] == "the last verse"


def test_rows(english, folder):
    verses.main(f"{folder}/verses", f"{folder}/data")
    train, validation = (
        safetensors.load_file(f"{folder}/data/{part}.safetensors") for part in ("train", "validation")
    )
    # 42 pairs, of which the first and the 33rd validate and one is too long.
    assert (len(train["input_ids"]), len(validation["input_ids"])) == (39, 2)
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/data/tokenizer.json")
    row, labels = train["input_ids"][0], train["labels"][0]
    target = row[SOURCE:]
    count = int((labels >= 0).sum())
    assert row.shape == (SOURCE + TARGET,)
    assert target[0] == BEGIN
    assert labels[count - 1] == END
    assert (labels[count:] == -100).all()
    assert torch.equal(target[1:count], labels[: count - 1])
    assert (target[count:] == PAD).all()
    source = tokenizer.decode([token for token in row[:SOURCE].tolist() if token])
    assert source.replace(" ", "") == "verse0."
    assert tokenizer.decode(labels[: count - 1].tolist()).replace(" ", "") == "elverso0."


def test_greedy():
    assert translate.greedy(Parrot(), [[5, 6, 7], [9]]) == [[5, 6, 7], [9]]
