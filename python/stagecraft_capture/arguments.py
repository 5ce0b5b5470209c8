"""The command's arguments. Nothing heavy is imported here: a wrong one is told at once."""

from __future__ import annotations

import argparse

from stagecraft_tools.arguments import Parser
from stagecraft_tools.console import add_traceback


def parse(given: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        "stagecraft-capture", "a PyTorch module as a folder that `stagecraft train` trains without Python."
    )
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
        choices=["float32", "bfloat16", "float16"],
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
        choices=["all", "cheap"],
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
