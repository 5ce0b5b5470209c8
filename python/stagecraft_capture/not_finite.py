"""Branches of the user's Python that mend numbers which are not finite, as detectors and encoders in float16
have them: `if not torch.isfinite(x).all(): x = torch.clamp(x, min=-most, max=most)`. No graph branches on
numbers, so both ways are computed, and torch.where takes the one that eager mode takes. What such a body
computes of finite numbers is finite, and so are its gradients, which are zeros where it is not taken."""

from __future__ import annotations

import ast
import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import torch

from .refusing_lines import asking_statement

LOOKS = frozenset(("isfinite", "isinf", "isnan", "isposinf", "isneginf"))
OF_LOOKS = frozenset(
    "all any logical_not logical_or __or__ __ror__ __invert__ bitwise_not bitwise_or".split()
)
# a second call changes nothing more, and none makes what is not finite of what is
MENDS = frozenset(("clamp", "clip", "clamp_min", "clamp_max", "nan_to_num", "finfo"))


def both_ways(asked: torch.Tensor) -> bool | None:
    """The answer to the line that asks for the truth of `asked`, whose body was computed and chosen from
    already; None where the line is no such branch."""
    asking = asking_statement()
    if asking is None:
        return None
    frame, _, statement = asking
    if not isinstance(statement, ast.If) or not is_mending(statement):
        return None
    skips = answer_that_skips(statement.test)
    if skips is None or not looks(asked):
        return None
    taken = asked.logical_not() if skips else asked
    held = frame.f_locals
    found = dict(held)
    body = ast.Module(statement.body, type_ignores=[])
    exec(compile(body, frame.f_code.co_filename, "exec"), frame.f_globals, found)
    names = {each.targets[0].id for each in statement.body}  # type: ignore[attr-defined]
    chosen = {name: chosen_of(taken, found[name], held.get(name)) for name in names}
    if not all(is_kept(found[name], held.get(name), chosen[name]) for name in names):
        return None
    held.update({name: value for name, value in chosen.items() if value is not None})
    if sys.version_info < (3, 13):  # later ones write through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return skips


def note_looks(name: str, given: Any, made: Any) -> None:
    """`made` by the function `name` tells of numbers that are not finite, if that does or `given` did."""
    tells = name in LOOKS or (name in OF_LOOKS and any(map(looks, given)))
    if tells and isinstance(made, torch.Tensor) and made.dtype == torch.bool:
        made._looks = made._version  # type: ignore[attr-defined]


def looks(tensor: Any) -> bool:
    return getattr(tensor, "_looks", None) == getattr(tensor, "_version", -1)


def chosen_of(taken: torch.Tensor, new: Any, old: Any) -> torch.Tensor | None:
    both = isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor)
    alike = both and new.shape == old.shape and new.dtype == old.dtype
    return torch.where(taken, new, old) if alike else None


def is_kept(new: Any, old: Any, chosen: torch.Tensor | None) -> bool:
    """Whether the frame has all that a line behind the branch may read: a bound of clamp() is the body's
    own."""
    return chosen is not None or (isinstance(new, (int, float)) and (old is None or old == new))


def is_mending(statement: ast.If) -> bool:
    """Whether its body sets names of the function to what MENDS make."""
    if statement.orelse:
        return False
    for each in statement.body:
        if not (
            isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
        ):
            return False
        if any(called_of(call) not in MENDS for call in ast.walk(each.value) if isinstance(call, ast.Call)):
            return False
    return True


def called_of(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def answer_that_skips(test: ast.expr) -> bool | None:
    """What a condition's looks for such numbers are answered for the body to be passed over; None where one
    answer does not do. A frame does not tell which part of its condition it asks."""
    by_name = not any(map(is_look, ast.walk(test)))
    wanted = set(parts_that_look(test, by_name, False, True))
    return wanted.pop() if len(wanted) == 1 else None


def is_look(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_of(node) in LOOKS


def parts_that_look(test: ast.expr, by_name: bool, skips: bool, alone: bool) -> Iterator[bool | None]:
    """`by_name`: a name holds what was seen. `alone`: whether the body is for this part alone; of `a and b`
    it is for no `a`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from parts_that_look(test.operand, by_name, not skips, alone)
    elif isinstance(test, ast.BoolOp):
        together = isinstance(test.op, ast.And) != skips
        for part in test.values:
            is_last = part is test.values[-1]
            yield from parts_that_look(part, by_name, skips, alone and (is_last or not together))
    elif (by_name and isinstance(test, ast.Name)) or any(map(is_look, ast.walk(test))):
        yield skips if alone else None
