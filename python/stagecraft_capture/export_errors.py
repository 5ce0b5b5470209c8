"""What torch.export cannot follow, in words for the one whose model it is: module, line of Python, and what
to do."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .batch import SAMPLES
from .errors import OURS, TOOLS, TORCH, CaptureError, is_pythons, place_of, place_of_function
from .instead import INSTEAD
from .nodes import is_element, name_of
from .torch_private import FakeTensor

if TYPE_CHECKING:
    from torch import fx


MAPPED = (
    "torch.vmap and torch.func map or differentiate a function, which torch.export does not follow: write the"
    " dimension out (torch.einsum, torch.stack of calls), and derivatives as formulas"
)
TRANSFORMS = tuple(f"_functorch{os.sep}{name}.py" for name in ("vmap", "eager_transforms", "apis"))
HIGHER_ORDER = "_higher_order_ops"  # torch's folder of what takes functions
BY_MASKS = (
    "keep all sizes and numbers in tensors (a mask with torch.where instead of an index by it, tensor.mean()"
    " without .item())"
)
BY_TENSORS = "decide by sizes or settings, or compute both ways and choose with torch.where"


def branches_of(operator: object) -> str:
    return (
        f"torch.{operator} takes branches that depend on the batch's numbers, which runs do not; {BY_TENSORS}"
    )


def frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """Behind the call of torch.export, of the error that came first. Those amidst torch which torch caught
    are none of the model's: the one that has a line of the model's goes first."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    found: list[tuple[FrameType, int]] = []
    for each in reversed(chain):
        frames = list(traceback.walk_tb(each.__traceback__))
        begin = next((i for i, (at, _) in enumerate(frames) if at.f_code.co_filename.startswith(TORCH)), 0)
        found = found or frames[begin:]
        if any(is_users(frame.f_code.co_filename) for frame, _ in frames[begin:]):
            return frames[begin:]
    return found


def is_users(file: str) -> bool:
    return os.path.isfile(file) and not file.startswith((TORCH, OURS, TOOLS)) and not is_pythons(file)


def place_of_error(error: BaseException, module: torch.nn.Module) -> str:
    """As errors.place_of() has it, with the text of the line; or the module alone where all frames are
    torch's."""
    paths = (
        {}
        if module is None
        else {
            id(part): f"{path}.".removeprefix(getattr(module, "PREFIX", "")).rstrip(".")
            for path, part in module.named_modules()
        }
    )
    path, found = None, None
    for frame, line in frames_of(error):
        file, this = frame.f_code.co_filename, frame.f_locals.get("self")
        if id(this) in paths:
            path = paths[id(this)]
        if is_users(file):
            text = linecache.getline(file, line).strip()
            found = (
                f'{f"module {path!r}" if path else "the model itself"}, File "{file}", line {line}, in'
                f" {frame.f_code.co_name} ({text})"
            )
    return found or (f"module {path!r}" if path else "")


def place_of_backward(error: BaseException) -> str:
    """Of a torch.autograd.Function whose gradients autograd itself refuses, with no line of Python; or ""."""
    named = re.search(r"[Ff]unction (\w+)Backward returned", str(error))
    kinds = reversed(torch.autograd.Function.__subclasses__())
    found = next((kind for kind in kinds if named and kind.__name__ == named[1]), None)
    return place_of_function(found.backward) if found else ""


def with_place(error: BaseException, module: torch.nn.Module) -> BaseException:
    """A refusal that was raised amidst the user's Python."""
    place = place_of_error(error, module)
    return CaptureError(f"{place}: {error}") if "File " in place and "File " not in str(error) else error


def said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def fails_in_eager_mode(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> Exception | None:
    """What the module raises without torch.export, or None."""
    # so many may need more memory than there is
    if any(isinstance(t, FakeTensor) or len(t) > SAMPLES for t in inputs.values()):
        return None
    try:
        with torch.no_grad():
            module(**inputs)
    except Exception as error:
        return error
    return None


def line_here() -> str:
    """The innermost line of the user's that is being followed, with its text; or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).strip()
    return f'File "{file}", line {line}, in {frame.f_code.co_name} ({text})'


def explained(
    error: BaseException,
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    sized: Mapping[str, str] = MappingProxyType({}),
) -> CaptureError:
    """The CaptureError of what torch.export raised. `sized`: by the symbols of sizes that numbers of the
    batch decide, the lines that made them."""
    place = place_of_error(error, module)
    at = f"{place}: " if place else ""
    symbols = error.cond.free_symbols if isinstance(error, GuardOnDataDependentSymNode) else ()
    maker = next((sized[str(s)] for s in symbols if str(s) in sized), "")
    if maker and maker not in place:
        return CaptureError(
            f"{maker}: makes a size that depends on the batch's numbers, on which torch.export cannot"
            f" branch later ({place}); {BY_MASKS}"
        )
    # the latter as a key of a set or a dictionary, or where Python itself computes; no size is a symbol
    if isinstance(error, GuardOnDataDependentSymNode) or re.search(r"\bSym(Int|Float|Bool)\b", str(error)):
        return CaptureError(
            f"{at}torch.export cannot follow a branch or a number of Python that depends on the batch's"
            f" numbers, or on drawn ones; {BY_TENSORS}"
        )
    if (
        type(error).__name__ == "UncapturedHigherOrderOpError"
    ):  # by the numbers that Python made (python_numbers.py)
        files = [Path(frame.f_code.co_filename) for frame, _ in frames_of(error)]
        return CaptureError(
            f"{at}{branches_of(next((f.stem for f in files if f.parent.name == HIGHER_ORDER), 'cond'))}"
        )
    if any(frame.f_code.co_filename.endswith(TRANSFORMS) for frame, _ in frames_of(error)):
        return CaptureError(f"{at}{MAPPED}")
    if "constant's list" in str(error):
        return CaptureError(
            f"{at}a part of the forward computes where torch.export does not see it (a thread, NumPy, code in"
            " C++): compute it with operators of torch on tensors alone"
        )
    named = re.search(r"\baten\.(\w+)", str(error))
    if named and named[1] in INSTEAD:
        return CaptureError(f"{at}torch.export cannot follow {named[0]}: {INSTEAD[named[1]]}")
    of_itself = fails_in_eager_mode(module, inputs)
    if of_itself is not None:
        shapes = ", ".join(f"{name} of {list(t.shape)}" for name, t in inputs.items())
        return CaptureError(
            f"{at}the model fails in eager mode too, with {shapes}: {said(of_itself)}; call it with such"
            " samples in Python, and mend it there or give other sizes"
        )
    return CaptureError(
        f"{at}torch.export cannot follow the model: {said(error)}; write this place with operators of torch"
        " on tensors alone"
    )


def depends_on_numbers(node: fx.Node) -> bool:
    """Whether its value has a size, or is a Python number, that the batch's numbers decide. No other sizes
    are symbols."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def refuse_dependent(nodes: list[fx.Node]) -> None:
    for node in nodes:
        if depends_on_numbers(node):
            what = "a size" if isinstance(node.meta["val"], torch.Tensor) else "a Python number"
            maker = node.args[0] if is_element(node) else node
            raise CaptureError(
                f"{place_of(node)}: {maker.target} makes {what} that depends on the batch's numbers; "
                + (INSTEAD.get(name_of(maker)) or BY_MASKS)
            )
