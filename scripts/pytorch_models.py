"""Stagecraft's model families in plain PyTorch, as lists of named layers. Layers and parameters have the names they have in
models/families.cpp and in checkpoints, so that a stage, or a weight file, here is the same as there."""

import math
import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from stagecraft_capture.own_gpt import gpt_layers  # noqa: F401


def mlp_layers(sample_shape, classes, hidden):
    """Linear layers with ReLU between; samples of several dimensions are flattened first."""
    layers = [("flatten", nn.Flatten())] if len(sample_shape) != 1 else []
    inputs = math.prod(sample_shape)
    for i, width in enumerate(hidden):
        layers += [(f"hidden{i}.linear", nn.Linear(inputs, width)), (f"hidden{i}.relu", nn.ReLU())]
        inputs = width
    return layers + [("output", nn.Linear(inputs, classes))]


def convnet_layers(sample_shape, classes, groups, classifier):
    """VGG's shape with batch norm: groups of 3 x 3 convolutions, each ended by a pooling, and a classifier."""
    channels, rows, columns = sample_shape
    layers = []
    for g, group in enumerate(groups):
        for i, width in enumerate(group):
            layers += [(f"group{g}.conv{i}", nn.Conv2d(channels, width, 3, padding=1, bias=False)),
                       (f"group{g}.norm{i}", nn.BatchNorm2d(width)), (f"group{g}.relu{i}", nn.ReLU())]
            channels = width
        layers.append((f"group{g}.pool", nn.MaxPool2d(2)))
        rows, columns = rows // 2, columns // 2
    layers.append(("flatten", nn.Flatten()))
    inputs = channels * rows * columns
    for i, width in enumerate(classifier):
        layers += [(f"classifier{i}.linear", nn.Linear(inputs, width)), (f"classifier{i}.relu", nn.ReLU())]
        inputs = width
    return layers + [("output", nn.Linear(inputs, classes))]
