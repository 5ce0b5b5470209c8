"""A batch as the engine takes it: tensors by name, of which the model's input is one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InputError

if TYPE_CHECKING:
    import torch

TARGETS = "targets"
# As the engine names types; whole numbers of any width are int64 to it.
_TYPES = {"float32": "float32", "float64": "float64", "bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True)
class Reader:
    """How batches become fields: pairs by their places, mappings by their keys."""

    input: str
    names: tuple[str, ...]
    pairs: bool

    def fields(self, batch: Any) -> dict[str, torch.Tensor]:
        """One batch's. Throws InputError."""
        if isinstance(batch, Mapping):
            return {str(name): _tensor(name, value) for name, value in batch.items()}
        if isinstance(batch, (tuple, list)) and self.pairs and len(batch) == len(self.names):
            return {name: _tensor(name, value) for name, value in zip(self.names, batch)}
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


def parameters_of(module: torch.nn.Module) -> list[inspect.Parameter]:
    """Those of its forward that have names; of a wrapper that hands on all it gets, as PEFT's is, the wrapped
    module's."""
    found = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    base = getattr(module, "get_base_model", None)
    return parameters_of(base()) if not found and callable(base) else found


def reader_of(batch: Any, module: torch.nn.Module) -> Reader:
    """For batches like this one, of this module. Throws InputError."""
    parameters = parameters_of(module)
    if not parameters:
        raise InputError(
            f"{type(module).__name__}.forward has no named parameter to give samples to: write its"
            " arguments out, as in def forward(self, x)"
        )
    takes = [p.name for p in parameters]
    if isinstance(batch, Mapping):
        its_input = next((name for name in takes if name in batch), None)
        if its_input is None:
            raise InputError(
                f"{type(module).__name__}.forward takes {', '.join(takes)}, and the batch has"
                f" {', '.join(map(str, batch))}: name the batch's entries as the parameters of forward"
            )
        missing = [p.name for p in parameters if p.default is p.empty and p.name not in batch]
        if missing:
            raise InputError(
                f"{type(module).__name__}.forward needs {', '.join(missing)}, and the batch has"
                f" {', '.join(map(str, batch))}"
            )
        names = [its_input, *(str(name) for name in batch if name != its_input)]
        return Reader(its_input, tuple(names), pairs=False)
    if isinstance(batch, (tuple, list)) and 1 <= len(batch) <= 2:
        names = [takes[0], TARGETS][: len(batch)]
        needed = [p.name for p in parameters[1:] if p.default is p.empty]
        if needed:
            raise InputError(
                f"{type(module).__name__}.forward needs {', '.join(needed)} too: give a mapping by the names"
                " of its parameters"
            )
        return Reader(takes[0], tuple(names), pairs=True)
    raise InputError(
        f"the batch is {_described(batch)}: expected (input, target), or a mapping by the names of forward's"
        f" parameters ({', '.join(takes[:4])})"
    )


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
