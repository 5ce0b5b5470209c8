"""stagecraft-capture: a PyTorch module as a folder that `stagecraft train` trains without Python."""

import argparse
import os
import sys
import time

import torch

from .capture import SIZES, capture
from .check import check
from .errors import CaptureError
from .folder import graph_name, write_folder
from .small_twin import capture_twin
from .source import load, small_twin


def parse():
    parser = argparse.ArgumentParser(prog="stagecraft-capture", description=__doc__, allow_abbrev=False)
    parser.add_argument("source", nargs="?", metavar="FILE.py:NAME", help="a module, or a function that returns one")
    parser.add_argument("--hf", metavar="CONFIG_OR_FOLDER", help="a config.json of transformers, or a folder with one and perhaps weights")
    parser.add_argument("--input", metavar="SIZES", help="sizes of one sample of numbers: 3,224,224")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of one sample")
    parser.add_argument("--vocabulary", type=int, metavar="N", help="different tokens (default: the config's)")
    parser.add_argument("--untie", action="store_true", help="give the head its own copy of the embedding it shares")
    parser.add_argument("--no-weights", action="store_true", help="types alone, for a model larger than this machine's memory: to plan, not to train")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of initial weights (default: 0)")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="the model folder to write")
    arguments = parser.parse_args()
    if bool(arguments.source) == bool(arguments.hf):
        parser.error("give either FILE.py:NAME or --hf CONFIG_OR_FOLDER")
    return arguments


def table(layers):
    """One line per layer."""
    rows = [("layer", "parameters", "output", "graph")]
    for layer in layers:
        count = sum(layer.tensors.values[n].numel() for n in layer.tensors.names["p"])
        rows.append((layer.name, f"{count:,}", layer.graph["output"], graph_name(layer.graph)))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print(f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}")


def strip_prefix(layers, prefix):
    """The wrapper's prefix out of all names."""
    cut = lambda name: name.removeprefix(prefix)
    for layer in layers:
        layer.name = cut(layer.name) or "model"
        layer.tensors.names = {letter: [cut(n) for n in names] for letter, names in layer.tensors.names.items()}
        layer.tensors.values = {cut(n): t for n, t in layer.tensors.values.items()}


def said(checked):
    text = f"output {'equals' if checked['output'] == 'equal' else 'DIFFERS from'} eager's, {checked['equal']} of {checked['gradients']} gradients equal eager's"
    if checked["buffers"]:
        text += f", {checked['buffers_equal']} of {checked['buffers']} buffers"
    return text + (f" (largest difference {checked['worst']:.2g})" if checked["worst"] else "")


def check_sizes(module, layers, inputs_at):
    """`checked` and `sizes` of the manifest, and the lines that say so."""
    checked = check(module, layers, inputs_at(4))
    single = check(module, layers, inputs_at(1))  # eager may take another path for one sample
    lines = [f"checked with a micro-batch of 4: {said(checked)}"]
    if single["output"] == "equal" and single["equal"] == single["gradients"]:
        return checked, sorted([1, *SIZES, 4]), lines
    return checked, sorted([*SIZES, 4]), [*lines, f"a micro-batch of one sample: {said(single)}: train with two or more"]


def check_twin(twin, layers):
    """The same for a model without weights: its twin in small is checked, where they have the same graphs but for their sizes."""
    why = "a model without weights computes nothing; a config of Hugging Face is checked in small"
    if twin is not None:
        small, why = capture_twin(*twin, layers)
        if why is None:
            checked, sizes, lines = check_sizes(twin[0], small, twin[1])
            of = "the same config with 2 layers and small sizes"
            return {**checked, "of": of}, sizes, ["no weights: profile and plan it; a run needs weights", f"{of}, whose graphs are the same but for sizes:", *lines]
    return None, list(SIZES), ["no weights: profile and plan it; a run needs weights", f"NOT checked: {why}"]


def main():
    arguments = parse()
    if os.path.exists(arguments.output) and not os.path.isfile(f"{arguments.output}/manifest.json"):
        raise CaptureError(f"{arguments.output}: exists and is no model folder; name another one")
    torch.set_num_threads(1)
    begin = time.monotonic()
    module, inputs_at = load(arguments)
    layers = capture(module, inputs_at)
    if arguments.no_weights:
        checked, sizes, lines = check_twin(small_twin(arguments), layers)
    else:
        checked, sizes, lines = check_sizes(module, layers, inputs_at)
    prefix = getattr(module, "PREFIX", "")
    strip_prefix(layers, prefix)
    name = type(getattr(module, "wrapped", module)).__name__
    write_folder(arguments.output, name, layers, sizes, checked, weights_stored=not arguments.no_weights)
    print(f"{name}: {len(layers)} layers, {len({graph_name(layer.graph) for layer in layers})} graphs, captured in {time.monotonic() - begin:.1f} s")
    table(layers)
    print("\n".join(lines))
    print(f"written to {arguments.output}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CaptureError as error:
        print(f"stagecraft-capture: {error}", file=sys.stderr)
        sys.exit(2)
