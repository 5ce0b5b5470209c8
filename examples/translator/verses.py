#!/usr/bin/env python3
"""English verses and their Spanish translations as arrays that `stagecraft train` reads.

    verses.py VERSES FOLDER

VERSES: the folder of `scripts/fetch_data.sh --verses`. Into FOLDER go tokenizer.json, a byte-pair encoding
made of the training verses of both languages, and train.safetensors and validation.safetensors: per row
SOURCE tokens of the English verse, then the Spanish one behind BEGIN (`input_ids`), and what follows each of
those (`labels`, -100 behind END). Verses longer than that are left out. Each 32nd verse validates.
"""

import os
import re
import struct
import sys
import zlib

import safetensors.torch
import tokenizers
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from translator import BEGIN, END, PAD, SOURCE, TARGET, VOCABULARY

VALIDATES = 32
MARKUP = re.compile(r"<(title|note)\b.*?</\1>|<[^>]*>", re.DOTALL)


def records(data, layout):
    return struct.iter_unpack(layout, data)


def verses_of(folder):
    """The verses of a module of SWORD's zText in their order, empty where there is none. Books are compressed
    as blocks; an index has a verse's block, and where it lies in it."""
    verses = []
    for testament in ("ot", "nt"):
        parts = {}
        for part in ("bzs", "bzv", "bzz"):
            with open(f"{folder}/{testament}.{part}", "rb") as file:
                parts[part] = file.read()
        blocks = [
            zlib.decompress(parts["bzz"][at : at + size]) for at, size, _ in records(parts["bzs"], "<III")
        ]
        for block, at, size in records(parts["bzv"], "<IIH"):
            text = blocks[block][at : at + size].decode() if size else ""
            verses.append(
                " ".join(MARKUP.sub(" ", text).split())
                .replace(" ,", ",")
                .replace(" .", ".")
                .replace(" ;", ";")
                .replace(" :", ":")
            )
    return verses


def byte_pairs(texts):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(),
            tokenizers.pre_tokenizers.Metaspace(),
            tokenizers.pre_tokenizers.Punctuation(),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<pad>", "<begin>", "<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() <= VOCABULARY
    return tokenizer


def row_of(english, spanish):
    """Inputs and labels; None where the verse is too long."""
    if len(english) > SOURCE or len(spanish) + 1 > TARGET:
        return None
    inputs = english + [PAD] * (SOURCE - len(english)) + [BEGIN] + spanish
    labels = [*spanish, END]
    return inputs + [PAD] * (SOURCE + TARGET - len(inputs)), labels + [-100] * (TARGET - len(labels))


def main(verses, folder):
    pairs = [
        pair for pair in zip(verses_of(f"{verses}/english"), verses_of(f"{verses}/spanish")) if all(pair)
    ]
    training = [pair for i, pair in enumerate(pairs) if i % VALIDATES]
    tokenizer = byte_pairs(text for pair in training for text in pair)
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(f"{folder}/tokenizer.json")
    for name, part in (("train", training), ("validation", pairs[::VALIDATES])):
        sides = [[encoded.ids for encoded in tokenizer.encode_batch(list(side))] for side in zip(*part)]
        rows = [row for row in map(row_of, *sides) if row]
        arrays = {key: torch.tensor(column) for key, column in zip(("input_ids", "labels"), zip(*rows))}
        safetensors.torch.save_file(arrays, f"{folder}/{name}.safetensors")
        print(
            f"{name}: {len(rows):,} of {len(part):,} verses, {int((arrays['labels'] >= 0).sum()):,} tokens of"
            " translations"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
