"""What a capture lets the engine try before it writes: that it does, and what becomes of each answer."""

import os
import stat
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from forked import stagecraft_capture
from places import STAGECRAFT
from stagecraft_capture.batch import Batch, Field
from stagecraft_capture.errors import CaptureError
from stagecraft_capture.trial import engine, try_in_engine, usual_loss

MODULE = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
"""


def batch():
    return Batch([Field("input", [8], torch.float32)])


@pytest.fixture(scope="module")
def model(folder):
    """A captured model, whose capture said what the engine made of it."""
    Path(f"{folder}/mine.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGECRAFT", STAGECRAFT)
        done = stagecraft_capture(
            f"{folder}/mine.py:build", "--input", "8", "-o", f"{folder}/mine.model", trial=True
        )
    assert done.returncode == 0, done.stderr
    assert "tried in the engine: a step of 1f1b on 2 stages, loss " in done.stdout, done.stdout
    return f"{folder}/mine.model"


COMPLEX = """
import math, torch
from torch import nn

class Spectral(nn.Module):
    "S4D: products of conjugates, whose memory the engine could write over, and of 1j."
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.log(0.5 * torch.ones(8, 4)))
        self.turn = nn.Parameter(math.pi * torch.arange(4.0).repeat(8, 1))
        self.mix, self.scale = nn.Parameter(torch.randn(8, 4, 2)), nn.Parameter(torch.rand(8))
        self.skip, self.head = nn.Parameter(torch.randn(8)), nn.Linear(8, 3)

    def forward(self, x):
        length, step = x.shape[1], self.scale.exp()
        poles = -self.rate.exp() + 1j * self.turn
        turned = poles * step[:, None]
        mixed = torch.view_as_complex(self.mix) * (turned.exp() - 1) / poles
        powers = torch.exp(turned[..., None] * torch.arange(length))
        kernel, x = 2 * torch.einsum("hn,hnl->hl", mixed, powers).real, x.transpose(1, 2)
        of_both = torch.fft.rfft(kernel, n=2 * length) * torch.fft.rfft(x, n=2 * length)
        made = torch.fft.irfft(of_both, n=2 * length)[..., :length] + x * self.skip[:, None]
        return self.head(nn.functional.gelu(made).transpose(1, 2))
"""


OVERFLOWS = """
from torch import nn

class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(self.a(x) * 1e30) * 1e30
"""


def tried(folder):
    return try_in_engine(folder, batch(), 2, "float32", usual_loss("f32[b,5]"))


def test_refused(folder, model, monkeypatch):
    """By the engine itself, which names the folder's file."""
    monkeypatch.setenv("STAGECRAFT", STAGECRAFT)
    manifest = Path(f"{model}/manifest.json")
    text = manifest.read_text()
    manifest.write_text(text.replace('"f32[b,5]"', '"f32[b,6]"'))
    with pytest.raises(CaptureError, match=r"does not train.*--no-trial.*: manifest\.json.*f32"):
        tried(model)
    manifest.write_text(text)
    assert "tried in the engine" in tried(model)


def test_complex_numbers(folder, monkeypatch):
    monkeypatch.setenv("STAGECRAFT", STAGECRAFT)
    Path(f"{folder}/complex.py").write_text(COMPLEX)
    given = (f"{folder}/complex.py:Spectral", "--input", "6,8", "-o", f"{folder}/complex.model")
    done = stagecraft_capture(*given, trial=True)
    assert done.returncode == 0 and "tried in the engine: a step" in done.stdout, done.stdout + done.stderr


def test_overflow(folder, monkeypatch):
    """Of what was drawn is no fault of the model."""
    monkeypatch.setenv("STAGECRAFT", STAGECRAFT)
    Path(f"{folder}/huge.py").write_text(OVERFLOWS)
    done = stagecraft_capture(
        *(f"{folder}/huge.py:Huge", "--input", "8", "--allow-inexact", "-o", f"{folder}/huge.model"),
        trial=True,
    )
    assert done.returncode == 0 and "loss that is not finite" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("echo 'stagecraft: too little memory' >&2; exit 3", "NOT tried in the engine: too little memory"),
        ("exit 3", "NOT tried in the engine: exit code 3"),
    ],
)
def test_not_tried(folder, monkeypatch, program, said):
    """For this machine's sake: the folder is written, and the line says why."""
    path = Path(f"{folder}/engine")
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("STAGECRAFT", str(path))
    assert tried(f"{folder}/none.model") == said


def test_died(folder, monkeypatch):
    path = Path(f"{folder}/dies")
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("STAGECRAFT", str(path))
    with pytest.raises(CaptureError, match="signal 9"):
        tried(f"{folder}/none.model")


def test_no_engine(folder, monkeypatch):
    monkeypatch.setenv("STAGECRAFT", "")
    assert engine() is None and "there is no stagecraft here" in tried(f"{folder}/none.model")
    monkeypatch.setenv("STAGECRAFT", f"{folder}/nowhere")
    assert "NOT tried in the engine" in tried(f"{folder}/none.model")


def test_nothing_written(folder, monkeypatch):
    """Where the engine refuses."""
    path = Path(f"{folder}/refuses")
    path.write_text("#!/bin/sh\necho 'stagecraft: graphs/x.json: no such operator' >&2\nexit 2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("STAGECRAFT", str(path))
    Path(f"{folder}/mine.py").write_text(MODULE)
    done = stagecraft_capture(
        f"{folder}/mine.py:build", "--input", "8", "-o", f"{folder}/refused.model", trial=True
    )
    assert done.returncode == 2 and "graphs/x.json: no such operator" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not os.path.exists(f"{folder}/refused.model"), done.stderr


def test_losses():
    """Of a model that brings none: what a built-in loss can read."""
    config, targets = usual_loss("bf16[b,5,7]")
    assert config == {"loss": {"type": "mse"}} and targets.shape == (8, 5, 7)
    assert (
        usual_loss("f32[b]") is None and usual_loss("i64[b,5]") is None and usual_loss("f32[4*b,5]") is None
    )
