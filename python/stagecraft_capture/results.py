"""What a module returns, as the one tensor that goes from the model to its loss.

Modules return tuples, dictionaries and dataclasses, and a loss reads of them what it likes. Where that is one
tensor, that is the model's output. Several lie in one, side by side, and the loss gets them out of it again:
joining and splitting round nothing, neither forward nor backward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import CaptureError
from .terms import loss_and_terms
from .torch_private import TorchDispatchMode, pytree
from .users_code import described

FEW = 4096  # numbers of the whole batch, which go to the loss with each sample


def taken_apart(made: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Its leaves by path, and how to put them together again."""
    _know_dataclasses(made)
    try:
        leaves, spec = pytree.tree_flatten_with_path(made)
    except ValueError:  # a class that tells its leaves and not their names, as diffusers' outputs do
        flat, spec = pytree.tree_flatten(made)
        keys = list(made) if isinstance(made, Mapping) and len(made) == len(flat) else range(len(flat))
        return [(f"[{key!r}]", leaf) for key, leaf in zip(keys, flat)], spec
    return [(pytree.keystr(path) or "the output", leaf) for path, leaf in leaves], spec


def _know_dataclasses(made: Any) -> None:
    kind = type(made)
    if dataclasses.is_dataclass(made) and kind not in pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
    for part in made.values() if isinstance(made, dict) else made if isinstance(made, (tuple, list)) else ():
        _know_dataclasses(part)


def structure(made: Any) -> list[str]:
    """Paths of its leaves."""
    return [path for path, _ in taken_apart(made)[0]]


def is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


