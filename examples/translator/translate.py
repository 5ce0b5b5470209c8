#!/usr/bin/env python3
"""Translates with exported weights, each token the likeliest one.

    translate.py WEIGHTS DATA [TEXT]...

WEIGHTS: the folder of `stagecraft export`. DATA: the folder of verses.py. Without a TEXT the first eight
verses that validated, beside their translations.
"""

import sys

import safetensors.torch
import tokenizers
import torch

from translator import BEGIN, END, PAD, SOURCE, TARGET, Translator


def greedy(model, sources):
    """Of rows of source tokens the tokens of their translations."""
    tokens = torch.full((len(sources), SOURCE + TARGET), PAD)
    for row, source in zip(tokens, sources):
        row[: len(source)] = torch.tensor(source)
    tokens[:, SOURCE] = BEGIN
    ended = torch.zeros(len(sources), dtype=torch.bool)
    for at in range(SOURCE, SOURCE + TARGET - 1):
        following = model(tokens)[:, at - SOURCE].argmax(-1)
        ended |= following == END
        if ended.all():
            break
        tokens[:, at + 1] = torch.where(ended, PAD, following)
    return [[token for token in row[SOURCE + 1 :].tolist() if token != PAD] for row in tokens]


@torch.no_grad()
def main(weights, data, *texts):
    tokenizer = tokenizers.Tokenizer.from_file(f"{data}/tokenizer.json")
    model = Translator().eval()
    model.load_state_dict(safetensors.torch.load_file(f"{weights}/model.safetensors"))
    if texts:
        sources, expected = [tokenizer.encode(text).ids[:SOURCE] for text in texts], []
    else:
        rows = safetensors.torch.load_file(f"{data}/validation.safetensors")["input_ids"][:8].tolist()
        sources = [[token for token in row[:SOURCE] if token != PAD] for row in rows]
        expected = [tokenizer.decode([token for token in row[SOURCE:] if token > END]) for row in rows]
    for i, made in enumerate(greedy(model, sources)):
        print(f"\n  {tokenizer.decode(sources[i])}\n> {tokenizer.decode(made)}")
        if expected:
            print(f"= {expected[i]}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
