"""What a capture refuses, in words for the one whose model it is."""

import sys


class CaptureError(Exception):
    """A model, or a part of it, that cannot be captured: what, where and what to do."""


# A plain `pip install torchvision` may bring another torch along.
PINNED = {"torch": "torch==2.11.0", "torchvision": "torchvision==0.26.0"}


def missing(module):
    """Which module is missing, and the command that installs it where this Python looks."""
    return f"{module} is missing: {sys.executable} -m pip install {PINNED.get(module, module)}"


def place_of(node):
    """Where a node of an exported graph comes from: its module and the line of Python that made it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    where = next((line.strip() for line in reversed(lines) if line.strip().startswith("File")), "")
    return (f"module {path!r}" if path else "the model itself") + (f", {where}" if where else "")
