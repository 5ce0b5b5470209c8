"""What the command does, once its arguments are known to be right."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stagecraft_tools.console import Progress
from stagecraft_tools.output import OutputFolder

from . import adapters
from .capture import capture
from .check import all_equal, check, words_of
from .compile import compile_graphs, write
from .cut import WeightInTheLoss
from .errors import CaptureError, NotEqualError
from .folder import Captured, graph_name, write_folder
from .keep import BUDGET
from .precision import IN_A_CONFIG, NARROW, narrow_statistics
from .small_twin import same_structure
from .source import load, small_twin
from .table import lopsided, table
from .trial import try_in_engine, usual_loss
from .users_code import uncompiled
from .weights import state_of

if TYPE_CHECKING:
    import argparse

    from .aliases import Json
    from .batch import Batch
    from .capture import Layer, Model
    from .compile import Compiled
    from .losses import WithLoss
    from .weights import State


ONE_LAYER = "all is one layer:"  # what a pipeline says of it begins so


def some(names: list[str]) -> str:
    """The first five, and how many more."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def strip_prefix(layers: list[Layer], prefix: str) -> None:
    """The wrapper's prefix out of all names."""

    def cut(name: str) -> str:
        return name.removeprefix(prefix)

    for layer in layers:
        layer.name = "model" if layer.name in ("", prefix.removesuffix(".")) else cut(layer.name)
        layer.tensors.names = {
            letter: [cut(n) for n in names] for letter, names in layer.tensors.names.items()
        }
        layer.tensors.values = {cut(n): t for n, t in layer.tensors.values.items()}


def refuse_unequal(whole: Captured, shorter: dict[int, Captured]) -> None:
    for at, captured in (
        ("", whole),
        *((f", samples of {length}", each) for length, each in shorter.items()),
    ):
        if captured.checked and not all_equal(captured.checked):
            why = "".join(f"; {reason}" for reason in captured.model.changes.in_evaluation)
            raise NotEqualError(
                f"the captured layers do not equal eager PyTorch{at}: {words_of(captured.checked)}{why};"
                " nothing is written: --allow-inexact writes the folder, and runs of it say so"
            )


def one_sample(module: torch.nn.Module, model: Model, batch: Batch) -> Json | None:
    """Eager may take another path for one sample, which strides tell less of, or refuse it: batch norm over a
    single number, the two largest of one."""
    try:
        return check(module, model, batch.at(1))
    except (ValueError, RuntimeError, IndexError, CaptureError):
        return None


def check_sizes(module: torch.nn.Module, model: Model, batch: Batch) -> tuple[Json, list[int], list[str]]:
    """`checked` and `sizes` of the manifest, and the lines that say so."""
    checked = check(module, model, batch.at(4))
    single = one_sample(module, model, batch)
    lines = [f"checked with a micro-batch of 4: {words_of(checked)}", *model.changes.in_evaluation]
    if model.fails:
        lines.append(
            f"nothing is known of micro-batches of more than {max(model.sizes)} samples: the model cannot be"
            f" followed with so many; {model.fails}"
        )
    if single and all_equal(single):
        return checked, sorted({1, *model.sizes, 4}), lines
    return (
        checked,
        sorted({*model.sizes, 4}),
        [
            *lines,
            (
                "a micro-batch of one sample"
                f"{': ' + words_of(single) if single else ' takes another path in eager mode, or none'}:"
                " train with two or more"
            ),
        ],
    )


def check_twin(
    arguments: argparse.Namespace, large: Model, captured: Callable[..., Any]
) -> tuple[Json | None, list[int], list[str]]:
    """The same for a model without weights: its twin in small is checked, where both have the same operators.
    `captured`: makes a Model of a module, a batch and whether it has a loss."""
    lines = ["no weights: profile and plan it; a run needs weights"]
    twin = small_twin(arguments)
    if twin is None:
        why: str | None = (
            "a model without weights computes nothing, and this one has no config to make it small"
        )
        return None, list(large.sizes), [*lines, f"NOT checked: {why}"]
    try:
        small = captured(*twin)
        why = same_structure(large, small)
    except CaptureError as error:
        why = f"the same config in small is refused: {error}"
    if why:
        return None, list(large.sizes), [*lines, f"NOT checked: {why}"]
    checked, sizes, said_of_small = check_sizes(twin[0], small, twin[1])
    of = "the same config with 2 layers and small sizes"
    return {**checked, "of": of}, sizes, [*lines, f"{of}, which has the same operators:", *said_of_small]


