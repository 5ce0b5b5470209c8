"""The command: what it refuses is one line, and exit code 2; layers that do not equal eager are one line, and
exit code 3."""

import atexit
import gc
import os
import signal
import sys
import warnings
from typing import NoReturn

from stagecraft_tools.console import run

from .arguments import parse
from .errors import CaptureError, missing, place_in, require_known_torch


def program() -> NoReturn:
    """The command as a process of its own, which ends here. Python's own end looks through all that is left,
    for most of a second, and lets triton's bindings complain of what they find."""
    try:
        code = command()
    except SystemExit as done:  # argparse's
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        os.write(2, f"stagecraft-capture: standard output: {error.strerror}\n".encode())
        code = code or 1
    os._exit(code)


def command() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as it ends other commands
    # graphs are many small objects that stay: looking for garbage as often as usual takes 7 % of a capture
    gc.set_threshold(50_000)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of torch to those who write for it
    return run("stagecraft-capture", main, "", place_in)


def main() -> int:
    arguments = parse()
    require_known_torch()
    try:
        from .into_folder import main
    except ModuleNotFoundError as error:
        raise CaptureError(missing(error.name or str(error))) from error
    return main(arguments)
