"""Refusals in one line, and a line of progress."""

import sys
import time


class Progress:
    """One line, on a terminal, which changes five times per second at most. Nothing elsewhere."""

    def __init__(self, out=sys.stderr):
        self.out, self.next, self.shows = out, 0.0, out.isatty()

    def show(self, line):
        """`line` makes the text, where it is shown."""
        if self.shows and time.monotonic() >= self.next:
            self.next = time.monotonic() + 0.2
            self.out.write(f"\r{line()} ")
            self.out.flush()

    def clear(self):
        if self.shows:
            self.out.write("\r\x1b[K")


def run(tool, main, refused, modules):
    """`main`'s exit code. What it refuses by an exception of type `refused`, a file that cannot be read or written, and a Python module that is
    missing are one line and exit code 2. `modules`: what to install then."""
    try:
        return main()
    except refused as error:
        print(f"{tool}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{tool}: {error.filename}: {error.strerror}" if error.filename else f"{tool}: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"{tool}: there is no Python module {error.name} here: scripts/setup.sh --models, or python3 -m pip install {modules}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{tool}: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 2
