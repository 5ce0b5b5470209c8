"""The self-check of a model too large to run: the same config with two layers and small sizes is captured and
compared with eager.

That says something of the large model where both have the same graphs but for their sizes: the same
operators, reading the same values. What is made again instead of kept may differ: it is chosen by sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import fx

if TYPE_CHECKING:
    from .aliases import Json
    from .capture import Layer, Model
    from .joint import Joint


# What configs of transformers call their sizes, and what they become.
LAYERS, HEAD, WIDTH_PER_HEAD = 2, 16, 3
NAMES = {
    "layers": (
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "num_decoder_layers",
        "encoder_layers",
        "decoder_layers",
    ),
    "heads": (
        "num_attention_heads",
        "n_head",
        "num_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
    ),
    "shared_heads": ("num_key_value_heads",),
    "width": ("hidden_size", "n_embd", "d_model", "dim"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"),
    "head": ("head_dim", "d_kv"),
    "vocabulary": ("vocab_size",),
}


def small_config(about: Json) -> Json | None:
    """The config, a dictionary, with two layers, heads of 16 numbers and 256 tokens; as many heads per shared
    one as before."""
    small = dict(about)

    # two where encoder and decoder have their own
    def named(what: str) -> list[str]:
        return [name for name in NAMES[what] if isinstance(about.get(name), int)]

    heads = next(iter(named("heads")), None)
    if heads is None:
        return None
    count = min(about[heads], 4)
    shared = next(iter(named("shared_heads")), None)
    if shared and about[shared]:
        per_shared = about[heads] // about[shared]
        small[shared] = min(about[shared], 2)
        count = per_shared * small[shared]
    new = {
        "layers": LAYERS,
        "heads": count,
        "width": count * HEAD,
        "inner": count * HEAD * WIDTH_PER_HEAD,
        "head": HEAD,
        "vocabulary": 256,
    }
    for what, size in new.items():
        small.update(dict.fromkeys(named(what), size))
    for name, value in about.items():
        if name.endswith("_token_id") and isinstance(value, int) and value >= new["vocabulary"]:
            small[name] = 0
        if name == "layer_types" and isinstance(value, list):
            small[name] = value[:LAYERS]
    return small


def structure(joints: Iterable[Joint]) -> str:
    """Operators of joint graphs and who reads what, as text: all but sizes and other numbers."""
    lines = []
    for joint in joints:
        known: dict[fx.Node, str] = {}
        for node in joint.graph.nodes:
            known[node] = f"%{len(known)}"
            given = joint.roles.get(node) or text_of((node.args, node.kwargs), known)
            lines.append(f"{node.op} {node.target if node.op == 'call_function' else ''} {given}")
    return "\n".join(lines)


def text_of(value: Any, known: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return known[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(v, known) for v in value) + "]"
    if isinstance(value, dict):
        return text_of([part for item in value.items() for part in item], known)
    return "#" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def same_structure(large: Model, small: Model) -> str | None:
    """None where every layer of the large model has the operators of one of the small one's; else why not."""

    def parts(model: Model) -> list[Layer]:
        return [*model.layers, *([model.loss] if model.loss else [])]

    known = {layer.structure for layer in parts(small)}
    other = next((layer.name for layer in parts(large) if layer.structure not in known), None)
    return other and f"layer {other!r} has other operators in the same config in small"
