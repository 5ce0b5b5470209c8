"""What a capture refuses, in words for the one whose model it is."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from stagecraft_tools.refusal import Refused
from stagecraft_tools.torch_versions import VERSIONS, installed, version_like

if TYPE_CHECKING:
    from torch import fx


# Folders whose lines of Python are not the user's. This file is read before it is known that torch is there.
_TORCH = importlib.util.find_spec("torch")
TORCH = os.path.dirname(_TORCH.origin) + os.sep if _TORCH and _TORCH.origin else "/no torch/"
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
TOOLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "stagecraft_tools") + os.sep
PYTHON = os.path.dirname(os.__file__) + os.sep


def is_pythons(file: str) -> bool:
    """Of Python itself, and none of the packages that may lie below it."""
    return file.startswith(PYTHON) and not file.startswith(f"{PYTHON}site-packages{os.sep}")


class CaptureError(Refused):
    """A model, or a part of it, that cannot be captured: what, where and what to do."""


class NotEqualError(CaptureError):
    """Layers that were captured, and do not equal eager."""

    code = 3


def missing(module: str) -> str:
    """Which module is missing, and the command that installs it where this Python looks. A plain `pip install
    torchvision` may bring another torch along."""
    fits = version_like(installed()) or VERSIONS[0]
    pinned = {"torch": f"torch=={fits.torch}", "torchvision": f"torchvision=={fits.torchvision}"}
    return f"{module} is missing: {sys.executable} -m pip install {pinned.get(module, module)}"


def require_known_torch() -> None:
    """Refuses a torch of a minor that nobody tried: what torch.export is changes with each."""
    version = installed()
    if version and not version_like(version):
        known = " or ".join(v.minor for v in VERSIONS)
        raise CaptureError(
            f"this Python has torch {version}, expected {known}: {sys.executable} -m pip install"
            f" torch=={VERSIONS[0].torch}"
        )


def place_in(error: BaseException) -> str:
    """The innermost line of the user's Python that an exception came by, with its text, or ""."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if (
            os.path.isfile(file)
            and not file.startswith((TORCH, OURS, TOOLS, PYTHON))
            and frame.f_globals.get("__name__") != "__main__"
        ):
            found = (
                f'File "{file}", line {line}, in {frame.f_code.co_name}'
                f" ({linecache.getline(file, line).strip()})"
            )
    return found


def place_of_function(function: Any) -> str:
    """Where the user wrote it, or what it calls; or ""."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = getattr(type(function), "forward", None) or vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None)
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}' if code else ""


def place_of(node: fx.Node) -> str:
    """Where a node of an exported graph comes from: its module and the line of Python that made it, outside
    of torch where it is."""
    # the latter in a backward
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    # ours around the user's
    path = f"{list(stack.values())[-1][0]}.".removeprefix("wrapped.").rstrip(".") if stack else ""
    lines = [
        line.strip()
        for line in (node.meta.get("stack_trace") or "").splitlines()
        if line.strip().startswith("File")
    ]
    not_torch = [line for line in lines if TORCH not in line and OURS not in line]
    where = (not_torch or lines or [""])[-1]
    return (f"module {path!r}" if path else "the model itself") + (f", {where}" if where else "")
