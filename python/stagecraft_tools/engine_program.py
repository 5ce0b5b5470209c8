"""The program with the engine, for tools that ask it for something."""

import os
import shutil
from pathlib import Path


def engine() -> str | None:
    """$STAGECRAFT, or the checkout's own, or the one that the shell finds."""
    if (given := os.environ.get("STAGECRAFT")) is not None:
        return given or None
    built = Path(__file__).resolve().parents[2] / "build" / "stagecraft"
    return str(built) if os.access(built, os.X_OK) else shutil.which("stagecraft")
