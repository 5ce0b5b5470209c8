"""What a capture refuses, in words for the one whose model it is."""


class CaptureError(Exception):
    """A model, or a part of it, that cannot be captured: what, where and what to do."""


def place_of(node):
    """Where a node of an exported graph comes from: its module and the line of Python that made it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    where = next((line.strip() for line in reversed(lines) if line.strip().startswith("File")), "")
    return (f"module {path!r}" if path else "the model itself") + (f", {where}" if where else "")
