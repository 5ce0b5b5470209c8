"""The export of a run, by the program that trained it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stagecraft_tools.refusal import Refused


def stagecraft_program() -> list[str]:
    """STAGECRAFT names it; else the checkout's own; else the one on the PATH; else this Python's package."""
    built = Path(__file__).resolve().parents[2] / "build" / "stagecraft"
    own = str(built) if os.access(built, os.X_OK) else None
    named = os.environ.get("STAGECRAFT") or own or shutil.which("stagecraft")
    return [named] if named else [sys.executable, "-m", "stagecraft"]


def export(run: Path, folder: Path, model: str | None) -> None:
    """Writes the newest checkpoint of `run` for Hugging Face. `model`: where the captured model lies now.
    Refuses in the program's words."""
    command = [*stagecraft_program(), "export", str(run), "-o", str(folder)]
    command += ["--model", model] if model else []
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
