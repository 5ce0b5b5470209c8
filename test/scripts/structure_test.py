"""Structures of what has no file: of notebooks, prompts, lambdas and functions within functions."""

import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from places import ENVIRONMENT
from stagecraft.structure import structure_of

PROGRAM = """
import torch
from stagecraft.structure import structure_of
WIDTH = 4
def scaled(x):
    return x * 2.0
class Base(torch.nn.Module):
    gain = 1.0
    def before(self, x):
        return scaled(x)
class Net(Base):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
    @property
    def half(self):
        return 0.5
    @staticmethod
    def shift(x):
        return [each + WIDTH for each in x]
    def forward(self, x):
        return self.a(self.before(x)) * self.half
def loss(output, batch):
    return (lambda z: z.sum())(output)
{more}
print(structure_of(Net(), [loss]))
"""

CHANGES = {
    "a global": ("WIDTH = 4", "WIDTH = 5"),
    "a function that another reads": ("x * 2.0", "x * 3.0"),
    "the base class": ("return scaled(x)", "return scaled(x) + 1"),
    "an attribute of a class": ("gain = 1.0", "gain = 2.0"),
    "a property": ("return 0.5", "return 0.25"),
    "a static method": ("each + WIDTH", "each - WIDTH"),
    "forward": ("self.a(self.before(x))", "self.before(self.a(x))"),
    "a lambda within the loss": ("z.sum()", "z.mean()"),
    "a method of an installed class": ("{more}", "torch.nn.Linear.forward = lambda self, x: x"),
    "a function of an installed module": ("{more}", "torch.nn.functional.linear = scaled"),
}


def structure(program):
    """Of a program that comes by standard input, as a prompt's lines do."""
    done = subprocess.run(
        [sys.executable, "-"], input=program, capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base():
    return structure(PROGRAM.replace("{more}", ""))


def test_the_same_program_has_the_same_structure(base):
    assert len(base) == 32
    assert structure("# moved\n\n" + PROGRAM.replace("{more}", "unrelated = 3")) == base


@pytest.mark.parametrize("what", CHANGES)
def test_what_decides_a_capture_changes_it(base, what):
    before, after = CHANGES[what]
    assert before in PROGRAM
    changed = structure(PROGRAM.replace(before, after).replace("{more}", ""))
    assert len(changed) == 32
    assert changed != base


class Calls(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.call = call


def closing_over(number):
    return lambda x: x * number


def recursive():
    def again(x, depth=2):
        return again(x, depth - 1) if depth else x

    return again


def test_lambdas_and_closures_count_by_what_they_do():
    first = structure_of(Calls(closing_over(2)), [])
    assert first is not None
    assert first == structure_of(Calls(closing_over(2)), [])
    assert first != structure_of(Calls(closing_over(3)), [])
    assert structure_of(Calls(lambda x: x), []) != structure_of(Calls(lambda x: x + 1), [])
    assert structure_of(Calls(recursive()), []) == structure_of(Calls(recursive()), []) is not None
    assert structure_of(Calls(threading.Lock()), []) is None
