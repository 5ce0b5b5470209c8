"""The self-check: the captured layers beside the module itself, in eager mode, with the same random
numbers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .changed_lines import line_that_changes
from .draws import drawing_as_eager
from .errors import CaptureError, place_in
from .export_errors import said
from .reach import Snapshot
from .replay import Replayed
from .seams import MODEL_INPUT
from .state import is_followed, may_be_left_out, refusal, same_results, state_at, where
from .terms import of_module
from .users_code import running

if TYPE_CHECKING:
    from .aliases import Json
    from .capture import Model


MOST_NAMED = 3  # gradients that differ
LARGEST = sys.float_info.max  # stands for infinite differences, and for those to what is no number


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """A NaN is itself."""
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and (
        torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    )


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        raise CaptureError(
            f"the captured layers make a tensor of {list(a.shape)} where the model makes one of"
            f" {list(b.shape)}; this is a defect of the capture:"
            " report it with the module, or write this part otherwise"
        )
    if not a.numel() or same(a, b):
        return 0.0
    return min((a.double() - b.double()).abs().nan_to_num(LARGEST).max().item(), LARGEST)


def expected_gradients(module: torch.nn.Module, named: Collection[str]) -> dict[str, torch.Tensor | None]:
    """Gradients of parameters, under those of their names that layers use."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {
        next((n for n in of if n in named), of[0]): p.grad for p, of in names.items() if p.grad is not None
    }


