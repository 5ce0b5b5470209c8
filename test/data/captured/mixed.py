# The module of mixed/: padding masks read on several stages, dropout, batch norm's buffers, a loss over
# labels, tensors whose samples are their second dimension, and between its layers all that can go on besides
# the one tensor of a chain: a value that every block reads, one that is made of weights alone, one that
# passes blocks by, and one of integers. Its loss has terms.
#
# mixed_bf16/ is the same with `--dtype bfloat16 --full BatchNorm1d`.
#
#   stagecraft-capture mixed.py:Mixed --input 4,8 --field 'mask=i64[4]<2' --field 'labels=i64[4]<5' \
#     --loss mixed.py:loss -o mixed

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.25)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, mask, memory, bias):
        y = self.drop(torch.tanh(self.linear(x) * memory + bias)) * mask.unsqueeze(-1)
        return x + self.norm(y.flatten(0, 1)).view_as(x)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.place = nn.Parameter(torch.randn(4, 8))
        self.blocks = nn.ModuleList(Block() for _ in range(7))
        self.route = nn.Embedding(8, 8)
        self.last = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, mask):
        x = self.embed(x.transpose(0, 1).contiguous()).transpose(0, 1)
        memory, bias, choice = x.sigmoid(), self.place.cumsum(0), x.argmax(-1)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, memory, bias)
            if i == 1:
                skipped = x
            if i == 4:
                x = x * skipped
        return self.head(self.last(x + self.route(choice)))


def loss(output, batch):
    """With terms: a mean over labels that count, one over all rows, and an integer."""
    rows, labels = output.flatten(0, 1), batch["labels"].flatten()
    ce = nn.functional.cross_entropy(rows, labels, ignore_index=-100)
    spread = rows.float().var(-1).mean()
    return ce, {"ce": ce, "spread": spread, "right": rows.argmax(-1).eq(labels).sum()}
