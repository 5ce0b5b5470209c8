"""The report of a run, as `stagecraft report` makes it."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from stagecraft_planner.binary import alone, planner
from stagecraft_planner.errors import StagecraftError
from stagecraft_tools.refusal import Refused


@dataclass(frozen=True)
class Report:
    figures: dict[str, Any]  # of --json
    text: str
    html: str  # a file


class NoReport(Refused):
    """Why there is none."""


def command() -> str:
    """The program: the planner's, or one on the PATH. All have `report`."""
    try:
        return planner()
    except StagecraftError as error:
        found = shutil.which("stagecraft")
        if found is None:
            raise NoReport(str(error)) from error
        return found


def answer(*arguments: str) -> str:
    done = subprocess.run(
        [command(), "report", *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=alone(),
    )
    if done.returncode:
        raise NoReport(" ".join(done.stderr.removeprefix("stagecraft: ").split()))
    return done.stdout


def make_report(run_dir: str, folder: str) -> Report:
    """`folder`: where the page goes. Throws NoReport."""
    page = os.path.join(folder, "report.html")
    text = answer(run_dir, "--html", page)
    return Report(json.loads(answer(run_dir, "--json")), text, page)
