"""The command: what it refuses is one line, and exit code 2; layers that do not equal eager are one line, and exit code 3."""

import atexit
import gc
import signal
import sys
import warnings

from stagecraft_tools.console import run

from .errors import CaptureError, missing, place_in


def command():
    atexit.register(gc.freeze)  # what is left then is no garbage, and the interpreter would look through it for most of a second
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as it ends other commands
    gc.set_threshold(50_000)  # graphs are many small objects that stay: looking for garbage as often as usual takes 7 % of a capture
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of torch to those who write for it
    return run("stagecraft-capture", main, "", place_in)


def main():
    try:
        from .__main__ import main
    except ModuleNotFoundError as error:
        raise CaptureError(missing(error.name)) from error
    return main()
