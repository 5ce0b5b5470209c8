"""A batch as the engine takes it: tensors by name, of which the model's input is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stagecraft_capture.calls import missing, names_by_place, taken, takes_whole
from stagecraft_capture.instead import of_detectors

from .errors import InputError

if TYPE_CHECKING:
    import torch

TARGETS = "targets"
# As the engine names types; whole numbers of any width are int64 to it.
_TYPES = {"float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True)
class Reader:
    """How batches become fields: pairs by their places, mappings by their keys. The first of a pair may be
    several tensors, one behind the other or by name."""

    input: str
    names: tuple[str, ...]
    pairs: bool

    def fields(self, batch: Any) -> dict[str, torch.Tensor]:
        """One batch's. Throws InputError."""
        if isinstance(batch, Mapping):
            return {str(name): _tensor(name, value) for name, value in batch.items()}
        if isinstance(batch, (tuple, list)) and self.pairs and batch:
            first = batch[0]
            if isinstance(first, Mapping) and {*first} <= {*self.names}:
                first = [first[name] for name in self.names if name in first]
            parts = [*(first if isinstance(first, (tuple, list)) else [first]), *batch[1:]]
            if len(parts) == len(self.names):
                return {name: _tensor(name, value) for name, value in zip(self.names, parts)}
        raise InputError(
            f"the batch is {_described(batch)}, and the pipeline was made for"
            f" {'pairs (input, target)' if self.pairs else 'mappings with ' + ', '.join(self.names)}"
        )

    def joined(self, parts: Sequence[Any]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """The batch that micro-batches make, and the samples of each."""
        import torch

        each = [self.fields(part) for part in parts]
        sizes = [len(fields[self.input]) for fields in each]
        for fields in each[1:]:
            if fields.keys() != each[0].keys():
                raise InputError(
                    f"micro-batches of one batch have {', '.join(each[0])} and {', '.join(fields)}:"
                    " expected the same of all"
                )
        try:
            whole = {name: torch.cat([fields[name] for fields in each]) for name in each[0]}
        except RuntimeError as error:
            raise InputError(f"micro-batches of one batch do not fit together: {error}") from error
        return whole, sizes


def is_micro_batches(batch: Any) -> bool:
    """A list of batches, and not a pair of tensors."""
    return (
        isinstance(batch, list)
        and bool(batch)
        and all(isinstance(each, (Mapping, tuple, list)) for each in batch)
    )


def reader_of(batch: Any, module: torch.nn.Module) -> Reader:
    """For batches like this one, of this module. Throws InputError."""
    if said := of_detectors(module):
        raise InputError(said)
    if isinstance(batch, Mapping):
        names = _input_first(batch, module)
        return Reader(names[0], names, pairs=False)
    if not isinstance(batch, (tuple, list)) or not 1 <= len(batch) <= 2:
        raise InputError(
            f"the batch is {_described(batch)}: expected (input, target), or a mapping by the names of"
            f" forward's parameters ({', '.join(names_by_place(module, 4))})"
        )
    names_of = _input_first if isinstance(batch[0], Mapping) else _by_place
    names = names_of(batch[0], module)
    return Reader(names[0], (*names, *[TARGETS][: len(batch) - 1]), pairs=True)


def _by_place(inputs: Any, module: torch.nn.Module) -> tuple[str, ...]:
    kind, number = type(module).__name__, len(inputs) if isinstance(inputs, (tuple, list)) else 1
    names = tuple(names_by_place(module, number))
    if len(names) < number or not names:
        raise InputError(
            f"{kind}.forward takes {len(names)} arguments by place, and the batch has {number} inputs: give a"
            " mapping, or write the arguments out, as in def forward(self, x)"
        )
    if needed := ", ".join(missing(module, names)):
        raise InputError(
            f"{kind}.forward needs {needed} too: give (({', '.join(names)}, {needed}), target), or a mapping"
            " by the names of its parameters"
        )
    return names


def _input_first(batch: Mapping[Any, Any], module: torch.nn.Module) -> tuple[str, ...]:
    """Names of a mapping. The input is the one that the first argument takes, or the first of all where the
    module takes them as a whole."""
    kind, names = type(module).__name__, tuple(map(str, batch))
    if takes_whole(module, names):
        return names
    its_input = next(iter(taken(module, names)), None)
    if its_input is None:
        raise InputError(
            f"{kind}.forward takes {', '.join(names_by_place(module, 9))}, and the batch has"
            f" {', '.join(names)}: name the batch's entries as the parameters of forward"
        )
    if needed := missing(module, names):
        raise InputError(f"{kind}.forward needs {', '.join(needed)}, and the batch has {', '.join(names)}")
    return (its_input, *(name for name in names if name != its_input))


def described(fields: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """As a config's data has them."""
    return [
        {"name": name, "shape": list(tensor.shape[1:]), "dtype": type_name(tensor)}
        for name, tensor in fields.items()
    ]


def type_name(tensor: torch.Tensor) -> str:
    return _TYPES.get(str(tensor.dtype).removeprefix("torch."), "int64")


def _tensor(name: object, value: Any) -> torch.Tensor:
    import torch

    if isinstance(value, (list, tuple)) and any(isinstance(each, (Mapping, torch.Tensor)) for each in value):
        raise InputError(
            f'the batch: "{name}" is a {type(value).__name__} of {len(value)}, expected a tensor: stack what'
            " samples have, padded to one size (with a mask as an entry of its own), and hand over each by"
            ' its name, as in {"boxes": boxes, "labels": labels}'
        )
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f'the batch: "{name}" is a {type(value).__name__}, expected a tensor:'
            " torch.as_tensor(...) makes one"
        )
    if value.is_complex() or value.layout != torch.strided:
        raise InputError(f'the batch: "{name}" is {value.dtype} {value.layout}, expected dense real numbers')
    return value


def _described(batch: Any) -> str:
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"
