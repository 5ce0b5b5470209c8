"""The command: what it refuses is one line, and exit code 2."""

import atexit
import gc
import signal
import sys

from .errors import CaptureError, missing


def command():
    atexit.register(gc.freeze)  # what is left then is no garbage, and the interpreter would look through it for most of a second
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, as it ends other commands
    gc.set_threshold(50_000)  # graphs are many small objects that stay: looking for garbage as often as usual takes 7 % of a capture
    try:
        from .__main__ import main

        return main()
    except CaptureError as error:
        print(f"stagecraft-capture: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "numpy"):
            raise
        print(f"stagecraft-capture: {missing(error.name)}", file=sys.stderr)
    return 2
