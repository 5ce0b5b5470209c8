"""The export of a run, by the program that trained it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stagecraft_tools.refusal import Refused


def stagecraft_program() -> list[str]:
    """STAGECRAFT names it; else the one on the PATH; else this Python's package."""
    named = os.environ.get("STAGECRAFT") or shutil.which("stagecraft")
    return [named] if named else [sys.executable, "-m", "stagecraft"]


def export(run: Path, folder: Path) -> None:
    """Writes the newest checkpoint of `run` for Hugging Face. Refuses in the program's words."""
    command = [*stagecraft_program(), "export", str(run), "-o", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}: set STAGECRAFT to the program stagecraft") from error
    if done.returncode != 0:
        said = (
            done.stderr.strip().removeprefix("stagecraft: ")
            or f"{command[0]} export ended with {done.returncode}"
        )
        raise Refused(said)
