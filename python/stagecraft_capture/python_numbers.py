"""Numbers that Python reads of tensors which it made itself, of its own numbers: axes by
torch.arange(2, x.dim()).tolist(), sizes of windows by torch.tensor(shapes).prod(1), rates by torch.linspace.
No sample decides them, so a trace may know them, and torch.export does not. Nor does a sample decide how many
numbers such a mask picks, x[:, ~torch.eye(8).bool()]: it is a list of places. Nor does a draw decide whether
a layer is dropped whose probability is 0, torch.rand(1) > 0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .errors import CaptureError
from .export_errors import line_here
from .instead import INSTEAD
from .not_finite import both_ways, note_looks
from .refusing_lines import answer_here
from .torch_private import disable_current_modes, pytree

MAKERS = frozenset("arange linspace logspace tensor as_tensor scalar_tensor zeros ones full eye".split())
OF_LISTS = frozenset(("tensor", "as_tensor"))
READERS = frozenset("item tolist __int__ __float__ __bool__ __index__ __complex__".split())
# whose arguments behind the first are numbers of Python, or lists of these
SIZED = frozenset("split split_with_sizes view reshape expand repeat tile narrow chunk unflatten".split())
SIZED |= frozenset("new_zeros new_ones new_full".split())
UNKNOWN = frozenset("empty_like new_empty new_empty_strided".split())  # memory as it was
OTHER_MEMORY = frozenset("__set__ set_".split())  # without a word of the tensor's version
ABOVE = {"gt": True, "ge": True, "lt": False, "le": False}
PLAIN = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
REFUSED = frozenset(("_pack_padded_sequence",))  # torch.export fails behind it, with other words
MOST = 2**16  # numbers of a tensor

Maker = Callable[[], Any]


class PythonNumbers(torch.overrides.TorchFunctionMode):
    """While a module is followed: remembers how each tensor is made of Python's numbers, and computes it
    where Python asks. `unchecked`: places of lines that would refuse some numbers of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.unchecked: dict[str, None] = {}
        self.sized: dict[str, str] = {}  # of export_errors.explained()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in REFUSED:
            raise CaptureError(INSTEAD[name])
        if name in READERS and len(args) == 1 and not kwargs and (known := maker_of(args[0])):
            found = outside_of_the_trace(lambda: function(known()))
            if found is not None:
                return found
        elif asks_for_truth(name, args):
            if refusing := answer_here():
                self.unchecked[refusing[1]] = None
                return refusing[0]
            if (answer := both_ways(args[0])) is not None:
                return answer
        if name in SIZED or name in MAKERS - OF_LISTS:
            args, kwargs = (*args[: name in SIZED], *as_numbers(args[name in SIZED :])), as_numbers(kwargs)
        elif name == "__getitem__" and len(args) == 2:
            args = (args[0], as_places(args[1]))
        leaves, given = [*args, *kwargs.values()], (args, kwargs)
        if any(
            isinstance(leaf, (tuple, list, dict)) for leaf in leaves
        ):  # else there is nothing to look into
            given = pytree.tree_map(lambda leaf: leaf, given)  # in lists of their own
            leaves = pytree.tree_leaves(given)
        makers = None if name in UNKNOWN else makers_of(leaves, name)
        answer = answer_of(name, args)
        made = function(*args, **kwargs)
        note_looks(name, args, made)
        self.note_sizes(made)
        if name in ("rand", "rand_like") and made.dtype in (torch.float32, torch.float64):
            made._from_0_to_1 = made._version
        if answer is not None:
            made._of_python = (made._version, partial(torch.full, made.shape, answer))
        elif name in OTHER_MEMORY:
            if maker_of(args[0]):
                del args[0]._of_python
        elif makers is not None:
            written = name == "__setitem__"
            remember(args[0] if written else made, put if written else function, given, makers)
        return made

    def note_sizes(self, made: Any) -> None:
        for part in made if isinstance(made, (tuple, list)) else (made,):
            for size in part.shape if isinstance(part, torch.Tensor) else ():
                for symbol in size.node.expr.free_symbols if isinstance(size, torch.SymInt) else ():
                    self.sized.setdefault(str(symbol), line_here())


