"""All small modules with state, and those of them that a run has one behind the other."""

import torch
from torch import nn

import capture_state_attributes  # noqa: F401  # their cases
import capture_state_buffers  # noqa: F401
from capture_state_case import CASES, WIDTH, Stateful, mean


class Beside(Stateful):
    def forward(self, h):
        return h + super().forward(h)


def is_in_rounds(case):
    """Equals eager in a run too; random draws are a run's own."""
    return not (case.words or case.differs or case.alone or case.prepare or "dropout" in case.name)


class Rounds(nn.Sequential):
    """Every such case, one behind the other."""

    def __init__(self):
        torch.manual_seed(0)
        chosen = [case for case in CASES if is_in_rounds(case)]
        middle = [part for case in chosen for part in (Beside(case.start, case.step), nn.LayerNorm(WIDTH))]
        super().__init__(nn.Linear(8, WIDTH), *middle, nn.Linear(WIDTH, 5))


class Always(nn.Module):
    """Changes a buffer in evaluation too."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 5)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        h = self.f(x)
        self.mean = 0.9 * self.mean + 0.1 * mean(h)
        return h - self.mean
