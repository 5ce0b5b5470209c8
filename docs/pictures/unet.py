"""A small U-Net that classifies: what each step down makes is read again by the step up across from it."""

import torch
from torch import nn


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def step(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU())

        self.down = nn.ModuleList([step(3, 8), step(8, 16), step(16, 16)])
        self.bottom = step(16, 16)
        self.up = nn.ModuleList([step(32, 16), step(32, 8), step(16, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for i, layer in enumerate(self.up):
            x = nn.functional.interpolate(x, scale_factor=2, mode="nearest")
            x = layer(torch.cat([x, skips[2 - i]], 1))
        return self.head(x.mean((2, 3)))


build = UNet
