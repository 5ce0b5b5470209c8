"""Runs graph files in Python, operator by operator: what the self-check compares with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .errors import CaptureError
from .multiply_adds import sizes_at
from .noise import DRAWS, OURS, TRACED

if TYPE_CHECKING:
    from .aliases import Json, Step
    from .joint import Tensors


DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


def samples_of(tensors: Iterable[torch.Tensor], types: Iterable[str]) -> int:
    """b, for which the types, as "f32[16*b,64]", are those of the tensors; 0 where no size depends on
    it."""
    for tensor, type_of in zip(tensors, types):
        sizes = type_of[type_of.index("[") + 1 : -1].split(",")
        at = next((i for i, size in enumerate(sizes) if "b" in size), None)
        if at is not None:
            return next(
                b for b in range(1, tensor.shape[at] + 1) if sizes_at(type_of, b)[at] == tensor.shape[at]
            )
    return 0


def draw(name: str, result: str, arguments: list[Any], b: int) -> torch.Tensor:
    """Numbers as eager draws them. A run draws them by name."""
    noise = torch.empty(sizes_at(result, b), dtype=DTYPES[result.split(" ")[1].split("[", maxsplit=1)[0]])
    if name == "stagecraft::bernoulli":
        return noise.bernoulli_(arguments[0])
    if name == "stagecraft::exponential":
        return noise.exponential_()
    return noise.normal_() if name == "stagecraft::normal" else noise.uniform_()


def dropped(x: torch.Tensor, ones: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As eager multiplies: by a mask that is divided by what stays. Where nearly all is dropped, that rounds
    otherwise than a factor would."""
    return x * ones.div(1 - p), ones != 0


def operator_of(name: str) -> Callable[..., Any]:
    if name == "stagecraft::dropout":
        return lambda x, p, stream: dropped(x, torch.empty_like(x).bernoulli_(1 - p), p)
    if name == "stagecraft::dropout_apply":
        return lambda x, mask, p: dropped(x, mask.to(x.dtype), p)[0]
    if name == "stagecraft::grouped_mm":
        return torch.ops.aten._grouped_mm
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    namespace = TRACED if namespace == OURS else namespace
    overload = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    parameters = overload._schema.arguments

    def call(*given: Any) -> Any:
        positional = [a for a, p in zip(given, parameters) if not p.kwarg_only]
        return overload(*positional, **{p.name: a for a, p in zip(given, parameters) if p.kwarg_only})

    return call


def value_of(argument: Any, values: Json, b: int) -> Any:
    if isinstance(argument, str):
        return values[argument]
    if isinstance(argument, list):
        return [value_of(a, values, b) for a in argument]
    if isinstance(argument, dict):
        ((kind, what),) = argument.items()
        if kind == "size":
            if b is None:
                raise CaptureError(
                    "a layer makes something for each sample of what has no dimension of samples (of weights"
                    " alone, as a parametrization does): choose another cut with --layers"
                )
            return what[0] * b + what[1]
        if kind == "scalar":
            return value_of(what, values, b)
        if kind == "float":
            return float(what)
        if kind == "complex":
            return complex(*(float(value_of(part, values, b)) for part in what))
        if kind == "dtype":
            return DTYPES[what]
        if kind == "layout":
            return getattr(torch, what)
        if kind == "format":
            return getattr(torch, what + "_format" if what in ("contiguous", "preserve") else what)
        if kind == "device":
            return torch.device("cpu")
        return what
    return argument


before_draw: Callable[[], None] | None = None  # called before a step draws


def run_steps(steps: list[Step], values: Json, b: int) -> None:
    for name, results, arguments in steps:
        if before_draw is not None and name in DRAWS:
            before_draw()
        if name in DRAWS and name != "stagecraft::dropout":
            values[results[0].split(" ")[0]] = draw(name, results[0], arguments, b)
            continue
        try:
            made = operator_of(name)(*[value_of(a, values, b) for a in arguments])
        except RuntimeError as error:
            raise CaptureError(
                f"the captured layers fail where the model does not, in {name} ({results[0]}):"
                f" {str(error).strip().splitlines()[0]}; this is a defect of the capture:"
                " report it with the module, or write this part otherwise"
            ) from error
        made = made if isinstance(made, (tuple, list)) else [made]
        for result, tensor in zip(results, made):
            if result is not None:
                values[result.split(" ")[0]] = tensor


class Replayed:
    """One layer, as the engine runs it: between its parts it has only what the graph says is kept."""

    def __init__(self, graph: Json, tensors: Tensors) -> None:
        self.graph = graph
        self.fixed: dict[str, torch.Tensor] = {}
        self.field_names = tensors.names["f"]
        for letter in "puc":
            for i, name in enumerate(tensors.names[letter]):
                value = tensors.values[name].detach().contiguous()  # as files hold them
                # buffers are written to
                self.fixed[f"{letter}{i}"] = value.clone() if letter == "u" else value

    def given(self, inputs: list[torch.Tensor], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        fields = {f"f{i}": batch[name] for i, name in enumerate(self.field_names)}
        # as they arrive on another rank
        return {**self.fixed, **{f"in{i}": x.contiguous() for i, x in enumerate(inputs)}, **fields}

    def forward(self, inputs: list[torch.Tensor], batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The outputs. `batch`: fields by name."""
        self.b = samples_of(inputs, self.graph["inputs"])
        values = self.given(inputs, batch)
        part = self.graph["forward"]
        run_steps(part["steps"], values, self.b)
        self.for_input = {n: values[n] for n in part["keep_input"]}
        self.for_weight = {n: values[n] for n in part["keep_weight"]}
        for i, new in enumerate(part["buffers"]):
            if new is not None:
                self.fixed[f"u{i}"].copy_(values[new])
        return [values[n] for n in part["outputs"]]

    def backward(
        self, gradients: list[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Gradients of the inputs, and of the parameters; None where there is none. `gradients`: of the
        outputs, None where one has none."""
        part = self.graph["backward_input"]
        values = {
            **self.fixed,
            **self.for_input,
            **{f"g{i}": g.contiguous() for i, g in enumerate(gradients) if g is not None},
        }
        run_steps(part["steps"], values, self.b)
        grad_inputs = [values[n] if n is not None else None for n in part["outputs"]]
        kept = {**self.fixed, **self.for_weight, **{n: values[n] for n in part["keep_weight"]}}
        part = self.graph["backward_weight"]
        run_steps(part["steps"], kept, self.b)
        return grad_inputs, [kept[n] if n is not None else None for n in part["gradients"]]

    def evaluate(self, inputs: list[torch.Tensor], batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        values = self.given(inputs, batch)
        run_steps(self.graph["evaluate"]["steps"], values, samples_of(inputs, self.graph["inputs"]))
        return [values[n] for n in self.graph["evaluate"]["outputs"]]
