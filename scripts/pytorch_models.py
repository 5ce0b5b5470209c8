"""Stagecraft's model families in plain PyTorch, as lists of named layers. Layers and parameters have the
names they have in models/families.cpp and in checkpoints, so that a stage, or a weight file, here is the same
as there."""

import math

import torch
import torch.nn.functional as F
from torch import nn


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
        mixed = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.attention_dropout if self.training else 0.0, is_causal=True
        )
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


def gpt_layers(
    vocabulary, sequence, blocks, width, heads, feed_forward=0, dropout=0.0, attention_dropout=0.0
):
    """Pre-norm decoder as a list of named layers: learned positions, causal attention, GELU, a head without
    bias."""
    layers = [("embedding", Embedding(vocabulary, sequence, width, dropout))]
    for block in range(blocks):
        layers.append(
            (f"block{block}.attention", Attention(width, heads, blocks, dropout, attention_dropout))
        )
        layers.append(
            (f"block{block}.feed_forward", FeedForward(width, feed_forward or 4 * width, blocks, dropout))
        )
    layers.append(("norm", nn.LayerNorm(width)))
    layers.append(("head", linear(width, vocabulary, 0.02, bias=False)))
    return layers


def mlp_layers(sample_shape, classes, hidden):
    """Linear layers with ReLU between; samples of several dimensions are flattened first."""
    layers = [("flatten", nn.Flatten())] if len(sample_shape) != 1 else []
    inputs = math.prod(sample_shape)
    for i, width in enumerate(hidden):
        layers += [(f"hidden{i}.linear", nn.Linear(inputs, width)), (f"hidden{i}.relu", nn.ReLU())]
        inputs = width
    return [*layers, ("output", nn.Linear(inputs, classes))]


def convnet_layers(sample_shape, classes, groups, classifier):
    """VGG's shape with batch norm: groups of 3 x 3 convolutions, each ended by a pooling, and a
    classifier."""
    channels, rows, columns = sample_shape
    layers = []
    for g, group in enumerate(groups):
        for i, width in enumerate(group):
            layers += [
                (f"group{g}.conv{i}", nn.Conv2d(channels, width, 3, padding=1, bias=False)),
                (f"group{g}.norm{i}", nn.BatchNorm2d(width)),
                (f"group{g}.relu{i}", nn.ReLU()),
            ]
            channels = width
        layers.append((f"group{g}.pool", nn.MaxPool2d(2)))
        rows, columns = rows // 2, columns // 2
    layers.append(("flatten", nn.Flatten()))
    inputs = channels * rows * columns
    for i, width in enumerate(classifier):
        layers += [(f"classifier{i}.linear", nn.Linear(inputs, width)), (f"classifier{i}.relu", nn.ReLU())]
        inputs = width
    return [*layers, ("output", nn.Linear(inputs, classes))]
