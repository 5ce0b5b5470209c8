"""Stagecraft's own family `gpt` as a PyTorch module: layers and parameters have the names that they have there and in checkpoints."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .errors import CaptureError

LAYERS = "embedding,block*.attention,block*.feed_forward,norm,head"  # as the library cuts it
NUMBERS = {"blocks": int, "width": int, "heads": int, "feed_forward": int, "dropout": float, "attention_dropout": float}


class Embedding(nn.Module):
    def __init__(self, vocabulary, sequence, width, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Parameter(torch.empty(vocabulary, width).normal_(std=0.02))
        self.positions = nn.Parameter(torch.empty(sequence, width).normal_(std=0.02))

    def forward(self, tokens):
        return F.dropout(F.embedding(tokens, self.tokens) + self.positions, self.dropout, self.training)


def linear(inputs, outputs, std, bias=True):
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Attention(nn.Module):
    def __init__(self, width, heads, blocks, dropout=0.0, attention_dropout=0.0):
        super().__init__()
        self.heads, self.dropout, self.attention_dropout = heads, dropout, attention_dropout
        self.norm = nn.LayerNorm(width)
        self.qkv = linear(width, 3 * width, 0.02)
        self.project = linear(width, width, 0.02 / math.sqrt(2 * blocks))

    def forward(self, x):
        samples, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).view(samples, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attention_dropout if self.training else 0.0, is_causal=True)
        y = self.project(mixed.transpose(1, 2).reshape(samples, tokens, width))
        return x + F.dropout(y, self.dropout, self.training)


class FeedForward(nn.Module):
    def __init__(self, width, hidden, blocks, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(width)
        self.expand = linear(width, hidden, 0.02)
        self.project = linear(hidden, width, 0.02 / math.sqrt(2 * blocks))

    def forward(self, x):
        return x + F.dropout(self.project(F.gelu(self.expand(self.norm(x)))), self.dropout, self.training)


def gpt_layers(vocabulary, sequence, blocks, width, heads, feed_forward=0, dropout=0.0, attention_dropout=0.0):
    """Pre-norm decoder as a list of named layers: learned positions, causal attention, GELU, a head without bias."""
    layers = [("embedding", Embedding(vocabulary, sequence, width, dropout))]
    for block in range(blocks):
        layers.append((f"block{block}.attention", Attention(width, heads, blocks, dropout, attention_dropout)))
        layers.append((f"block{block}.feed_forward", FeedForward(width, feed_forward or 4 * width, blocks, dropout)))
    layers.append(("norm", nn.LayerNorm(width)))
    layers.append(("head", linear(width, vocabulary, 0.02, bias=False)))
    return layers


class Gpt(nn.Module):
    """`stated_name`: what tells it from others, in the manifest."""

    def __init__(self, stated_name, layers):
        super().__init__()
        self.stated_name = stated_name
        self.paths = [name for name, _ in layers]
        for name, layer in layers:
            block, dot, part = name.rpartition(".")
            if dot and not hasattr(self, block):
                self.add_module(block, nn.Module())
            self.get_submodule(block).add_module(part, layer)

    def forward(self, tokens):
        x = tokens
        for path in self.paths:
            x = self.get_submodule(path)(x)
        return x


def parse_gpt(text):
    """What --gpt says: blocks=8,width=256,heads=8 and the other numbers of `model` in a config."""
    numbers = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            numbers[name] = NUMBERS[name](value)
        except (KeyError, ValueError):
            raise CaptureError(f"--gpt {text}: at {part!r}: expected {', '.join(NUMBERS)}, each with a number, as in blocks=8,width=256,heads=8") from None
    if absent := [name for name in ("blocks", "width", "heads") if numbers.get(name, 0) < 1]:
        raise CaptureError(f"--gpt {text}: {absent[0]} is not given, or below 1")
    if numbers["width"] % numbers["heads"]:
        raise CaptureError(f"--gpt {text}: width {numbers['width']} is not a multiple of heads {numbers['heads']}")
    return numbers


def gpt(text, vocabulary, sequence):
    """The library compares the name with its model (models/families/gpt.cpp), because heads and dropout show in no weight."""
    given = parse_gpt(text)
    numbers = {**dict.fromkeys(NUMBERS, 0), **given, "feed_forward": given.get("feed_forward") or 4 * given["width"]}
    return Gpt("gpt " + ",".join(f"{name}={value:g}" for name, value in numbers.items()), gpt_layers(vocabulary, sequence, **numbers))
