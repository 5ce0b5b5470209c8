"""A model for profile_torch_test.py: a Sequential with Sequentials in it, layers in place, a view, batch norm."""

from collections import OrderedDict

from torch import nn


def convnet():
    features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                             nn.ReLU(inplace=True), nn.MaxPool2d(2))
    classifier = nn.Sequential(nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(OrderedDict(features=features, flatten=nn.Flatten(), classifier=classifier))


def tokens():
    return nn.Sequential(OrderedDict(embedding=nn.Embedding(50, 16), norm=nn.LayerNorm(16), head=nn.Linear(16, 50)))


def needs_arguments(width):
    return nn.Sequential(nn.Linear(width, width))


def two_outputs():
    return nn.Sequential(nn.LSTM(4, 4), nn.Linear(4, 4))