class Reads(TorchDispatchMode):
    """Which of some tensors operators read."""

    def __init__(self, tensors: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.places = {id(t): i for i, t in tensors.items()}
        self.found: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for read in pytree.tree_leaves((args, kwargs)):
            if id(read) in self.places:
                self.found.add(self.places[id(read)])
        return function(*args, **(kwargs or {}))


@dataclass
class Results:
    """Where the tensors stand that the loss reads. Nowhere: the result is a tensor itself."""

    places: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    whole: bool = True  # whether the loss is a function of the whole result, or of the one tensor
    # of `places` those that the loss has no gradient for
    detached: frozenset[int] = frozenset()
    # in evaluation, of a module that returns more in training: shapes of one sample, for each tensor that the
    # loss reads there; which of these the module returns here too
    shapes: list[torch.Size] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    in_training: Results | None = None  # where that is another than in evaluation
    # of `places` tensors of the whole batch, as weights are; a single number is one anyway
    shared: frozenset[int] = frozenset()
    # of `places` the dimension of samples, and how many entries of it are each one's; else (0, 1)
    samples_in: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    # where a loss of the module's own reads weights: its number goes to the loss as it is
    instead: Results | None = None

    def of(self, training: bool) -> Results:
        return self.in_training if training and self.in_training is not None else self

    def one(self, made: Any) -> torch.Tensor:
        """The tensor that goes to the loss."""
        if not self.places:
            return made
        leaves = self.leaves(made)
        if self.shapes:
            samples, given = leaves[0].shape[0], dict(zip(self.present, leaves))
            absent = (leaves[0].new_zeros(samples, shape.numel()) for shape in self.shapes)
            rows = (_row(given[k], samples) if k in given else zeros for k, zeros in enumerate(absent))
            return torch.cat(list(rows), 1)
        return leaves[0] if len(leaves) == 1 else torch.cat(self._rows(leaves), 1)

    def _rows(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each as [samples, numbers of each]."""
        whole = [i in self.shared for i in self.places]
        samples = next(
            t.shape[dimension] // of_each
            for i, t in zip(self.places, leaves)
            if i not in self.shared and t.dim() > 0
            for dimension, of_each in [self.samples_in.get(i, (0, 1))]
        )
        return [
            t.reshape(1, -1).expand(samples, -1) if all_of_it else _row(t, samples)
            for t, all_of_it in zip(leaves, whole)
        ]

    def again(self, made: Any, one: torch.Tensor) -> Any:
        """The result, with what `one` holds in place of its own."""
        if not self.places or not self.whole:
            return one
        if not torch.compiler.is_exporting():  # eager mode is what a plain loop does
            return made
        leaves = self.leaves(made)
        if self.shapes:
            rows = one.split([shape.numel() for shape in self.shapes], 1)
            parts = [_like(rows[k], t) for k, t in zip(self.present, leaves)]
        elif len(leaves) > 1:
            parts = one.split([row.shape[1] for row in self._rows(leaves)], 1)
            parts = [
                _like(part[0] if i in self.shared else part, t)
                for i, part, t in zip(self.places, parts, leaves)
            ]
        else:
            parts = [one]
        everything, spec = taken_apart(made)
        put = dict(zip(self.places, parts))
        return pytree.tree_unflatten([put.get(i, leaf) for i, (_, leaf) in enumerate(everything)], spec)

    def leaves(self, made: Any) -> list[torch.Tensor]:
        found = [("", made)] if isinstance(made, torch.Tensor) and self.shapes else taken_apart(made)[0]
        if [found[i][0] for i in self.places if i < len(found)] != self.names:
            raise CaptureError(
                f"the loss reads {', '.join(self.names)} of what the module returns, which is another thing"
                " in training than in evaluation: return the same of both"
            )
        return [found[i][1].detach() if i in self.detached else found[i][1] for i in self.places]


def by_mode(evaluation: Results, made: Any, training: Results, made_in_training: Any) -> Results:
    """Of a module that returns more in training than in evaluation, as one with auxiliary heads does. The
    tensor that goes to the loss is the same: what is absent in evaluation is zeros there, which the loss of
    that result does not read."""
    leaves = training.leaves(made_in_training)
    shapes = [t.shape[1:] for t in leaves]
    if isinstance(made, torch.Tensor):  # the first of its shape
        names, own = [""], [made]
        found = [next((k for k, t in enumerate(leaves) if t.shape == made.shape), None)]
    else:
        names, own = evaluation.names, evaluation.leaves(made)
        found = [training.names.index(n) if n in training.names else None for n in names]
    fits = len(leaves) > 1 and all(
        k is not None and leaves[k].dim() > 0 and leaves[k].shape == t.shape for k, t in zip(found, own)
    )
    turned = any(place != (0, 1) for place in training.samples_in.values())
    if not fits or training.shared or turned or any(t.dim() == 0 for t in leaves):
        raise CaptureError(
            f"of what the module returns the loss reads {', '.join(training.names) or 'the output'} in"
            f" training, and {', '.join(evaluation.names) or 'the output'} in evaluation: return the same of"
            " both, or in evaluation some of what is returned in training"
        )
    places = evaluation.places or [0]
    return Results(
        places,
        names,
        evaluation.whole,
        evaluation.detached,
        shapes,
        [k for k in found if k is not None],
        in_training=training,
    )


def _row(tensor: torch.Tensor, samples: int) -> torch.Tensor:
    """As [samples, numbers of each]; one number for all of them stands with each."""
    return tensor.expand(samples, 1) if tensor.dim() == 0 else tensor.reshape(samples, -1)


def _like(row: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What _row() was made of, dense, so that a loss may call .view() on it."""
    return row[0, 0] if tensor.dim() == 0 else row.contiguous().view(tensor.shape)


def results_of(
    made: Any,
    module: torch.nn.Module,
    loss: Callable[[Any], Any] | None,
    samples: int,
    made_of_more: Callable[[], Any] = lambda: None,
) -> Results:
    """How to take what `module` returns. `loss`: a function of it, or None; `samples`: how many it was
    called with; `made_of_more`: what it returns for more, or None where that is not known."""
    if isinstance(made, torch.Tensor):
        return Results()
    found, spec = taken_apart(made)
    numbers = {i: t for i, (_, t) in enumerate(found) if is_numbers(t)}
    detached: frozenset[int] = frozenset()
    more = _of_more(found, numbers, made_of_more) if loss is not None else {}
    shared = frozenset(i for i, t in more.items() if t.shape == numbers[i].shape)
    samples_in = {i: at for i, t in more.items() if (at := _samples_in(numbers[i], t, samples))}
    rows = {
        i: t
        for i, t in numbers.items()
        if t.dim() > 0 and (t.shape[0] % samples == 0 or i in samples_in) and i not in shared
    }
    if loss is None:
        rows = {i: t for i, t in rows.items() if t.requires_grad}
        if not rows:
            raise CaptureError(
                f"{type(module).__name__}.forward returns {described(made)}: return a tensor of numbers that"
                " weights reach, with a dimension of samples"
            )
        if len(rows) > 1:
            raise CaptureError(
                f"{type(module).__name__}.forward returns {len(rows)} tensors of trained numbers"
                f" ({', '.join(found[i][0] for i in rows)}): say which the loss reads by a function of all"
                " that it returns, --loss FILE.py:NAME, as in lambda output, batch: ..."
            )
        wanted = list(rows)
    else:
        wanted, of_rows = _wanted(found, spec, numbers, rows, shared, loss, made_of_more)
        detached = _without_gradient(found, spec, wanted, loss)
    if not any(i in rows for i in wanted):
        names = ", ".join(found[i][0] for i in wanted) or "none"
        raise CaptureError(
            f"the loss reads no tensor of each sample of what {type(module).__name__}.forward returns (but"
            f" {names}): a batch is trained in parts, and one number of the whole does not say what each part"
            " counts; let it compute the loss of what the module returns of each sample, such as logits"
        )
    kinds = {found[i][1].dtype for i in wanted}
    if len(kinds) > 1:
        types = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise CaptureError(
            f"the loss reads {', '.join(found[i][0] for i in wanted)}, which are {types}: return them in one"
            " type, with .float()"
        )

    def of(places: list[int], without_gradient: frozenset[int]) -> Results:
        return Results(
            places,
            [found[i][0] for i in places],
            loss is not None,
            without_gradient,
            shared=shared & set(wanted),
            samples_in={i: samples_in[i] for i in places if i in samples_in},
        )

    made_of = of(wanted, detached)
    if loss is not None and of_rows:
        both = sorted({*wanted, *of_rows})
        made_of.instead = of(both, _without_gradient(found, spec, both, loss, apart=True))
    return made_of


def _of_more(
    found: list[tuple[str, Any]], numbers: Mapping[int, torch.Tensor], made_of_more: Callable[[], Any]
) -> dict[int, torch.Tensor]:
    """The same tensors of one sample more, where it is in doubt which are of samples."""
    in_doubt = [i for i, t in numbers.items() if t.dim() > 0]
    if len(in_doubt) < 2:  # one is of the samples
        return {}
    more = taken_apart(made_of_more())[0]
    return (
        {i: more[i][1] for i in in_doubt} if [path for path, _ in more] == [path for path, _ in found] else {}
    )


def _samples_in(few: torch.Tensor, more: torch.Tensor, samples: int) -> tuple[int, int] | None:
    """The dimension of samples, and how many entries of it are each one's: an LSTM's last states have it
    behind the layers. None where no dimension, or more than one, grows with them."""
    grown = [d for d in range(few.dim()) if few.shape[d] != more.shape[d]] if few.dim() == more.dim() else []
    if len(grown) != 1 or few.shape[grown[0]] * (samples + 1) != more.shape[grown[0]] * samples:
        return None
    return grown[0], few.shape[grown[0]] // samples


def _wanted(
    found: list[tuple[str, Any]],
    spec: Any,
    numbers: dict[int, torch.Tensor],
    rows: dict[int, torch.Tensor],
    shared: Collection[int],
    loss: Callable[[Any], Any],
    made_of_more: Callable[[], Any],
) -> tuple[list[int], set[int]]:
    """Places of what the loss reads: tensors of samples, and numbers that do not come from these; and of
    numbers that do. `shared`: those of the whole batch."""
    with Reads({i: leaf for i, (_, leaf) in enumerate(found) if isinstance(leaf, torch.Tensor)}) as reads:
        made = loss(pytree.tree_unflatten([leaf for _, leaf in found], spec))
    given = {id(leaf) for leaf in pytree.tree_leaves(made)}
    read = reads.found | {i for i, (_, leaf) in enumerate(found) if id(leaf) in given}
    for i in sorted(read - rows.keys()):
        if i not in numbers or (numbers[i].dim() > 0 and (i not in shared or numbers[i].numel() > FEW)):
            leaf = found[i][1]
            is_each = len(taken_apart(made_of_more())[0]) > len(found)
            raise CaptureError(
                f"the loss reads {found[i][0]} of what the module returns, which is"
                f" {str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)} for two samples: expected"
                f" floating-point numbers of each sample, or up to {FEW} of the whole batch"
                f"{'; return one tensor of all samples, torch.stack(parts), padded' if is_each else ''}"
            )
    wanted = {i for i in read if i in rows}
    behind: set[int] = set()
    made_of_rows: set[int] = set()
    for i in sorted(read - wanted):  # what comes from none of the rows is handed over
        of_rows = _read_directly(numbers[i], _behind(numbers[i], rows))
        behind |= of_rows
        (made_of_rows if of_rows else wanted).add(i)
    # a loss of the module's own is made again of what was made last; joined.py finds what else it reads
    wanted |= behind if wanted & rows.keys() else _made_last(behind, rows)
    return sorted(wanted), made_of_rows


def _behind(number: torch.Tensor, rows: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Those that it has a gradient for."""
    # none of a module that returns its loss alone
    beside = {i: t for i, t in rows.items() if t.requires_grad}
    if not beside or not number.requires_grad:
        return {}
    gradients = torch.autograd.grad(number.sum(), list(beside.values()), allow_unused=True, retain_graph=True)
    return {i: beside[i] for i, gradient in zip(beside, gradients) if gradient is not None}


def _made_last(places: set[int], rows: Mapping[int, torch.Tensor]) -> set[int]:
    """The one that comes from most of the others."""
    sources = {i: _behind(rows[i], {k: rows[k] for k in places - {i}}) for i in places}
    return {max(sorted(places), key=lambda i: len(sources[i]))} if places else set()


def _read_directly(number: torch.Tensor, rows: Mapping[int, torch.Tensor]) -> set[int]:
    """Those that it is computed of; of what comes from others of them, as logits from hidden states that are
    returned too, the others are not read. All, where that cannot be seen."""
    if not rows:
        return set()
    made = {(t.grad_fn, t.output_nr): i for i, t in rows.items() if t.grad_fn is not None}
    found: set[int] = set()
    todo: list[tuple[Any, int]] = [(number.grad_fn, number.output_nr)]
    seen = set(todo)
    while todo:
        at = todo.pop()
        if at in made:
            found.add(made[at])
            continue
        more = [each for each in at[0].next_functions if each[0] is not None and each not in seen]
        seen.update(more)
        todo += more
    return found or set(rows)


def _without_gradient(
    found: list[tuple[str, Any]],
    spec: Any,
    wanted: list[int],
    loss: Callable[[Any], Any],
    apart: bool = False,
) -> frozenset[int]:
    """Places of what terms alone read, or what the loss reads without a gradient (argmax, .detach()). Joined
    to the others they would have a gradient of zeros, where eager has none. `apart`: none comes to one of
    them by way of another."""
    leaves = {i: found[i][1] for i in wanted if found[i][1].requires_grad}

    def gradients_of(leaves: dict[int, torch.Tensor]) -> Any:
        given = [leaves.get(i, leaf) for i, (_, leaf) in enumerate(found)]
        total, _terms = loss_and_terms(loss(pytree.tree_unflatten(given, spec)))
        if not leaves or not isinstance(total, torch.Tensor) or not total.requires_grad:
            return ()
        return torch.autograd.grad(total.sum(), list(leaves.values()), allow_unused=True, retain_graph=True)

    if apart:
        leaves = {i: leaf.detach().requires_grad_() for i, leaf in leaves.items()}
    try:
        gradients = gradients_of(leaves)
    except RuntimeError:  # an evaluation's forward may write to what its own gradient would need
        leaves = {i: leaf.detach().requires_grad_() for i, leaf in leaves.items()}
        gradients = gradients_of(leaves)
    return frozenset(i for i, gradient in zip(leaves, gradients) if gradient is None)
