# The module of lengths/, for samples cut to 2, 3 or all 4 of their positions: attention over the positions
# that a mask leaves, a constant and a parameter of which as many rows are read as there are positions,
# dropout, a value that goes past layers, a layer behind which no tensor has the length any more, and a loss
# over labels.
#
#   stagecraft-capture lengths.py:Lengths --input 4,8 --field 'mask=i64[4]<2' --field 'labels=i64[4]<5' \
#     --loss lengths.py:loss --lengths 2,3 -o lengths

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.25)

    def forward(self, x, mask, first):
        scores = self.mix(x) @ x.transpose(1, 2) + (mask == 0).unsqueeze(1) * -1e4
        x = x + self.drop(torch.tanh(self.linear(scores.softmax(-1) @ x)))
        return x * first.sigmoid()


class Pool(nn.Module):
    """One number per feature: the gradient is as long as the samples, and nothing that is kept is."""

    def forward(self, x):
        return x.mean(1)


class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.place = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("order", torch.arange(4.0).unsqueeze(-1), persistent=False)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.pool = Pool()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, mask):
        n = x.size(1)
        first = x = self.embed(x) + self.place[:n] + self.order[:n].sin()
        for block in self.blocks:
            x = block(x, mask, first)
        return self.head(self.norm(self.pool(x)))


def loss(output, batch):
    """Every label of a sample counts, against the one output that the sample has."""
    labels = batch["labels"]
    of_each = output.unsqueeze(1).expand(-1, labels.size(1), -1)
    return nn.functional.cross_entropy(of_each.flatten(0, 1), labels.flatten(), ignore_index=-100)
