"""A small module with state of some kind, and how it is captured: equal to eager, or refused with these
words.

It stands between two linear layers: its step takes the first one's output. `start` gives the module its
state.
"""

from dataclasses import dataclass

import torch
from torch import nn

WIDTH = 6


class Stateful(nn.Module):
    def __init__(self, start, step):
        super().__init__()
        self.step = step
        start(self)

    def forward(self, h):
        return self.step(self, h)


@dataclass
class Case:
    name: str
    step: object
    start: object
    words: tuple  # of the refusal; none: equal
    left_out: tuple = ()  # attributes that no forward reads
    differs: str = ""  # the part of the self-check that differs
    alone: bool = False  # the module is the model, nothing around it
    prepare: object = None  # of the whole model
    layers: int = None  # how many; None: any number

    def build(self):
        torch.manual_seed(0)
        own = Stateful(self.start, self.step)
        model = own if self.alone else nn.Sequential(nn.Linear(8, WIDTH), own, nn.Linear(WIDTH, 4))
        if self.prepare:
            self.prepare(model)
        return model


CASES = []


def zeros(self):
    self.register_buffer("m", torch.zeros(WIDTH))


def case(name, *words, start=zeros, **how):
    return lambda step: CASES.append(Case(name, step, start, words, **how))


def starting(**buffers):
    """A start with these buffers, or attributes where they are no tensors."""

    def start(self):
        for name, value in buffers.items():
            (
                self.register_buffer(name, value.clone())
                if isinstance(value, torch.Tensor)
                else setattr(self, name, value)
            )

    return start


def mean(h):
    return h.detach().mean(0)