def named(module: torch.nn.Module, model: Model, prefix: str) -> State:
    """Takes the wrapper's prefix off all names; the state that they name."""
    strip_prefix(model.parts, prefix)
    return state_of(module, model.parts, prefix)


def captured_equal(
    module: torch.nn.Module, batch: Batch, has_loss: bool, captured: Callable[..., Any]
) -> tuple[Model, Json, list[int], list[str]]:
    """With gaps between the layers as eager has them (gaps.py), or with calls of a module where eager has
    them (repeated.py), where that is needed to be equal. With the number of a loss of the module's own, where
    that reads weights."""
    try:
        model = captured(module, batch, has_loss)
    except WeightInTheLoss:
        results = getattr(module, "results", None)
        if results is None or results.instead is None:
            raise
        module.results = results.instead
        model = captured(module, batch, has_loss)
    checked, sizes, lines = check_sizes(module, model, batch)
    for how in ({"gaps": True} if model.gaps else {}, {"together": False} if model.moved else {}):
        if how and not all_equal(checked):
            model = captured(module, batch, has_loss, **how)
            checked, sizes, lines = check_sizes(module, model, batch)
    return model, checked, sizes, lines


def captured_at(
    length: int,
    module: torch.nn.Module,
    batch: Batch,
    has_loss: bool,
    captured: Callable[..., Any],
    prefix: str,
) -> tuple[Captured, list[str]]:
    """The same model on samples cut to `length`, and the lines that say how it compares."""
    cut = batch.cut(length)
    model, checked, sizes, lines = captured_equal(module, cut, has_loss, captured)
    return Captured(model, cut, sizes, checked, named(module, model, prefix)), lines


def compiled_for(
    arguments: argparse.Namespace, parts: list[Layer], folder: str
) -> tuple[Compiled, list[str]]:
    """What --compile asks for, and the lines that say what it made."""
    progress, begin = Progress(), time.monotonic()

    def show(done: int, of: int) -> Any:
        return progress.show(lambda: f"compiling {done + 1} of {of} stretches")

    made = compile_graphs([part.graph for part in parts], arguments.compile, arguments.threads, folder, show)
    progress.clear()
    sizes, of = ", ".join(map(str, arguments.compile)), made.stretches + made.interpreted
    threads = f"{arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    line = (
        f"compiled for micro-batches of {sizes}, {made.capability}, {threads}, in"
        f" {time.monotonic() - begin:.0f} s: {made.stretches} of {of} stretches gain, in {len(made.files)}"
        f" libraries (largest difference from their steps {made.difference:.1g})"
    )
    return made, [line]


def tried(arguments: argparse.Namespace, folder: str, captured: Captured) -> list[str]:
    """The line that says what the engine made of the folder."""
    if arguments.no_weights or arguments.no_trial:
        return []
    model = captured.model
    loss = None
    if model.loss is None:
        loss = usual_loss(model.layers[-1].graph["outputs"][0])
        if loss is None:
            return []
    return [try_in_engine(folder, captured.batch, len(model.layers), arguments.dtype, loss)]


def main(arguments: argparse.Namespace) -> int:
    with OutputFolder("stagecraft-capture", arguments.output) as output:
        return capture_into(output, arguments)


