"""Runs the notebooks of examples/notebooks as they stand, for scripts/docs.sh and their test.

    run_notebooks.py FOLDER

writes them with their outputs. STAGECRAFT_BUILD: the build folder, where it is not the checkout's build/.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat

SOURCE = Path(__file__).resolve().parents[2]
NOTEBOOKS = SOURCE / "examples/notebooks"


def executed(name: str, build: Path) -> Any:
    """The notebook with its outputs. A cell that fails raises with its traceback."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    packages = build / "python"
    environment = {
        **os.environ,
        "PYTHONPATH": str(packages if packages.is_dir() else SOURCE / "python"),
        "STAGECRAFT_PLANNER": str(build / "planner/stagecraft"),
        "OMP_NUM_THREADS": "1",
    }
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        extra_arguments=["--log-level=ERROR"],
    )
    client.execute(env=environment)
    return notebook


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    build = Path(os.environ.get("STAGECRAFT_BUILD", SOURCE / "build")).absolute()
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(executed(notebook.name, build), folder / notebook.name)


if __name__ == "__main__":
    main()
