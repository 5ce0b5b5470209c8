"""`_engine`, the module in C++. Importing this file fails with one line where it cannot be loaded here."""

import hashlib
from pathlib import Path

import torch  # whose libraries the module needs

from stagecraft_planner import __version__
from stagecraft_tools.torch_versions import minor

from .errors import InputError

try:
    from ._built import TORCH

    if minor(torch.__version__) != TORCH:
        raise InputError(
            f"torch {torch.__version__} is installed, and this stagecraft was built for {TORCH}: install"
            f" torch {TORCH}, or build stagecraft again beside this one"
        )
    from . import _engine
except ImportError as error:
    if not any(Path(__file__).parent.glob("_engine.*.so")):
        raise InputError(
            f"the engine for Python is not built in {Path(__file__).parent}: in a checkout `cmake --build"
            " --preset release --target stagecraft_python` builds it, in about a minute"
        ) from error
    raise InputError(f"the engine cannot be loaded beside torch {torch.__version__}: {error}") from error


def _interface() -> str:
    """Of the module that these files go with, as its own (stagecraft_interface in python/CMakeLists.txt)."""
    described = Path(__file__).with_name("_engine.pyi").read_bytes()
    return hashlib.sha256(hashlib.sha256(described).hexdigest().encode()).hexdigest()[:12]


_met = getattr(_engine, "VERSION", "before 0.1.0"), getattr(_engine, "INTERFACE", "none")
if _met[1] != _interface():
    raise InputError(
        f"{_engine.__file__} is of another build of stagecraft than the Python files beside it: version"
        f" {_met[0]} with interface {_met[1]}, and {__version__} with {_interface()}: install the wheel again"
        " (pip install --force-reinstall stagecraft), or build stagecraft_python again"
    )

__all__ = ["_engine"]
