# The module of frozen/: a layer whose weights are not trained, with a table of numbers, and behind it batch
# norm and layers that are.
#
#   stagecraft-capture frozen.py:Frozen --input 8 --loss cross_entropy -o frozen

import torch
from torch import nn


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(8, 6), nn.Tanh()).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.middle = nn.Linear(6, 5)
        self.head = nn.Linear(5, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x):
        return self.head(torch.relu(self.middle(self.norm(self.body(x) * self.scale))))
