# The module of mixed/: padding masks read on several stages, dropout, batch norm's buffers, a loss over labels, and between its layers
# tensors whose samples are their second dimension.
#
#   stagecraft-capture mixed.py:Mixed --input 4,8 --field 'mask=i64[4]<2' --field 'labels=i64[4]<5' --loss mixed.py:loss -o mixed

from torch import nn, tanh


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.25)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, mask):
        y = self.drop(tanh(self.linear(x))) * mask.unsqueeze(-1)
        return x + self.norm(y.flatten(0, 1)).view_as(x)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(7))
        self.last = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x, mask):
        x = self.embed(x.transpose(0, 1).contiguous()).transpose(0, 1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.last(x))


def loss(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
