"""Structures of what has no file: of notebooks, prompts, lambdas and functions within functions."""

import shutil
import subprocess
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import stagecraft.structure as structures
from forked import captured
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


def in_fork(program):
    """Likewise: a process of its own would import torch for seconds. Its structures are others, since this
    file is loaded in it."""

    def run():
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<stdin>", "exec"), main.__dict__)

    done = captured(["-"], run)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base():
    return in_fork(PROGRAM.replace("{more}", ""))


def test_the_same_program_has_the_same_structure(base):
    plain = PROGRAM.replace("{more}", "")
    moved = "# moved\n\n" + PROGRAM.replace("{more}", "unrelated = 3")
    assert len(base) == 32
    assert in_fork(moved) == base
    assert structure(moved) == structure(plain) != base


@pytest.mark.parametrize("what", CHANGES)
def test_what_decides_a_capture_changes_it(base, what):
    before, after = CHANGES[what]
    assert before in PROGRAM
    changed = in_fork(PROGRAM.replace(before, after).replace("{more}", ""))
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


def test_an_upgraded_package_changes_it(tmp_path, monkeypatch):
    """Also one that was installed again under the same version, with other code."""
    monkeypatch.syspath_prepend(tmp_path)
    found = {structure_of(Calls(None), [])}
    about = tmp_path / "timm-1.0.31.dist-info"
    about.mkdir()
    for recorded in ("timm/layers.py,sha256=0a,10\n", "timm/layers.py,sha256=1b,10\n"):
        (about / "RECORD").write_text(recorded)
        found.add(structure_of(Calls(None), []))
    about.rename(tmp_path / "timm-1.0.32.dist-info")
    found.add(structure_of(Calls(None), []))
    assert len(found) == 4


def test_stagecrafts_own_code_changes_it(tmp_path, monkeypatch):
    """Loaded or not: a first capture of a process is what loads it."""
    shutil.copytree(structures.OURS / "stagecraft_capture", tmp_path / "stagecraft_capture")
    monkeypatch.setattr(structures, "OURS", tmp_path)
    before = structure_of(Calls(None), [])
    monkeypatch.setitem(sys.modules, "losses_again", types.ModuleType("losses_again"))
    sys.modules["losses_again"].__file__ = str(tmp_path / "stagecraft_capture" / "losses.py")
    assert structure_of(Calls(None), []) == before
    with open(tmp_path / "stagecraft_capture" / "losses.py", "a") as file:
        file.write("# mended\n")
    assert structure_of(Calls(None), []) != before
