"""PipeDream's GNMT in small: an LSTM encoder and decoder with attention, for stagecraft-capture.

One text of SOURCE tokens and the TARGET tokens of its translation so far, one behind the other, are read;
made are the logits of each next token of the translation. A bidirectional LSTM and two more read the source.
The first layer of the decoder begins with the encoder's last state, and what it makes asks for the attention
that all later layers read. Layers between add what they read to what they make.
"""

import torch
from torch import nn

VOCABULARY, SOURCE, TARGET, WIDTH = 2000, 40, 40, 192
PAD, BEGIN, END = 0, 1, 2


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.first = nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.encoder = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(
            nn.LSTM(WIDTH if i == 0 else 2 * WIDTH, WIDTH, batch_first=True) for i in range(3)
        )
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(2 * WIDTH, VOCABULARY)

    def forward(self, tokens):
        source, target = tokens[:, :SOURCE], tokens[:, SOURCE:]
        memory, _ = self.first(self.source(source))
        for layer in self.encoder:
            made, state = layer(memory)
            memory = made + memory
        y, context = self.target(target), None
        for i, layer in enumerate(self.decoder):
            made, _ = layer(y, state) if i == 0 else layer(torch.cat([y, context], -1))
            y = made + y
            if i == 0:
                scores = self.query(y) @ memory.transpose(1, 2)
                context = scores.masked_fill((source == PAD).unsqueeze(1), float("-inf")).softmax(-1) @ memory
        return self.head(torch.cat([y, context], -1))


def loss(output, batch):
    return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
