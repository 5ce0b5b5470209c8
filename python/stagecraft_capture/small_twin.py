"""The self-check of a model too large to run: the same config with two layers and small sizes is captured and compared with eager.

That says something of the large model where both have the same graphs but for their sizes: the same operators, reading the same values.
"""

import re

from .capture import capture
from .errors import CaptureError

# What configs of transformers call their sizes, and what they become.
LAYERS, HEAD, WIDTH_PER_HEAD = 2, 16, 3
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "shared_heads": ("num_key_value_heads",),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim"),
    "head": ("head_dim",),
    "vocabulary": ("vocab_size",),
}


def small_config(about):
    """The config, a dictionary, with two layers, heads of 16 numbers and 256 tokens; as many heads per shared one as before."""
    small = dict(about)
    find = lambda what: next((name for name in NAMES[what] if isinstance(about.get(name), int)), None)
    heads = find("heads")
    if heads is None:
        return None
    count = min(about[heads], 4)
    shared = find("shared_heads")
    if shared and about[shared]:
        per_shared = about[heads] // about[shared]
        small[shared] = min(about[shared], 2)
        count = per_shared * small[shared]
    new = {"layers": LAYERS, "heads": count, "width": count * HEAD, "inner": count * HEAD * WIDTH_PER_HEAD, "head": HEAD, "vocabulary": 256}
    for what, size in new.items():
        if name := find(what):
            small[name] = size
    for name, value in about.items():
        if name.endswith("_token_id") and isinstance(value, int) and value >= new["vocabulary"]:
            small[name] = 0
        if name == "layer_types" and isinstance(value, list):
            small[name] = value[:LAYERS]
    return small


def without_sizes(value):
    """A graph's JSON without what depends on sizes: operators, dtypes, and who reads what."""
    if isinstance(value, dict):
        return "#" if {"size", "scalar", "float"} & value.keys() else {k: without_sizes(v) for k, v in value.items() if k != "multiply_adds"}
    if isinstance(value, list):
        return [without_sizes(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"[^\[\],]+(?=[\],])", "#", value) if "[" in value else value
    return "#" if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def capture_twin(small, inputs_at, layers):
    """The small model's layers and None; or None and why it says nothing of the large model, `layers`."""
    try:
        small_layers = capture(small, inputs_at)
    except CaptureError as error:
        return None, f"the same config in small is refused: {error}"
    known = [without_sizes(layer.graph) for layer in small_layers]
    for layer in layers:
        if without_sizes(layer.graph) not in known:
            return None, f"layer {layer.name!r} has another graph in the same config in small"
    return small_layers, None