def capture_into(output: OutputFolder, arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    begin = time.monotonic()
    with uncompiled():
        module, batch, has_loss = load(arguments)
        return capture_loaded(output, arguments, module, batch, has_loss, begin)


def capture_loaded(
    output: OutputFolder,
    arguments: argparse.Namespace,
    module: Any,
    batch: Batch,
    has_loss: bool,
    begin: float,
) -> int:
    """The folder of `module`, and what to print of it. `begin`: when it was asked for."""

    def captured(module: WithLoss, batch: Batch, has_loss: bool, **how: bool) -> Model:
        return capture(module, batch, has_loss, BUDGET[arguments.keep], arguments.layers, **how)

    prefix = getattr(module, "PREFIX", "")
    if arguments.no_weights:
        model = captured(module, batch, has_loss)
        checked, sizes, lines = check_twin(arguments, model, captured)
    else:
        model, checked, sizes, lines = captured_equal(module, batch, has_loss, captured)
    layers = model.layers
    whole, shorter = Captured(model, batch, sizes, checked, named(module, model, prefix)), {}
    for length in sorted(set(arguments.lengths or []) - set(batch.fields[batch.input].shape[:1])):
        shorter[length], said_of_length = captured_at(length, module, batch, has_loss, captured, prefix)
        lines += [f"samples of {length}:", *said_of_length]
    if not arguments.allow_inexact:
        refuse_unequal(whole, shorter)
    name = type(getattr(module, "wrapped", module)).__name__
    with (
        tempfile.TemporaryDirectory(prefix="stagecraft-") if arguments.compile else contextlib.nullcontext()
    ) as folder:
        made, said_of_code = (
            compiled_for(
                arguments, [part for each in (whole, *shorter.values()) for part in each.model.parts], folder
            )
            if folder
            else (None, [])
        )

        def more(path: str) -> None:
            if made:
                write(made, path)
            # Weights of no numbers tell nothing of which tensor is which.
            if not arguments.no_weights:
                adapters.write(module, prefix, path)

        write_folder(
            output.aside,
            name,
            whole,
            shorter,
            getattr(module, "write_companions", None),
            not arguments.no_weights,
            more,
        )
    lines += tried(arguments, output.aside, whole)
    output.publish()
    if output.replaces:
        print(f"{arguments.output}: this replaces what an earlier capture wrote there")
    print(
        f"{name}: {len(layers)} layers, {len({graph_name(layer.graph) for layer in layers})} graphs, captured"
        f" in {time.monotonic() - begin:.1f} s"
    )
    table(layers)
    if arguments.layers == "auto" and (hint := lopsided(layers)):
        print(hint)
    if model.apart and len(layers) < 2:
        read = some([name.removeprefix(prefix) for name in model.apart])
        print(
            f"{ONE_LAYER} {read} is read again behind other weights; --layers PATTERN makes layers of modules"
            " all the same, and its gradient is added up as a tied weight's"
        )
    if joined := model.joined:
        held = some([name.removeprefix(prefix) for name in joined])
        print(
            f"{layers[0].name} holds {held} too: no gradient comes back between them (frozen weights,"
            " torch.no_grad(), .detach())"
        )
    print("\n".join([*lines, *said_of_code]))
    if left_out := model.changes.left_out:
        names = sorted({re.split(r"[\[]", path.removeprefix(prefix))[0] for path in left_out})
        print(f"left out, since no forward reads it before it sets it: {some(names)}")
    if model.unchecked:
        print(f"lines that refuse some numbers, which no run looks for: {some(model.unchecked)}")
    if narrow := narrow_statistics(module):
        print(
            f"running statistics of {narrow} batch norms are {arguments.dtype}: --full '*BatchNorm*' keeps"
            " them in float32"
        )
    if (most := getattr(module, "stated_positions", None)) and (arguments.sequence or 0) > most:
        print(f"the config says max_position_embeddings {most}; captured with {arguments.sequence} tokens")
    if arguments.dtype == "float32" and getattr(module, "stated_dtype", None) in NARROW:
        print(
            f"the config says {module.stated_dtype}; captured in float32: --dtype {module.stated_dtype}"
            " computes in it"
        )
    if arguments.dtype != "float32":
        print(f"a run of it says {json.dumps(IN_A_CONFIG[arguments.dtype])[1:-1]}")
    print(f"written to {arguments.output}")
    return 0
