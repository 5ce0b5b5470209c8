"""Where to cut: the layers that --layers asks for.

`auto`: between modules, wherever one tensor alone goes on (of a module that is called several times one of
each call), beside single numbers; and between the blocks of a ModuleList or ModuleDict, whatever goes on
there. `narrow:N`: N pieces of about equal multiply-adds, cut where the tensors that go on are smallest.
Patterns of module paths (`model.layers.*`): each module that fits is a layer, and so is what lies between
them.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stagecraft_planner.nearest import did_you_mean

from .errors import CaptureError
from .nodes import name_of

if TYPE_CHECKING:
    from torch import fx

    from .aliases import Candidates


NEAR = 0.35  # of a piece: how far from its place a cut may lie, to be narrower


def checked(text: str, module: torch.nn.Module) -> str:
    """The choice, as parts() takes it. Refuses what fits no module."""
    if text == "auto":
        return text
    kind, colon, number = text.partition(":")
    if kind == "narrow":
        if not colon or not number.isdecimal() or int(number) < 1:
            raise CaptureError(f"--layers {text}: expected a number of layers, as in narrow:8")
        return text
    paths = [path for path, _ in module.named_modules() if path]
    prefix = getattr(module, "PREFIX", "")
    for pattern in text.split(","):
        if not any(fits(path, pattern, prefix) for path in paths):
            meant = did_you_mean(pattern.partition(":")[0], ("auto", "narrow"))
            if meant or ":" in pattern:
                raise CaptureError(
                    f"--layers {pattern}: is neither auto, narrow:N nor a module's path: give one{meant}"
                )
            near = difflib.get_close_matches(
                pattern.replace("*", "0"), [path.removeprefix(prefix) for path in paths], 3, 0.3
            )
            raise CaptureError(
                f"--layers {pattern}: no module has such a path; near ones are"
                f" {', '.join(near) or ', '.join(p.removeprefix(prefix) for p in paths[:3])}"
            )
    return text


def fits(path: str, pattern: str, prefix: str) -> bool:
    """`*` stands for one part of a path, not for several."""
    names, parts = path.removeprefix(prefix).split("."), pattern.split(".")
    return len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))


def blocks_of(module: torch.nn.Module) -> frozenset[str]:
    """Paths of the children of ModuleLists and ModuleDicts that lie in no other such child."""
    blocks: set[str] = set()
    for path, part in module.named_modules():
        inside = any(path == block or path.startswith(f"{block}.") for block in blocks)
        if isinstance(part, (torch.nn.ModuleList, torch.nn.ModuleDict)) and not inside:
            blocks |= {f"{path}.{name}" for name, _ in part.named_children()}
    return frozenset(blocks)


def wide(live: list[fx.Node]) -> int:
    """How many go on, but for single numbers (the sum of experts' losses)."""
    return sum(node.meta["val"].dim() > 0 for node in live)


def chosen(
    candidates: Candidates,
    order: list[fx.Node],
    choice: str,
    paths_of: Callable[[fx.Node], list[str]],
    prefix: str,
    blocks: frozenset[str] = frozenset(),
    width: Sequence[int] = (),
) -> Candidates:
    """Of `candidates`, (index of the last node before the cut, the values that go on), those to cut at.
    `paths_of`: a node's modules, outermost first. `blocks`: of blocks_of(); `width`: of calls_at()."""
    if choice == "auto":

        def block(i: int) -> str | None:
            return next((path for path in paths_of(order[i]) if path in blocks), None)

        def between(i: int) -> bool:
            return paths_of(order[i])[-1:] != paths_of(order[i + 1])[-1:]

        return [
            (i, live)
            for i, live in candidates
            if (between(i) if wide(live) <= (width[i] if width else 1) else block(i) != block(i + 1))
        ]
    if choice.startswith("narrow:"):
        return narrow(candidates, order, int(choice.partition(":")[2]))
    return by_patterns(candidates, order, choice.split(","), paths_of, prefix)


def by_patterns(
    candidates: Candidates,
    order: list[fx.Node],
    patterns: list[str],
    paths_of: Callable[[fx.Node], list[str]],
    prefix: str,
) -> Candidates:
    owners = [
        next(
            (path for path in paths_of(node) if any(fits(path, pattern, prefix) for pattern in patterns)),
            None,
        )
        for node in order
    ]
    last = {owner: i for i, owner in enumerate(owners)}
    # what a module leaves to its caller between two of its own steps is its own
    for i in range(1, len(owners)):
        if owners[i] is None and owners[i - 1] is not None and last[owners[i - 1]] > i:
            owners[i] = owners[i - 1]
    ends = [i for i in range(len(owners) - 1) if owners[i] != owners[i + 1]]
    cuts, at = [], dict(candidates)
    for n, end in enumerate(ends):
        begin = ends[n - 1] + 1 if n else 0
        stop = ends[n + 1] if n + 1 < len(ends) else len(owners) - 1
        # Steps of no layer may go with the layer before or behind them.
        places = (
            range(end, stop)
            if owners[end] is not None and owners[end + 1] is None
            else range(end, begin - 1, -1)
            if owners[end] is None
            else [end]
        )
        found = [k for k in places if k in at]
        place = next((k for k in found if len(at[k]) == 1), next(iter(found), None))
        if place is not None:
            cuts.append((place, at[place]))
        elif owners[end] is not None and any(owner not in (None, owners[end]) for owner in owners[end + 1 :]):
            path = (owners[end] or "").removeprefix(prefix)
            raise CaptureError(
                f"--layers: module {path!r} cannot be a layer of its own, what goes on behind it are no"
                " tensors, or no gradient comes back to it (frozen weights, torch.no_grad(), .detach()), or"
                " a buffer that the forward changes is used in it and behind it, perhaps in evaluation"
                " alone; choose the module around it"
            )
    return [(i, at[i]) for i in sorted({i for i, _ in cuts})]


def narrow(candidates: Candidates, order: list[fx.Node], count: int) -> Candidates:
    if len(candidates) < count - 1:
        raise CaptureError(
            f"--layers narrow:{count}: the model can be cut into {len(candidates) + 1} layers at most:"
            " give as many or fewer"
        )
    done, sums = 0.0, []
    for node in order:
        done += multiply_adds(node)
        sums.append(done)
    cuts, first = [], 0
    for piece in range(1, count):
        left = count - 1 - piece  # cuts that must still find a place
        open_ = candidates[first : len(candidates) - left]
        goal, slack = done * piece / count, done / count * NEAR
        near = [c for c in open_ if abs(sums[c[0]] - goal) <= slack] or [
            min(open_, key=lambda c: abs(sums[c[0]] - goal))
        ]
        best = min(near, key=lambda c: (sum(n.meta["val"].nbytes for n in c[1]), abs(sums[c[0]] - goal)))
        cuts.append(best)
        first = candidates.index(best) + 1
    return cuts


def multiply_adds(node: fx.Node) -> int:
    """Of a composite operator, forward."""
    op, args = name_of(node), node.args
    made = node.meta.get("val")

    def size(n: fx.Node) -> Any:
        return n.meta["val"].shape

    if op in ("linear", "matmul", "mm", "bmm"):
        return made.numel() * size(args[0])[-1]
    if op == "_grouped_mm":
        return size(args[0]).numel() * size(args[1])[-1]
    if op in ("addmm", "baddbmm"):
        return made.numel() * size(args[1])[-1]
    if op.startswith("conv") and hasattr(made, "numel") and len(args) > 1:
        return made.numel() * size(args[1])[1:].numel()
    if op == "scaled_dot_product_attention":
        return 2 * size(args[0]).numel() * size(args[1])[-2]
    return 0
