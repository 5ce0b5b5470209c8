"""The lines that say what a pipeline waits for while it is made (stagecraft.telling)."""

import io
import logging
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch", reason="scripts/setup.sh --models installs it")

from places import require_package

require_package()

import stagecraft as sc
from stagecraft import telling

CAPTURE = "stagecraft: capturing the module, a Sequential\n"
MEASURE = "stagecraft: measuring layers, planning and proving\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    monkeypatch.setattr(telling, "PATIENCE", 0.0)
    monkeypatch.setenv("STAGECRAFT_CACHE", str(tmp_path / "captures"))
    yield
    logging.getLogger("stagecraft").setLevel(logging.NOTSET)


def with_stderr(monkeypatch, stderr, *handlers):
    """And a logger without the handlers of pytest."""
    monkeypatch.setattr(sys, "stderr", stderr)
    logger = logging.getLogger("stagecraft")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", list(handlers))


def made(monkeypatch, stderr, *handlers):
    """What is said while a pipeline is made."""
    with_stderr(monkeypatch, stderr, *handlers)
    batch = (torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))
    step = sc.pipeline(torch.nn.Sequential(torch.nn.Linear(4, 3)), batch, loss="cross_entropy", stages=1)
    del step
    return stderr.getvalue()


def test_a_terminal_hears_of_each_phase_and_a_second_start_captures_nothing(monkeypatch):
    assert made(monkeypatch, Terminal()) == CAPTURE + MEASURE
    made(monkeypatch, Terminal())  # the capture has loaded sources, which count
    assert made(monkeypatch, Terminal()) == MEASURE


def test_a_notebook_hears_too(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    assert made(monkeypatch, stream()) == CAPTURE + MEASURE


def test_a_file_hears_nothing(monkeypatch):
    assert made(monkeypatch, io.StringIO()) == ""


def test_a_logger_is_quieted_and_heard_by_its_own_means(monkeypatch):
    logger = logging.getLogger("stagecraft")
    logger.setLevel(logging.WARNING)
    assert made(monkeypatch, Terminal()) == ""
    made(monkeypatch, Terminal())
    heard = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logger.setLevel(logging.INFO)
    assert made(monkeypatch, Terminal(), handler) == ""
    assert [f"stagecraft: {line}\n" for line in heard] == [MEASURE]


def test_what_is_short_is_not_worth_a_line(monkeypatch):
    monkeypatch.setattr(telling, "PATIENCE", 0.2)
    stderr = Terminal()
    with_stderr(monkeypatch, stderr)
    with telling.phase("something short"):
        pass
    with telling.phase("something long"):
        time.sleep(0.6)
    assert stderr.getvalue() == "stagecraft: something long\n"


def test_other_processes_are_silent(monkeypatch):
    from stagecraft.engine import _engine

    with_stderr(monkeypatch, Terminal())
    monkeypatch.setattr(_engine, "launch", lambda: {"rank": 1})
    telling.tell("x")
    assert sys.stderr.getvalue() == ""
