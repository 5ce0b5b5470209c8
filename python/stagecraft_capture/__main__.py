"""stagecraft-capture: a PyTorch module as a folder that `stagecraft train` trains without Python."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stagecraft_tools.arguments import Parser
from stagecraft_tools.console import Progress, add_traceback
from stagecraft_tools.output import OutputFolder

from . import adapters
from .capture import capture
from .check import all_equal, check, words_of
from .compile import compile_graphs, write
from .errors import CaptureError, NotEqualError
from .folder import Captured, graph_name, write_folder
from .keep import BUDGET
from .precision import IN_A_CONFIG, NARROW, narrow_statistics
from .small_twin import same_structure
from .source import load, small_twin
from .table import lopsided, table
from .trial import try_in_engine, usual_loss
from .weights import state_of

if TYPE_CHECKING:
    from .aliases import Json
    from .batch import Batch
    from .capture import Layer, Model
    from .compile import Compiled
    from .losses import WithLoss
    from .weights import State


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("stagecraft-capture", (__doc__ or "").partition(": ")[2])
    parser.add_argument(
        "source", nargs="?", metavar="FILE.py:NAME", help="a module, or a function that returns one"
    )
    parser.add_argument(
        "--hf",
        metavar="CONFIG_OR_FOLDER",
        help="a config.json of transformers, or a folder with one and perhaps weights",
    )
    parser.add_argument(
        "--architecture",
        metavar="CLASS",
        help="with --hf: the class of transformers, as BertForMaskedLM (default: the config's)",
    )
    parser.add_argument(
        "--input",
        metavar="SIZES",
        help=(
            "sizes of one sample of numbers: 3,224,224; or a named one, as --field has it, of a model that"
            " takes its batch as one dictionary"
        ),
    )
    parser.add_argument("--sequence", type=positive_number, metavar="N", help="tokens of one sample")
    parser.add_argument(
        "--lengths",
        type=positive_numbers,
        metavar="LENGTHS",
        help=(
            "shorter lengths of samples that runs may cut padded ones to (data.buckets), as 32,64; a graph of"
            " each layer per length"
        ),
    )
    parser.add_argument(
        "--target-sequence",
        type=positive_number,
        metavar="N",
        help="tokens of one sample's second text, of a model that reads two (default: as many as --sequence)",
    )
    parser.add_argument(
        "--vocabulary", type=positive_number, metavar="N", help="different tokens (default: the config's)"
    )
    parser.add_argument(
        "--fields",
        metavar="NAMES",
        help=(
            "what a Hugging Face model reads besides tokens: labels (its own loss), attention_mask,"
            " token_type_ids, position_ids (default: labels)"
        ),
    )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=TYPE[SIZES]",
        help="a field of the batch besides the input, as in mask=bool[128] or labels=i64[128]<1000",
    )
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        help=(
            "cross_entropy or mse against the data's targets, or FILE.py:NAME, a function of (output, batch)"
            " that returns the loss, or {'loss': ..., 'NAME': ...} with terms to report"
        ),
    )
    parser.add_argument(
        "--untie",
        action="store_true",
        help="give the head its own copy of the embedding it shares, and a decoder its own of its encoder's",
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", *NARROW],
        default="float32",
        help="what the model computes in; its weights stay float32 (default: float32)",
    )
    parser.add_argument(
        "--full",
        metavar="PATTERNS",
        help=(
            "with --dtype: modules that stay float32, by path (model.norm) or by class (*Norm*), separated by"
            " commas"
        ),
    )
    parser.add_argument(
        "--no-weights",
        action="store_true",
        help="types alone, for a model larger than this machine's memory: to plan, not to train",
    )
    parser.add_argument(
        "--keep",
        choices=BUDGET,
        default="cheap",
        help=(
            "cheap (default): values that take little time are made again in the backward; all: they are kept"
        ),
    )
    parser.add_argument(
        "--layers",
        metavar="CHOICE",
        default="auto",
        help=(
            "where to cut: auto (default: between modules, wherever one tensor alone goes on, and between the"
            " blocks of a ModuleList), patterns of module paths (model.layers.*,lm_head), or narrow:N (N"
            " layers of about equal work, cut where least goes on)"
        ),
    )
    parser.add_argument(
        "--compile",
        type=positive_numbers,
        metavar="SIZES",
        help=(
            "adds native code for micro-batches of these sizes (4, or 4,8) and for processors as this one,"
            " which runs may load (model.compiled); needs g++"
        ),
    )
    parser.add_argument(
        "--threads",
        type=positive_number,
        default=1,
        metavar="N",
        help="with --compile: threads per rank of the runs (default: 1)",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of initial weights (default: 0)")
    parser.add_argument(
        "--allow-inexact",
        action="store_true",
        help=(
            "writes the folder also where the self-check finds that its layers do not equal eager; the folder"
            " says so, and each run of it does"
        ),
    )
    parser.add_argument(
        "--no-trial",
        action="store_true",
        help="writes the folder without a step of the engine on it, which else shows that it trains",
    )
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="the model folder to write")
    add_traceback(parser)
    arguments = parser.parse_args(given)
    if bool(arguments.source) == bool(arguments.hf):
        parser.error("give either FILE.py:NAME or --hf CONFIG_OR_FOLDER")
    if arguments.architecture and not arguments.hf:
        parser.error("--architecture is for --hf")
    for name, asked in (
        ("--fields", arguments.fields is not None),
        ("--target-sequence", arguments.target_sequence),
        ("--untie", arguments.untie),
    ):
        if asked and not arguments.hf:
            more = ": --field adds one that a module's forward reads" if name == "--fields" else ""
            parser.error(f"{name} is for --hf{more}")
    if arguments.source and arguments.input and (arguments.sequence or arguments.vocabulary):
        parser.error("give either --input, for numbers, or --sequence and --vocabulary, for tokens")
    if arguments.full and arguments.dtype == "float32":
        parser.error("--full is for --dtype bfloat16 or float16")
    if arguments.compile and arguments.no_weights:
        parser.error("--compile is for models that run; --no-weights makes one to plan")
    if arguments.lengths and arguments.no_weights:
        parser.error("--lengths is for models that run; --no-weights makes one to plan")
    if arguments.threads != 1 and not arguments.compile:
        parser.error("--threads is for --compile")
    return arguments


def number_from(least: int, text: str) -> int:
    if not text.isdecimal() or not least <= int(text) < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from {least} on")
    return int(text)


def positive_number(text: str) -> int:
    return number_from(1, text)


def seed(text: str) -> int:
    return number_from(0, text)


def positive_numbers(text: str) -> list[int]:
    numbers = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers from 1 on, as in 4 or 4,8")
    return list(dict.fromkeys(numbers))


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
    them (repeated.py), where that is needed to be equal."""
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


def main() -> int:
    arguments = parse()
    with OutputFolder("stagecraft-capture", arguments.output) as output:
        return capture_into(output, arguments)


def capture_into(output: OutputFolder, arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    begin = time.monotonic()
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
    print(
        f"{name}: {len(layers)} layers, {len({graph_name(layer.graph) for layer in layers})} graphs, captured"
        f" in {time.monotonic() - begin:.1f} s"
    )
    table(layers)
    if arguments.layers == "auto" and (hint := lopsided(layers)):
        print(hint)
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


if __name__ == "__main__":
    from .command import program

    program()
