"""The torch that a wheel is made for: STAGECRAFT_LIBTORCH, or that of the Python which pip installs for.
pyproject.toml asks for the wheel's dependencies, CMakeLists.txt for the folder."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VERSIONS = runpy.run_path(
    str(Path(__file__).resolve().parents[1] / "stagecraft_tools" / "torch_versions.py")
)["VERSIONS"]
KNOWN = " or ".join(version.minor for version in VERSIONS)
FIND = "import importlib.util as u; found = u.find_spec('torch'); print(found.origin if found else '')"


def folder() -> Path:
    """Ends the process with one line where there is none."""
    given = os.environ.get("STAGECRAFT_LIBTORCH")
    if given:
        return Path(given)
    # A build of pip's does not see what is installed: PYTHONPATH has a sitecustomize that hides it.
    for options in ([], ["-E"]):
        found = subprocess.run(
            [sys.executable, *options, "-c", FIND], capture_output=True, text=True, check=False
        ).stdout.strip()
        if found:
            return Path(found).parent
    sys.exit(
        f"stagecraft: no torch in {sys.prefix}, expected {KNOWN}: pip install torch=={VERSIONS[0].torch}"
        " first, or set STAGECRAFT_LIBTORCH to its folder"
    )


def of_this_build() -> Any:
    """The one of VERSIONS that has the minor of the torch in folder(); ends the process where none has."""
    where = folder()
    try:
        text = (where / "version.py").read_text(encoding="utf-8")
    except OSError:
        sys.exit(f"stagecraft: {where}: is no torch of Python's: there is no version.py")
    stated = re.search(r"""^__version__\s*=\s*['"]([^'"]+)""", text, re.MULTILINE)
    version = stated[1] if stated else "of no version"
    for known in VERSIONS:
        if version.startswith(known.minor + "."):
            return known
    return sys.exit(
        f"stagecraft: {where}: is torch {version}, expected {KNOWN}: pip install torch=={VERSIONS[0].torch}"
    )


def dynamic_metadata(_settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
    """The engine is linked with one minor of torch, and no other can load it."""
    version = of_this_build()
    torchvision = ".".join(version.torchvision.split(".")[:2])
    return {
        "dependencies": [f"torch=={version.minor}.*", "numpy", "safetensors"],
        "optional-dependencies": {
            "models": ["transformers", "tokenizers", "pillow", f"torchvision=={torchvision}.*"],
            # What stagecraft-follow sends runs to, each by its own client.
            "tensorboard": ["tensorboard"],
            "wandb": ["wandb"],
            "trackio": ["trackio"],
            "mlflow": ["mlflow-skinny"],
            "prometheus": ["prometheus-client"],
            "otlp": ["opentelemetry-exporter-otlp-proto-http"],
        },
    }


if __name__ == "__main__":
    of_this_build()
    print(folder(), end="")
