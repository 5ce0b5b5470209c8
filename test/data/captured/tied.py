# The module of tied/: one weight that its first, a middle and its last layer hold, and another that two
# neighbours do; the other parameters are one layer's alone. Dropout and a padding mask between them.
#
# tied_bf16/ and tied_fp16/ are the same with `--dtype bfloat16` and `--dtype float16`.
#
#   stagecraft-capture tied.py:Tied --input 4,8 --field 'mask=i64[4]<2' --field 'labels=i64[4]<5' \
#     --loss tied.py:loss -o tied

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.25)

    def forward(self, x, mask):
        return x + self.drop(torch.tanh(self.linear(x))) * mask.unsqueeze(-1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.blocks[3].linear.weight = self.embed.weight
        self.blocks[5].linear.weight = self.blocks[4].linear.weight
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, mask):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def loss(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
