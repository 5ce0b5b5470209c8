"""What a forward changes beside its output. Registered buffers, and frozen parameters, are followed into the
graph (check.py compares them). Anything else would stay as it was at the capture: it is refused, unless no
later forward can read it.
"""

from __future__ import annotations

import contextlib
import linecache
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from .changed_lines import line_that_changes
from .errors import CaptureError
from .export_errors import place_of_error, said
from .hooks import hooks_noted, refuse_backward_hooks
from .memory import refuse_shared_parameters
from .reach import Snapshot, Stated, is_fake, is_users
from .torch_private import TorchDispatchMode, pytree, reset_dynamo

if TYPE_CHECKING:
    from .aliases import Json
    from .batch import Batch
    from .reach import Leaf


class Lines(TorchDispatchMode):
    """Where tensors are written to, and attributes of modules set. `start`: a Snapshot, which learns the
    numbers of parameters that are about to be written."""

    def __init__(self, module: torch.nn.Module, start: Snapshot) -> None:
        super().__init__()
        self.start = start
        self.parameters: list[Any] = []
        prefix = getattr(module, "PREFIX", "")
        self.paths = {
            id(part): f"{path}.".removeprefix(prefix).rstrip(".") for path, part in module.named_modules()
        }
        self.written: dict[int, str] = {}
        self.set: dict[tuple[int, str], str] = {}
        self.hooks: list[Any] = []

    def place(self) -> str:
        """The innermost line that is the user's."""
        frame: FrameType | None = sys._getframe(1)
        own, line = None, ""
        while frame is not None:
            file = frame.f_code.co_filename
            if not line and is_users(file):
                text = linecache.getline(file, frame.f_lineno).strip()
                line = f'File "{file}", line {frame.f_lineno}, in {frame.f_code.co_name}' + (
                    f" ({text})" if text else ""
                )
            own = self.paths.get(id(frame.f_locals.get("self"))) if own is None else own
            if line and own is not None:
                break
            frame = frame.f_back
        return line

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Json | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for i, argument in enumerate(function._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[i] if i < len(args) else kwargs.get(argument.name)
                for tensor in given if isinstance(given, (list, tuple)) else [given]:
                    memory = tensor.untyped_storage().data_ptr() if isinstance(tensor, torch.Tensor) else None
                    if memory is not None and memory not in self.written:
                        self.parameters += self.start.about_to_write(memory)
                        self.written[memory] = self.place()
        return function(*args, **kwargs)

    @contextlib.contextmanager
    def attributes(self) -> Iterator[None]:
        plain = torch.nn.Module.__setattr__

        def noting(part: Any, name: str, value: Any) -> None:
            self.set.setdefault((id(part), name), self.place())
            plain(part, name, value)

        torch.nn.Module.__setattr__ = noting
        try:
            with hooks_noted(lambda what: self.hooks.append((what, self.place()))):
                yield
        finally:
            torch.nn.Module.__setattr__ = plain

    def of(self, leaf: Leaf) -> str:
        """The line that changed it."""
        line = next(
            (self.set[id(part), name] for part, name in reversed(leaf.of) if (id(part), name) in self.set), ""
        )
        if not line and leaf.is_tensor() and leaf.alias is not None:
            line = self.written.get(leaf.alias.untyped_storage().data_ptr(), "")
        return line


@contextlib.contextmanager
def first_accesses(changed: Iterable[tuple[Any, str]]) -> Iterator[dict[tuple[int, str], str]]:
    """(id of object, attribute) -> "get" or "set", whichever comes first. `changed`: (object, attribute)
    pairs."""
    found: dict[tuple[int, str], str] = {}
    classes = {id(part): (part, type(part)) for part, _ in changed}
    watched = {(id(part), name) for part, name in changed}

    def note(part: Any, name: str, how: str) -> None:
        if (id(part), name) in watched:
            found.setdefault((id(part), name), how)

    def watching(kind: Any) -> type:
        def get(part: Any, name: str) -> Any:
            note(part, name, "get")
            return kind.__getattribute__(part, name)

        def put(part: Any, name: str, value: Any) -> None:
            note(part, name, "set")
            kind.__setattr__(part, name, value)

        return type(
            kind.__name__,
            (kind,),
            {
                "__getattribute__": get,
                "__setattr__": put,
                "__module__": kind.__module__,
                "__qualname__": kind.__qualname__,
            },
        )

    swapped = []
    try:
        for part, kind in classes.values():
            # a class that lets nobody do so, as those of enumerations: what hangs on it counts as read
            with contextlib.suppress(TypeError, AttributeError):
                object.__setattr__(part, "__class__", watching(kind))
                swapped.append((part, kind))
        yield found
    finally:
        for part, kind in swapped:
            object.__setattr__(part, "__class__", kind)


@dataclass
class Changes:
    """What a forward in training changes. `left_out`: paths of attributes that no forward reads before it
    sets them."""

    followed: set = field(default_factory=set)  # paths of buffers and of frozen parameters
    left_out: set = field(default_factory=set)
    lines: dict = field(default_factory=dict)  # path -> the line that changes it
    # lines on what a forward in evaluation changes, which a run does not
    in_evaluation: list = field(default_factory=list)
    parameters: list = field(default_factory=list)  # those that are written to


def is_followed(before: Any, after: Any) -> bool:
    a_tensor = before is not None and after is not None and before.is_tensor() and after.is_tensor()
    held = a_tensor and (before.is_buffer and after.is_buffer)
    frozen = (
        a_tensor
        and isinstance(before.value, torch.nn.Parameter)
        and before.value is after.value
        and not before.value.requires_grad
    )
    return (
        (held or frozen)
        and before.alias.shape == after.alias.shape
        and before.alias.dtype == after.alias.dtype
    )


def where(path: str, leaf: Any, line: str, module: torch.nn.Module) -> str:
    """As errors.place_of() has it."""
    paths = {id(part): name for name, part in module.named_modules()}
    owner = next((paths[id(part)] for part, _ in reversed(leaf.of) if id(part) in paths), "")
    owner = f"{owner}.".removeprefix(getattr(module, "PREFIX", "")).rstrip(".")
    return (f"module {owner!r}" if owner else "the model itself") + (f", {line}" if line else "")


def words_of(leaf: Any) -> str:
    if leaf is None:
        return "nothing"
    if leaf.is_tensor():
        return f"a tensor of {list(leaf.alias.shape)}"
    return (
        repr(leaf.value)
        if isinstance(leaf.value, (int, float, str, bool, type(None))) and len(repr(leaf.value)) < 40
        else f"a {(leaf.value.kind if isinstance(leaf.value, Stated) else type(leaf.value)).__name__}"
    )


def refusal(path: str, before: Any, after: Any, line: str, module: torch.nn.Module) -> CaptureError:
    leaf = before or after
    name = path.removeprefix(getattr(module, "PREFIX", ""))
    at = f"{where(path, leaf, line, module)}: the forward"
    if leaf.is_tensor() and isinstance(leaf.value, torch.nn.Parameter):
        return CaptureError(
            f"{at} changes the parameter {name!r}, which the optimizer alone may change in a run (max_norm of"
            " an embedding does so); compute a new tensor of it and use that one"
        )
    if leaf.is_buffer:
        return CaptureError(
            f"{at} makes {words_of(after)} of buffer {name!r}, {words_of(before)} before; a buffer keeps its"
            " shape and type: write to it with copy_(), or call the module once on such samples before it is"
            " captured, if its first forward alone does this"
        )
    if leaf.is_tensor() or (after is not None and after.is_tensor()):
        return CaptureError(
            f"{at} changes the tensor {name!r}, which is no buffer, so a run would not: make it one"
            " (register_buffer), of the same shape in every forward"
        )
    return CaptureError(
        f"{at} changes {name!r} from {words_of(before)} to {words_of(after)}, and a graph has it as it is"
        " now: keep it as a buffer (register_buffer) and compute with operators of torch, or remove it"
    )


def state_at(path: str, module: torch.nn.Module) -> Any:
    """What lies there, to be compared with what lies there later; of a tensor its version and its memory."""
    leaf = Snapshot(module, values=False).leaves.get(path)
    if leaf is None or not leaf.is_tensor():
        return repr(leaf and leaf.value)
    return id(leaf.value), leaf.value._version, leaf.value.data_ptr()


def run(module: torch.nn.Module, inputs: dict[str, torch.Tensor], seed: int) -> Any:
    torch.manual_seed(seed)
    return module(**inputs)


def draws_of(what: str) -> str:
    return python_draws()[what]


def python_draws() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy else ()
    return {
        "Python's random": str(random.getstate()),
        "numpy.random": str([part.tolist() if hasattr(part, "tolist") else part for part in state]),
    }


def others_of(batch: Batch, b: int) -> dict[str, torch.Tensor]:
    """Other samples than the first b."""
    return {name: drawn[b : 2 * b].clone() for name, drawn in batch.drawn.items()}


def examined(module: torch.nn.Module, batch: Batch, b: int = 2) -> Changes:
    """Changes of the module, which is as it was afterwards. `batch`: of batch.py. Refuses what no graph could
    have."""
    refuse_backward_hooks(module)
    refuse_shared_parameters(module)
    changes = Changes()
    if any(is_fake(t) for t in [*module.parameters(), *module.buffers()]):
        return changes
    was_training = module.training
    module.train()
    start, draws = Snapshot(module), python_draws()
    lines = Lines(module, start)
    forked = torch.random.fork_rng(devices=[])
    with forked:
        try:
            changes = changes_of(module, others_of(batch, b), batch.at(b), start, lines)
        finally:
            start.restore()
            module.train(was_training)
            reset_dynamo()  # torch.cond compiles in eager mode, and torch.export would take that
    for what, state in python_draws().items():
        if state != draws[what]:
            place = line_that_changes(partial(draws_of, what), lambda: module(**batch.at(b)))
            start.restore()
            raise CaptureError(
                f"{f'{place}: ' if place else ''}the forward draws from {what}: a graph has one draw for"
                " ever; draw with torch.rand"
            )
    return changes


def changes_of(
    module: torch.nn.Module,
    one: dict[str, torch.Tensor],
    two: dict[str, torch.Tensor],
    start: Snapshot,
    lines: Lines,
) -> Changes:
    try:
        with lines.attributes(), lines:
            run(module, one, 1)
    except CaptureError:
        raise
    except Exception:
        return Changes()  # torch.export fails as well, and says why
    if lines.hooks:
        what, line = lines.hooks[0]
        raise CaptureError(
            f"{line or 'the forward'}: registers {what}, which no run calls: write what it does as a"
            " torch.autograd.Function"
        )
    first = Snapshot(module, lines.parameters)
    found = start.differences(first)
    if not found:
        return Changes()
    try:
        with lines:
            output = run(module, two, 2)
    except Exception as error:
        place = place_of_error(error, module)
        raise CaptureError(
            f"{f'{place}: ' if place else ''}a second forward of the model fails in eager mode:"
            f" {said(error)}; the first one left something that it cannot read: keep nothing but"
            " detached tensors in buffers"
        ) from error
    second = Snapshot(module, lines.parameters)
    found |= {path: pair for path, pair in first.differences(second).items() if path not in found}
    changes = Changes(
        parameters=lines.parameters,
        lines={path: lines.of(after or before) for path, (before, after) in found.items()},
    )
    changes.followed = {path for path, (before, after) in found.items() if is_followed(before, after)}
    rest = {path: pair for path, pair in found.items() if path not in changes.followed}
    if not rest:
        return changes
    first.restore()
    with first_accesses(
        [pair for leaves in rest.values() for leaf in leaves if leaf is not None for pair in leaf.of]
    ) as accesses:
        run(module, two, 2)

    def is_set_first(leaf: Any) -> bool:
        return leaf is None or any(accesses.get((id(part), name)) == "set" for part, name in leaf.of)

    changes.left_out = {
        path
        for path, (before, after) in rest.items()
        if may_be_left_out(before, after) and is_set_first(before) and is_set_first(after)
    }
    unexplained = {path: pair for path, pair in rest.items() if path not in changes.left_out}
    if unexplained and not is_unread(module, two, output, unexplained, changes, start, first, second):
        path, (before, after) = next(iter(unexplained.items()))
        start.restore()
        line = changes.lines[path] or line_that_changes(
            lambda: state_at(path, module), lambda: run(module, one, 1)
        )
        raise refusal(path, before, after, line, module)
    changes.left_out |= set(unexplained)
    return changes


def may_be_left_out(before: Any, after: Any) -> bool:
    """Neither a buffer nor a parameter, which are in a state_dict."""
    return not any(
        leaf is not None and (leaf.is_buffer or isinstance(leaf.value, torch.nn.Parameter))
        for leaf in (before, after)
    )


def same_results(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two forwards made the same tensors."""
    a, b = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b) if isinstance(x, torch.Tensor)
    )


def is_unread(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    expected: Sequence[torch.Tensor],
    unexplained: dict[str, Any],
    changes: Changes,
    start: Snapshot,
    first: Snapshot,
    second: Snapshot,
) -> bool:
    """Whether no later forward needs what changed, which an attribute does not tell: a second forward without
    a first one makes the same, and leaves the same. So it is with a table of positions that is kept, and with
    what a hook puts into a dictionary for the rest of its forward."""
    if not all(may_be_left_out(*pair) for pair in unexplained.values()):
        return False
    start.restore()
    with torch.no_grad():
        for path in changes.followed:
            start.leaves[path].alias.copy_(first.leaves[path].copy)
    found = run(module, inputs, 2)
    later = Snapshot(module, [first.leaves[path].value for path in changes.followed])
    return same_results(expected, found) and not (
        set(second.differences(later)) & (set(unexplained) | changes.followed)
    )
