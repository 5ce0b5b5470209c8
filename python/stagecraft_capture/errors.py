"""What a capture refuses, in words for the one whose model it is."""

import importlib.util
import os
import sys

# Folders whose lines of Python are not the user's. This file is read before it is known that torch is there.
_TORCH = importlib.util.find_spec("torch")
TORCH = os.path.dirname(_TORCH.origin) + os.sep if _TORCH else "/no torch/"
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class CaptureError(Exception):
    """A model, or a part of it, that cannot be captured: what, where and what to do."""


# A plain `pip install torchvision` may bring another torch along.
PINNED = {"torch": "torch==2.11.0", "torchvision": "torchvision==0.26.0"}


def missing(module):
    """Which module is missing, and the command that installs it where this Python looks."""
    return f"{module} is missing: {sys.executable} -m pip install {PINNED.get(module, module)}"


def place_of(node):
    """Where a node of an exported graph comes from: its module and the line of Python that made it, outside of torch where it is."""
    stack = node.meta.get("nn_module_stack") or {}
    path = f"{list(stack.values())[-1][0]}.".removeprefix("wrapped.").rstrip(".") if stack else ""  # ours around the user's
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith("File")]
    not_torch = [line for line in lines if TORCH not in line and OURS not in line]
    where = (not_torch or lines or [""])[-1]
    return (f"module {path!r}" if path else "the model itself") + (f", {where}" if where else "")
