"""Modules for scripts/gpu/make_models.py: what has kernels or forms of its own on GPUs."""

import torch
import torchvision


class Recurrent(torch.nn.Module):
    """Convolutions over time, an LSTM in both directions and a GRU."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(8, 32, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(32)
        self.lstm = torch.nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(64, 32, batch_first=True)
        self.drop = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).transpose(1, 2)
        x, _ = self.lstm(x)
        x, _ = self.gru(self.drop(x))
        return self.head(x.mean(1))


def vision():
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10
    )


class Block(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.first = torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(outputs)
        self.second = torch.nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs)
        self.skip = torch.nn.Conv2d(inputs, outputs, 1, stride=2)

    def forward(self, x):
        return torch.nn.functional.gelu(self.second(torch.relu(self.norm(self.first(x)))) + self.skip(x))


def convolutional():
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3),
        nn.MaxPool2d(3, stride=2, padding=1),
        Block(16, 32),
        nn.GroupNorm(4, 32),
        Block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )
