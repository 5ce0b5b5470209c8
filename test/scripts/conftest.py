"""What tests of Python share. A file begins with what it needs, pytest.importorskip(...): ctest says
"skipped", with exit code 77, where nothing of a file could be tried."""

import atexit
import gc
import shutil
import signal
import sys
import tempfile

import pytest

from places import SOURCE

EXAMPLES = ("examples/detector", "examples/translator")
sys.path[:0] = [str(SOURCE / where) for where in ("python", "scripts", "scripts/docs", *EXAMPLES)]

# None of PyTorch's thousands of modules is garbage, and looking for some makes a process start and end a
# second later. What a file's tests leave, captures above all, is looked for behind them.
gc.disable()
atexit.register(gc.freeze)

# What tests start has the signals of a terminal, however they were started: under nohup, or in a script's
# background, some are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)

SKIPPED = 77
outcomes = set()
files_begun = []


@pytest.fixture(autouse=True)
def kept_captures(monkeypatch, tmp_path_factory):
    """Captures of sc.pipeline are kept for all tests of a file, and none of the user's."""
    monkeypatch.setenv("STAGECRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "captures"))


@pytest.fixture(scope="module", autouse=True)
def no_garbage():
    """Of the file before."""
    if files_begun:
        gc.collect()
    files_begun.append(1)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder of the test's own, in which it works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for all tests of a file, which build on what those before have left there."""
    return str(tmp_path_factory.mktemp("of"))


def pytest_configure(config):
    """Folders of tests lie in one of this process: those that pytest shares among processes may vanish."""
    if config.option.basetemp is None:
        config.option.basetemp = tempfile.mkdtemp(prefix="stagecraft-")
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))


def pytest_collection_finish():
    gc.freeze()  # what is imported stays


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        outcomes.add(report.outcome)


def pytest_collectreport(report):
    outcomes.update({report.outcome} - {"passed"})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if outcomes == {"skipped"}:
        session.exitstatus = SKIPPED