def asks_for_truth(name: str, given: tuple[Any, ...]) -> bool:
    return name == "__bool__" or (name == "item" and given[0].dtype == torch.bool)


def answer_of(name: str, given: tuple[Any, ...]) -> bool | None:
    """Of a comparison of numbers that torch.rand drew with a probability that none of them is beyond, as
    those of layers that are never dropped are. That one is 0 itself, once among 16777216, is left out."""
    above = ABOVE.get(name.strip("_"))
    if above is None or len(given) != 2 or not isinstance(given[1], (int, float)):
        return None
    drawn, number = given
    if getattr(drawn, "_from_0_to_1", None) != getattr(drawn, "_version", -1):
        return None
    return above if number <= 0 else not above if number >= 1 else None


def put(tensor: torch.Tensor, at: Any, value: Any) -> torch.Tensor:
    tensor[at] = value
    return tensor


def is_plain(leaf: Any) -> bool:
    if isinstance(leaf, slice):
        return all(isinstance(part, (int, type(None))) for part in (leaf.start, leaf.stop, leaf.step))
    return isinstance(leaf, (*PLAIN, range)) or leaf is ...


def makers_of(leaves: list[Any], name: str) -> dict[int, Maker] | None:
    """By id, of all tensors of the arguments `leaves`; None where something else than Python decides one."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    makers = {id(t): maker for t in tensors if (maker := maker_of(t)) is not None}
    if not all(id(leaf) in makers if isinstance(leaf, torch.Tensor) else is_plain(leaf) for leaf in leaves):
        return None
    return makers if tensors or name in MAKERS else None


def remember(made: Any, function: Any, given: Any, makers: dict[int, Maker]) -> None:
    """Also of what was written to, whose maker makes it anew and writes."""
    parts = [made] if isinstance(made, torch.Tensor) else made if isinstance(made, (tuple, list)) else []
    for index, part in enumerate(parts):
        if not isinstance(part, torch.Tensor) or part.requires_grad or part.is_inference():
            continue
        if part.numel() > MOST or maker_of(part) is not None:
            continue
        maker = partial(again, function, given, makers, None if part is made else index)
        part._of_python = (part._version, maker)  # type: ignore[attr-defined]


def maker_of(tensor: Any) -> Maker | None:
    """Unless it, or what it shares memory with, was written to since."""
    remembered = getattr(tensor, "_of_python", None)
    return remembered[1] if remembered is not None and remembered[0] == tensor._version else None


def again(function: Any, given: Any, makers: dict[int, Maker], index: int | None) -> Any:
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: makers[id(t)](), given)
    made = function(*args, **kwargs)
    return made if index is None else made[index]


def as_numbers(given: Any) -> Any:
    def number(tensor: torch.Tensor) -> Any:
        known = maker_of(tensor) if tensor.dim() == 0 and not tensor.is_floating_point() else None
        found = known and outside_of_the_trace(lambda: known().item())
        return tensor if found is None else found

    return pytree.tree_map_only(torch.Tensor, number, given)


def as_places(index: Any) -> Any:
    """Of an index, or several: masks that are known as the places that they pick, in their order."""
    found: list[Any] = []
    for each in index if isinstance(index, tuple) else (index,):
        is_mask = isinstance(each, torch.Tensor) and each.dtype == torch.bool and each.dim() > 0
        known = maker_of(each) if is_mask else None
        places = known and outside_of_the_trace(partial(places_of, known))
        found += [each] if places is None else [torch.tensor(of, dtype=torch.long) for of in places]
    return tuple(found) if isinstance(index, tuple) or len(found) > 1 else found[0]


def places_of(mask: Maker) -> list[list[int]]:
    """By dimension."""
    found: list[list[int]] = mask().nonzero().t().tolist()
    return found


def outside_of_the_trace(compute: Callable[[], Any]) -> Any:
    """None where random numbers decide it."""
    with disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        found = compute()
        return found if torch.equal(torch.get_rng_state(), before) else None
