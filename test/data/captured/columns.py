# The module of columns/: categories that are looked up in tables of several sizes, one column of the input in
# each; a number made of two columns; a field in a table of two rows; classes whose first no label names.
#
#   stagecraft-capture columns.py:Columns --sequence 3 --vocabulary 5 --field 'kind=i64[]<2' \
#     --field 'labels=i64[]<3' --loss columns.py:loss -o columns

import torch
from torch import nn


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.colours, self.shapes, self.kinds = nn.Embedding(5, 4), nn.Embedding(11, 4), nn.Embedding(2, 4)
        self.pairs = nn.Embedding(12, 4)
        self.hidden, self.head = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x, kind):
        of_all = (
            self.colours(x[:, 0]) + self.shapes(x[:, 1]) + self.pairs(x[:, 0] + x[:, 2]) + self.kinds(kind)
        )
        return self.head(torch.tanh(self.hidden(of_all)))


def loss(output, batch):
    return nn.functional.cross_entropy(output, batch["labels"] + 1, ignore_index=-100)
