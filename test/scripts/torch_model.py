"""A model for pytorch_split_test.py: a Sequential with Sequentials in it, layers in place, a view, batch
norm."""

from collections import OrderedDict

from torch import nn


def convnet():
    features = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    classifier = nn.Sequential(nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(OrderedDict(features=features, flatten=nn.Flatten(), classifier=classifier))
