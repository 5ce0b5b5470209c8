"""The export of a run, by the program that trained it."""

import subprocess
import sys
from pathlib import Path

from stagecraft_planner.binary import alone
from stagecraft_tools.engine_program import engine
from stagecraft_tools.refusal import Refused


def export(run: Path, folder: Path, model: str | None) -> None:
    """Writes the newest checkpoint of `run` for Hugging Face. `model`: where the captured model lies now.
    Refuses in the program's words."""
    program = engine()
    # Without one, this Python's package has the engine.
    command = [program] if program else [sys.executable, "-m", "stagecraft"]
    command += ["export", str(run), "-o", str(folder)]
    command += ["--model", model] if model else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone())
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}: set STAGECRAFT to the program stagecraft") from error
    if done.returncode != 0:
        said = (
            done.stderr.strip().removeprefix("stagecraft: ")
            or f"{command[0]} export ended with {done.returncode}"
        )
        raise Refused(said)
