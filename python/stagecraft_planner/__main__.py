"""`python -m stagecraft_planner VERB ...` is the command itself."""

import os
import sys

from .binary import planner
from .errors import StagecraftError


def command() -> int:
    """Becomes the command; returns where there is none."""
    try:
        path = planner()
        os.execv(path, ["stagecraft", *sys.argv[1:]])
    except (StagecraftError, OSError) as error:
        print(f"stagecraft: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(command())