class Comparison:
    """Counts what is equal, and remembers the largest difference."""

    def __init__(self) -> None:
        self.worst = 0.0

    def equal(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        self.worst = max(self.worst, difference(found, expected))
        return same(found, expected)


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """torch.nn.TransformerEncoderLayer has a kernel of its own for evaluation, which is not in exported
    graphs and rounds otherwise."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def own_output(found: torch.Tensor, model: Model) -> torch.Tensor:
    """The module's, of what goes to the loss."""
    if model.columns is None:
        return found
    width, shape = model.columns
    return found[:, :width].reshape(-1, *shape)


class Layers:
    """The captured layers, as a run has them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.replayed = [Replayed(layer.graph, layer.tensors) for layer in model.layers]
        self.loss = Replayed(model.loss.graph, model.loss.tensors) if model.loss else None

    def outputs(
        self, run: Callable[[Replayed], Callable[..., Any]], batch: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        """The output, the loss and its terms. Each layer reads what others have left, and what goes through
        it is its own output from then on. `run`: of Replayed."""
        values = {MODEL_INPUT: next(iter(batch.values()))}
        for layer, replayed in zip(self.model.layers, self.replayed):
            try:
                made = run(replayed)([values.pop(n) for n in layer.reads], batch)
            except CaptureError as error:
                raise CaptureError(f"module {layer.name.removeprefix('wrapped.')!r}: {error}") from error
            values.update(zip(layer.makes, made))
        (found,) = values.values()
        loss, *terms = run(self.loss)([found], batch) if self.loss else [None]
        return found, loss, terms

    def gradients(self, g: torch.Tensor) -> dict[str, torch.Tensor | None]:
        """Of parameters by name. `g`: of the loss, or of the output where there is none."""
        if self.loss:
            (g,), _ = self.loss.backward([g])
        found: dict[str, torch.Tensor | None] = {}
        gradients = {self.model.layers[-1].makes[0]: g}
        for layer, run in reversed(list(zip(self.model.layers, self.replayed))):
            sent = [gradients.pop(n, None) for n in layer.makes]
            try:
                of_inputs, of_parameters = run.backward(sent)
            except KeyError as error:
                raise CaptureError(
                    f"module {layer.name.removeprefix('wrapped.')!r}: its backward waits for a gradient that"
                    " no layer behind it sends: cut between other modules (--layers PATTERN)"
                ) from error
            gradients.update((n, g) for n, g in zip(layer.reads, of_inputs) if g is not None)
            for name, gradient in zip(layer.tensors.names["p"], of_parameters):
                if gradient is not None:  # of a tied weight the last layer's comes first, as eager adds them
                    found[name] = found[name] + gradient if name in found else gradient
        return found

    def held(self) -> dict[str, torch.Tensor]:
        """Buffers and frozen parameters by name."""
        return {
            n: run.fixed[f"u{i}"]
            for layer, run in zip(self.model.layers, self.replayed)
            for i, n in enumerate(layer.tensors.names["u"])
        }


FORWARDS = 2  # in a row: what a forward changes, the next one reads


def in_turn(batch: dict[str, torch.Tensor], forward: int) -> dict[str, torch.Tensor]:
    """The samples in another order in each forward."""
    return {name: field.roll(forward, 0) for name, field in batch.items()}


def in_eager_mode(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> Any:
    """What the module returns. It may fail here alone: without gradients, with another number of samples."""
    mode = "training" if module.training else "evaluation"
    samples = len(next(iter(batch.values())))
    with running(f"the model fails in {mode}, in eager mode, with {samples} samples", module):
        return module(**batch)


def check(module: torch.nn.Module, model: Model, batch: dict[str, torch.Tensor]) -> Json:
    """What manifest.json says under `checked`. `batch`: fields by name. The module is as it was
    afterwards."""
    training = module.training
    start = Snapshot(module.train(), model.changes.parameters)
    try:
        with torch.random.fork_rng(devices=[]):
            return compared(module, model, batch, start)
    finally:
        start.restore()
        module.train(training)


def compared(module: torch.nn.Module, model: Model, batch: dict[str, torch.Tensor], start: Snapshot) -> Json:
    compare, layers, model.changes.in_evaluation = Comparison(), Layers(model), []

    def results(made: Any) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        if model.loss is None:
            return made, None, []
        output = made[0] if model.order is None else made[0].permute(model.order)
        if model.columns is not None and list(output.shape[1:]) != model.columns[1]:
            output = own_output(output, model)  # which results.py has joined
        return output, made[1], list(of_module(made).values())

    words: dict[str, str] = {}
    equal: set[str] | None = None
    of_both: set[str] = set()

    def note(part: str, is_equal: bool) -> None:
        words[part] = "equal" if is_equal and words.get(part, "equal") == "equal" else "differs"

    def note_evaluation() -> None:
        with torch.no_grad(), without_fast_path():
            *expected, terms = results(in_eager_mode(module.eval(), batch))
            *found, found_terms = layers.outputs(lambda layer: layer.evaluate, batch)
            found[0] = own_output(found[0], model)
        both = [*zip(found, expected), *zip(found_terms, terms)]
        note("evaluation", all(compare.equal(f, e) for f, e in both if e is not None))

    in_evaluation = Snapshot(module.eval(), model.changes.parameters)
    note_evaluation()
    for path in changed_in_evaluation(in_evaluation, module, model, batch):
        note("evaluation", False)
        model.changes.in_evaluation.append(
            f"eager changes {plain_name(path, module)!r} in evaluation too, a run in training alone: change"
            " it where self.training is true"
        )
    start.restore()

    for parameter in module.parameters():
        parameter.grad = None
    in_order = [name for layer in model.layers for name in layer.tensors.names["p"]]
    names = set(in_order)
    buffers_equal: set[str] | None = None
    buffers: list[str] = []
    for forward in range(FORWARDS):
        given = in_turn(batch, forward)
        torch.manual_seed(1 + forward)
        output, loss, terms = results(in_eager_mode(module, given))
        torch.manual_seed(1 + forward)
        with torch.no_grad(), drawing_as_eager(model.draws, next(iter(batch.values())).shape[0]):
            found, found_loss, found_terms = layers.outputs(lambda layer: layer.forward, given)
        note("output", compare.equal(own_output(found, model), output.detach()))
        if loss is not None:
            note("loss", compare.equal(found_loss, loss.detach()))
        for found_term, term in zip(found_terms, terms):
            note("terms", compare.equal(found_term, term))
        g = (
            torch.randn(output.shape, generator=torch.Generator().manual_seed(2)).to(output.dtype)
            if loss is None
            else torch.ones_like(loss)
        )
        differentiate(output if loss is None else loss, g, forward, module, model)
        expected = expected_gradients(module, names)
        with torch.no_grad():
            gradients = layers.gradients(g)
        of_both |= {*expected, *gradients}  # where eager has none, it differs
        same_now = {
            name
            for name, gradient in gradients.items()
            if name in expected and compare.equal(gradient, expected[name])
        }
        equal = same_now if equal is None else equal & same_now
        for parameter in module.parameters():
            parameter.grad = None
        held, kept, state = (
            layers.held(),
            updated(model),
            {
                **dict(module.named_buffers(remove_duplicate=False)),
                **dict(module.named_parameters(remove_duplicate=False)),
            },
        )
        refuse_unheld(start, module, model, kept, given)
        buffers = [
            name
            for name in held
            if name in kept or (name in state and not isinstance(state[name], torch.nn.Parameter))
        ]
        same_now = {name for name in buffers if compare.equal(held[name], state[name].detach())}
        buffers_equal = same_now if buffers_equal is None else buffers_equal & same_now
    note_evaluation()  # with the buffers as training has left them, of each layer its own
    words = {part: words[part] for part in ("output", "loss", "terms", "evaluation") if part in words}
    return {
        **words,
        "gradients": len(of_both),
        "equal": len(equal or ()),
        "unequal": [plain_name(name, module) for name in in_order if name in of_both - (equal or set())],
        "buffers": len(buffers),
        "buffers_equal": len(buffers_equal or ()),
        "worst": compare.worst,
    }


def all_equal(checked: Json) -> bool:
    counts = checked["equal"] == checked["gradients"] and checked["buffers_equal"] == checked["buffers"]
    return counts and all(
        checked.get(part, "equal") == "equal" for part in ("output", "loss", "terms", "evaluation")
    )


def words_of(checked: Json) -> str:
    parts = [part for part in ("output", "loss", "terms") if part in checked]
    text = ", ".join(
        f"{part} {'DIFFERS from' if checked[part] != 'equal' else 'equal' if part == 'terms' else 'equals'}"
        " eager's"
        for part in parts
    )
    text += ", output in evaluation DIFFERS from eager's" if checked["evaluation"] != "equal" else ""
    text += f", {checked['equal']} of {checked['gradients']} gradients equal eager's"
    if checked["equal"] and (unequal := checked["unequal"]):
        more = ", ..." if len(unequal) > MOST_NAMED else ""
        text += f", not those of {', '.join(unequal[:MOST_NAMED])}{more}"
    if checked["buffers"]:
        text += f", {checked['buffers_equal']} of {checked['buffers']} buffers"
    return text + (f" (largest difference {checked['worst']:.2g})" if checked["worst"] else "")


def differentiate(
    result: torch.Tensor, gradient: torch.Tensor | None, forward: int, module: torch.nn.Module, model: Model
) -> None:
    try:
        result.backward(gradient)
    except Exception as error:  # a backward of the user's own may raise any
        which = "of a second forward in a row " if forward else ""
        place, again = place_in(error), ""  # of a backward of the user's own
        if "second time" in str(error):
            start = Snapshot(module, values=False)
            path, leaf = next(
                (
                    (path, leaf)
                    for path, leaf in start.leaves.items()
                    if leaf.is_buffer and leaf.value.grad_fn is not None
                ),
                ("", None),
            )
            place = where(path, leaf, model.changes.lines.get(path, ""), module) if leaf else place
            again = (
                f"; {f'the buffer {plain_name(path, module)!r}' if leaf else 'something'} keeps the graph of"
                " the forward before: .detach() what is stored in buffers"
            )
        raise CaptureError(
            f"{f'{place}: ' if place else ''}the backward {which}fails in eager mode: {said(error)}"
            + (again or "; a plain loop's loss.backward() fails alike: mend it there")
        ) from error


def changed_since(start: Snapshot, module: torch.nn.Module, model: Model) -> dict[str, Any]:
    """Paths of what forwards changed, but what no forward reads."""
    found = start.differences(Snapshot(module, model.changes.parameters))
    return {path: pair for path, pair in found.items() if path not in model.changes.left_out}


def changed_in_evaluation(
    before: Snapshot, module: torch.nn.Module, model: Model, batch: dict[str, torch.Tensor]
) -> list[str]:
    """Paths of what a forward changed, but attributes that make no difference to the next one: a table, kept
    until the module trains again."""
    found = changed_since(before, module, model)
    attributes = {path for path, pair in found.items() if not is_followed(*pair) and may_be_left_out(*pair)}
    if attributes:
        with torch.no_grad(), without_fast_path():
            behind = module(**in_turn(batch, 1))
            before.restore()
            if same_results(behind, module(**in_turn(batch, 1))):
                return [path for path in found if path not in attributes]
    return list(found)


def updated(model: Model) -> set[str]:
    """Names of what layers have a new value of after a forward."""
    return {
        name
        for layer in model.layers
        for name, new in zip(layer.tensors.names["u"], layer.graph["forward"]["buffers"])
        if new is not None
    }


def plain_name(path: str, module: torch.nn.Module) -> str:
    return path.removeprefix(getattr(module, "PREFIX", ""))


def refuse_unheld(
    start: Snapshot,
    module: torch.nn.Module,
    model: Model,
    kept: set[str],
    batch: dict[str, torch.Tensor],
) -> None:
    """What eager changed is held by a layer, which then compares it."""

    def line_of(path: str) -> str:
        return model.changes.lines.get(path) or line_that_changes(
            lambda: state_at(path, module), lambda: module(**batch)
        )

    for path, (before, after) in changed_since(start, module, model).items():
        if not is_followed(before, after):
            raise refusal(path, before, after, line_of(path), module)
        named = [
            *module.named_buffers(remove_duplicate=False),
            *module.named_parameters(remove_duplicate=False),
        ]
        if not kept & {name for name, tensor in named if tensor is after.value}:
            raise CaptureError(
                f"{where(path, after, line_of(path), module)}: the forward changes"
                f" {plain_name(path, module)!r} in a way that no graph has (.data, a view of another buffer,"
                " another name of it); write to it with copy_() under torch.no_grad()"
            )
